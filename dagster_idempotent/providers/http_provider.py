"""Any HTTP API as a provider: one send, classified by what is known of the API, its answer kept as it came."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from urllib.parse import urlsplit

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.errors import ConfigurationError, InvalidPayload
from dagster_idempotent.providers.classification import classify
from dagster_idempotent.providers.credentials import check_variable, read_credential
from dagster_idempotent.providers.event_stream import StreamEnd
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_request import HttpRequest, origin_of, plain_address
from dagster_idempotent.providers.json_body import MAX_REQUEST
from dagster_idempotent.providers.outcome import (
    Accepted,
    Answer,
    Finding,
    InDoubt,
    NotFound,
    NotSent,
    Outcome,
    Rejected,
    Succeeded,
)
from dagster_idempotent.providers.profiles import GENERIC, Profile
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import HeaderPairs, Route, send_once, send_unpaid

MAX_ANSWER = 64 * 1024 * 1024
# Where large answers are written to files.
MAX_ANSWER_IN_FILES = 512 * 1024 * 1024
# The sender writes its own: they are about its connection, and only encodings that any replay can undo are asked for.
_OWN_HEADERS = frozenset(
    {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "expect", "te", "upgrade"}
)


_MISTAKES = (ArithmeticError, AttributeError, ConfigurationError, LookupError, TypeError, ValueError)
logger = logging.getLogger(__name__)


class HttpProvider:
    """Sends the HTTP requests of an SDK to one API, each once.

    Building one reads no credential. `api_key_variable` names the environment variable that holds it; with none, the
    headers that the caller set go out as they are. Requests to another origin than `base_url` are refused, so that
    the credential goes nowhere else. `find` looks a request up, exactly, by its keys, and gives the answer in the form
    that was asked for, made by `HttpAnswer.to_store`; with `exact=False` it gives PossibleMatches and settles nothing;
    without it a lost answer waits for a person, or for a resend where the profile has a key window. An answer above
    `max_answer` bytes is not kept: the call is then in doubt and names the provider's reference. `cost_of` is given
    request and answer; `estimate` the request: its upper bound.
    """

    def __init__(
        self,
        profile: Profile = GENERIC,
        *,
        base_url: str | None = None,
        api_key_variable: str | None = None,
        account: str = "",
        settle_delay: timedelta = timedelta(minutes=10),
        find: Callable[[Sequence[IdempotencyKey]], Finding] | None = None,
        exact: bool = True,
        cost_of: Callable[[HttpRequest, HttpAnswer], Money | None] | None = None,
        estimate: Callable[[HttpRequest], Money | None] | None = None,
        upper_bound: Money | None = None,
        route: Route | None = None,
        max_request: int = MAX_REQUEST,
        max_answer: int = MAX_ANSWER,
    ) -> None:
        self.profile = profile
        address = profile.base_url if base_url is None else base_url
        self.base_url = None if address is None else plain_address(address)
        named = profile.api_key_variable if api_key_variable is None else api_key_variable
        self.api_key_variable = None if named is None else check_variable(named)
        if self.api_key_variable is not None and self.base_url is None:
            raise ConfigurationError(
                "A credential is named, but not where it may be sent. Give the provider its `base_url`.",
                field="base_url",
            )
        self.settle_delay = settle_delay
        self._account = account
        self._find = find
        self._exact = exact
        self._cost_of = cost_of
        self._estimate = estimate
        self._upper_bound = upper_bound
        self.route = route or Route()
        self._max_request = max_request
        self.max_answer = max_answer

    @property
    def name(self) -> str:
        """The API and the account that is charged; a request by way of another host is still the same request."""
        return f"{self.profile.name}:{self._account}" if self._account else self.profile.name

    @property
    def lookup(self) -> LookUp:
        """Exact where a `find` was given, unless it was called fuzzy."""
        if self._find is None:
            return LookUp.NONE
        return LookUp.EXACT if self._exact else LookUp.FUZZY

    @property
    def key_window(self) -> timedelta | None:
        """How long the API documents that it honours an idempotency key."""
        return self.profile.key_window

    def is_paid(self, request: HttpRequest) -> bool:
        """Whether the request has to go through the guard."""
        return self.profile.is_paid(request, self.base_url)

    def operation(self, request: HttpRequest) -> str:
        """Name the endpoint; without the host where there is a base URL."""
        return f"{request.method} {request.address(self.base_url)}"

    def payload(self, request: HttpRequest) -> object:
        """Return what is sent, without headers and credentials; refuses another origin and a body that is too large."""
        self._check_origin(request)
        if len(request.body) > self._max_request:
            raise InvalidPayload(
                f"The body of the request has {len(request.body)} bytes, expected at most {self._max_request}. Upload "
                "it first and send a reference, or raise the provider's `max_request` and the pipeline's send_window. "
                "Nothing was sent.",
                field="body",
            )
        return request.fingerprint_payload(self.base_url)

    def estimate(self, request: HttpRequest) -> Money | None:
        """Return an upper bound of the cost; the configured one where the request itself does not tell."""
        found = None if self._estimate is None else self._estimate(request)
        return self._upper_bound if found is None else found

    def submit(self, request: HttpRequest, *, key: IdempotencyKey, window: SendWindow) -> Outcome:
        """Send the request once and classify what came back."""
        self._check_origin(request)
        url, headers, secret = self._authorised(request)
        headers = self._named(headers, key)
        result = send_once(
            request.method,
            url,
            headers=headers,
            body=request.body,
            window=window,
            route=self._way_of(request),
            watch=self._watch,
            max_body=self.max_answer,
        )
        outcome = classify(self.profile, result, path=request.parts.path)
        if isinstance(outcome, Succeeded):
            return replace(outcome, cost=self._cost(request, HttpAnswer.stored(outcome.answer)))
        return _without(outcome, secret)

    def unpaid(self, request: HttpRequest) -> HttpAnswer | str:
        """Send a request that costs nothing, once and unrecorded; return its answer, or why there is none."""
        self._check_origin(request)
        url, headers, _ = self._authorised(request)
        response = send_unpaid(request.method, url, headers=headers, body=request.body, route=self._way_of(request))
        if isinstance(response, str):
            return response
        return HttpAnswer.kept(response.status, response.headers, response.body)

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        """Look the request up, where that is possible."""
        return NotFound(complete=False) if self._find is None else self._find(keys)

    def decode(self, answer: Answer) -> HttpAnswer:
        """Return the stored answer."""
        return HttpAnswer.stored(answer)

    def content(self, answer: Answer) -> str | bytes:
        """Return the text that the answer carries where its profile knows it, else the whole body."""
        stored = HttpAnswer.stored(answer)
        body = stored.json_object()
        text = None if body is None else self.profile.text_of(body)
        return stored.readable() if text is None else text

    def _cost(self, request: HttpRequest, answer: HttpAnswer) -> Money | None:
        if self._cost_of is None:
            return None
        try:
            return self._cost_of(request, answer)
        except _MISTAKES as error:
            # The answer is paid for and in hand: a mistake in a price must not lose it.
            logger.warning("http_provider.cost_unknown", extra={"provider": self.name, "reason": repr(error)})
            return None

    def _check_origin(self, request: HttpRequest) -> None:
        if self.base_url is None:
            return
        allowed, found = origin_of(urlsplit(self.base_url)), origin_of(request.parts)
        if found != allowed:
            raise ConfigurationError(
                f"The request goes to {found[0]}://{found[1]}:{found[2]}, expected {allowed[0]}://{allowed[1]}:"
                f"{allowed[2]}, the only place that gets this provider's credential. Nothing was sent. Give another "
                "host a provider of its own.",
                field="url",
            )

    def _authorised(self, request: HttpRequest) -> tuple[str, list[tuple[str, str]], str | None]:
        """Return URL and headers of the copy that is sent, and the credential in it."""
        headers = [pair for pair in request.headers if pair[0].lower() not in _OWN_HEADERS]
        gzip = "gzip" in (request.header("accept-encoding") or "")
        headers.append(("Accept-Encoding", "gzip" if gzip else "identity"))
        if self.api_key_variable is None:
            return request.url, headers, None
        secret = read_credential(self.api_key_variable)
        url, headers = self.profile.credential.put(secret, request.url, headers)
        return url, headers, secret

    def _named(self, headers: list[tuple[str, str]], key: IdempotencyKey) -> list[tuple[str, str]]:
        """Add the key of the ledger; where the profile promises nothing of keys, a caller's own stays."""
        for name in (self.profile.idempotency_header, self.profile.reference_header):
            theirs = [pair for pair in headers if name is not None and pair[0].lower() == name.lower()]
            if name is not None and (not theirs or self.key_window is not None):
                headers = [*(pair for pair in headers if pair not in theirs), (name, key)]
        return headers

    def _way_of(self, request: HttpRequest) -> Route:
        return replace(
            self.route,
            connect_timeout=request.connect_timeout or self.route.connect_timeout,
            read_timeout=request.read_timeout or self.route.read_timeout,
        )

    def _watch(self, status: int, headers: HeaderPairs) -> StreamEnd | None:
        """End a stream of events at its terminal event: some providers keep the connection open after it."""
        kind = next((value for name, value in headers if name.lower() == "content-type"), "")
        if status != 200 or not kind.lower().startswith("text/event-stream"):  # noqa: PLR2004 - HTTP's own number
            return None
        return StreamEnd(headers, self.profile.terminal | self.profile.failed_events)


def _without(outcome: Accepted | Rejected | NotSent | InDoubt, secret: str | None) -> Outcome:
    """Return the outcome with the credential struck out of its reason, should a provider have echoed it."""
    if isinstance(outcome, Accepted) or not secret or secret not in outcome.reason:
        return outcome
    return replace(outcome, reason=outcome.reason.replace(secret, "***"))
