"""The HTTP channel: a webhook, sent once a delivery, with an Idempotency-Key that never changes (R32)."""

import os
from collections.abc import Mapping
from datetime import timedelta

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.errors import ConfigurationError, DeliveryInDoubt, DeliveryNotSent
from dagster_idempotent.providers.outcome import InDoubt, NotSent
from dagster_idempotent.providers.profiles import HTTP_REFUSALS
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Response, send_once


class HttpChannel:
    """Posts each message as JSON to a URL, under the header `Idempotency-Key: pipeline:task:channel`.

    `deduplicates` is the receiver's promise, which only you can know: True if it ignores a repeat of the same key.
    Then a message is retried until it is acknowledged; else it goes at most once and is in doubt where no answer came.
    Acknowledged is any status from 200 to 299; redirects are not followed. `url_variable` and `bearer_variable` name
    environment variables, read when a message goes, for what must not stand in code.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        deduplicates: bool,
        url_variable: str | None = None,
        bearer_variable: str | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        if (url is None) == (url_variable is None):
            raise ConfigurationError(
                "An HttpChannel has one address: give either url or url_variable, the name of the environment "
                "variable that holds it.",
                field="url",
            )
        self._url, self._url_variable, self._bearer_variable = url, url_variable, bearer_variable
        self._deduplicates = deduplicates
        self._headers = dict(headers or {})
        self._timeout = timeout

    @property
    def deduplicates(self) -> bool:
        """What was said about the receiver."""
        return self._deduplicates

    def deliver(self, message: Message, *, window: timedelta) -> str:
        """Post the message once and return the status.

        Raises DeliveryNotSent where no byte left or the receiver said a definite no, DeliveryInDoubt otherwise.
        """
        send_window = SendWindow(window)
        headers = {**self._headers, "Content-Type": "application/json", "Idempotency-Key": message.key}
        if self._bearer_variable is not None:
            headers["Authorization"] = f"Bearer {_read(self._bearer_variable)}"
        url = self._url if self._url_variable is None else _read(self._url_variable)
        response = send_once(
            "POST",
            url or "",
            headers=headers,
            body=message.payload.encode(),
            window=send_window,
            connect_timeout=self._timeout,
            read_timeout=self._timeout,
        )
        match response:
            case Response() if 200 <= response.status < 300:  # noqa: PLR2004 - the class of success
                return str(response.status)
            case Response() if response.status in HTTP_REFUSALS:
                raise DeliveryNotSent(f"The receiver refused message {message.key} with status {response.status}.")
            case Response():
                raise DeliveryInDoubt(
                    f"The receiver answered message {message.key} with status {response.status}, which is neither an "
                    "acknowledgement (2xx) nor a definite no."
                )
            case NotSent():
                raise DeliveryNotSent(f"Message {message.key} never left: {response.reason}")
            case InDoubt():
                raise DeliveryInDoubt(f"Message {message.key} was put out without an answer: {response.reason}")


def _read(variable: str) -> str:
    value = os.environ.get(variable)
    if not value:
        raise DeliveryNotSent(
            f"The environment variable {variable} is unset or empty; nothing was delivered. Set it where relays run.",
            variable=variable,
        )
    return value
