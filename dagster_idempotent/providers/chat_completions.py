"""Any service that speaks OpenAI's `POST /chat/completions`, as a synchronous provider."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import cast
from urllib.parse import urlencode

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.errors import ConfigurationError, IdempotentError
from dagster_idempotent.providers.credentials import check_variable, read_credential
from dagster_idempotent.providers.http_answer import excerpt
from dagster_idempotent.providers.http_request import plain_address
from dagster_idempotent.providers.json_body import json_body
from dagster_idempotent.providers.outcome import (
    Accepted,
    Answer,
    Finding,
    InDoubt,
    LookUpFailed,
    NotFound,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
    Unfinished,
    first_found,
)
from dagster_idempotent.providers.profiles import HTTP_REFUSALS
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Response, get, send_once

ChatRequest = Mapping[str, object]
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion:
    """A completion: the text of its first choice, and everything that the service said."""

    text: str
    raw: Mapping[str, object]


class ChatCompletionsProvider:
    """Sends chat completions once, under a client reference; looks them up where the service can.

    The credential is named (`api_key_variable`) and read only when a request is about to leave. `look_up_path`, such
    as "/lookup", names an exact and complete search by client reference; most services have none, and then a lost
    answer waits for a person. `key_window` is how long the service documents that it honours `Idempotency-Key`.
    `cost_of` computes the cost of an answer from its JSON; None means unknown.
    """

    def __init__(
        self,
        *,
        base_url: str,
        api_key_variable: str = "OPENAI_API_KEY",
        account: str = "",
        look_up_path: str | None = None,
        settle_delay: timedelta = timedelta(minutes=10),
        key_window: timedelta | None = None,
        read_timeout: timedelta = timedelta(minutes=10),
        cost_of: Callable[[Mapping[str, object]], Money | None] | None = None,
        upper_bound: Money | None = None,
    ) -> None:
        self._base_url = plain_address(base_url)
        self._api_key_variable = check_variable(api_key_variable)
        self._account = account
        self._look_up_path = look_up_path
        self._read_timeout = read_timeout
        self._cost_of = cost_of
        self._upper_bound = upper_bound
        self.settle_delay = settle_delay
        self.key_window = key_window

    @property
    def name(self) -> str:
        """The service and the account; a request to another address may still be the same request."""
        return f"chat_completions:{self._account}" if self._account else "chat_completions"

    @property
    def lookup(self) -> LookUp:
        """Exact where a look-up path is given: a client reference names one request."""
        return LookUp.NONE if self._look_up_path is None else LookUp.EXACT

    def operation(self, request: ChatRequest) -> str:  # noqa: ARG002 - part of the protocol
        """Name the endpoint, without the host: a proxy in between does not make another request of it."""
        return "POST /chat/completions"

    def payload(self, request: ChatRequest) -> object:
        """Return the JSON body; streaming is refused, since a cut stream looks like a short answer."""
        if request.get("stream"):
            raise ConfigurationError(
                "The request sets `stream`; leave it out: answers are stored whole.", field="stream"
            )
        json_body(request)  # refuses what JSON cannot carry before anything is recorded
        return request

    def estimate(self, request: ChatRequest) -> Money | None:  # noqa: ARG002 - part of the protocol
        """Return the upper bound that was configured."""
        return self._upper_bound

    def submit(self, request: ChatRequest, *, key: IdempotencyKey, window: SendWindow) -> Outcome:
        """Send the completion request once and classify what came back."""
        secret = read_credential(self._api_key_variable)
        headers = {
            "Authorization": f"Bearer {secret}",
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Idempotency-Key": key,
            "X-Client-Request-Id": key,
        }
        result = send_once(
            "POST",
            f"{self._base_url}/chat/completions",
            headers=headers,
            body=json_body(request),
            window=window,
            read_timeout=self._read_timeout,
        )
        if isinstance(result, NotSent | InDoubt):
            return result
        return _without(secret, self._outcome(result))

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        """Look up each key; the first that the service knows decides."""
        if self._look_up_path is None:
            return NotFound(complete=False)
        return first_found(keys, self._find_one)

    def decode(self, answer: Answer) -> ChatCompletion:
        """Turn the stored body into a completion."""
        raw = _object(answer.body)
        return ChatCompletion(text=_text(raw) or "", raw=raw or {})

    def content(self, answer: Answer) -> str:
        """Return the text of the first choice."""
        return self.decode(answer).text

    def _outcome(self, response: Response) -> Outcome:
        if response.status in HTTP_REFUSALS:
            return Rejected(reason=f"HTTP {response.status}: {excerpt(response.body)}")
        raw = _object(response.body)
        if response.status != 200:  # noqa: PLR2004 - HTTP's own number
            return InDoubt(reason=f"HTTP {response.status}: {excerpt(response.body)}", remote_ref=_reference(raw))
        return self._succeeded(response.body, raw, {"status": 200, "request_id": response.header("x-request-id")})

    def _succeeded(
        self, body: bytes, raw: Mapping[str, object] | None, head: Mapping[str, object]
    ) -> Succeeded | InDoubt:
        if raw is None or not _is_completion(raw):
            reason = f"the answer is not a completion: {excerpt(body)}"
            return InDoubt(reason=reason, remote_ref=_reference(raw))
        return Succeeded(answer=Answer(head=head, body=body), remote_ref=_reference(raw), cost=self._cost(raw))

    def _cost(self, raw: Mapping[str, object]) -> Money | None:
        """Compute the cost; a computation that fails makes it unknown and never loses a paid answer."""
        if self._cost_of is None:
            return None
        try:
            return self._cost_of(raw)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, IdempotentError) as error:
            logger.warning("chat_completions.cost_unknown", extra={"reason": f"{type(error).__name__}: {error}"})
            return None

    def _find_one(self, key: IdempotencyKey) -> Finding:
        query, secret = urlencode({"client_reference": key}), read_credential(self._api_key_variable)
        response = get(
            f"{self._base_url}{self._look_up_path}?{query}",
            headers={"Authorization": f"Bearer {secret}"},
            timeout=timedelta(seconds=30),
        )
        if isinstance(response, str):
            return LookUpFailed(reason=response)
        found = _object(response.body)
        if response.status != 200 or found is None or not isinstance(found.get("requests"), list):  # noqa: PLR2004
            return LookUpFailed(reason=f"HTTP {response.status}: {excerpt(response.body)}".replace(secret, "***"))
        rows = cast("list[object]", found["requests"])
        if not rows:
            return NotFound(complete=found.get("complete") is True)
        finding = self._found(rows[0])
        if len(rows) > 1 and isinstance(finding, Succeeded | Unfinished):
            others = (_reference(_as_object(row)) for row in rows[1:])
            return replace(finding, also=tuple(each or "a request without an id" for each in others))
        return finding

    def _found(self, row: object) -> Finding:
        match row:
            case {"id": str(reference), "response": dict() as found} if reference:  # pyright: ignore[reportUnknownVariableType] - any JSON
                raw = cast("Mapping[str, object]", found)
                outcome = self._succeeded(json.dumps(raw).encode(), raw, {"looked_up": True})
                return outcome if isinstance(outcome, Succeeded) else LookUpFailed(reason=outcome.reason)
            case {"id": str(reference), "response": None} if reference:
                return Unfinished(remote_ref=reference)
            case _:
                return LookUpFailed(reason="the look-up found something that this adapter cannot read")


def _object(body: bytes) -> Mapping[str, object] | None:
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return _as_object(value)


def _as_object(value: object) -> Mapping[str, object] | None:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def _is_completion(raw: Mapping[str, object]) -> bool:
    """Whether it has choices with a message; its content is null where the model called tools or refused."""
    match raw.get("choices"):
        case [{"message": dict()}, *_]:  # pyright: ignore[reportUnknownVariableType] - any JSON
            return True
        case _:
            return False


def _without(secret: str, outcome: Outcome) -> Outcome:
    """Take the credential out of a text about a failure: some services quote it when they refuse it."""
    return (
        outcome
        if isinstance(outcome, Succeeded | Accepted)
        else replace(outcome, reason=outcome.reason.replace(secret, "***"))
    )


def _text(raw: Mapping[str, object] | None) -> str | None:
    """Return the text of the first choice, None where the object is no completion."""
    choices = None if raw is None else raw.get("choices")
    match choices:
        case [{"message": {"content": str(text)}}, *_]:  # pyright: ignore[reportUnknownVariableType] - any JSON
            return text
        case _:
            return None


def _reference(raw: Mapping[str, object] | None) -> str | None:
    reference = None if raw is None else raw.get("id")
    return reference if isinstance(reference, str) and reference else None
