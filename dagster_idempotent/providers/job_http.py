"""What adapters of remote jobs share: one paid request, and free ones whose answers say something or nothing."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import cast
from urllib.parse import quote, urljoin, urlsplit

from dagster_idempotent.domain.money import Money
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.credentials import BEARER, CredentialPlace, check_variable, read_credential
from dagster_idempotent.providers.http_answer import excerpt
from dagster_idempotent.providers.http_request import origin_of, plain_address
from dagster_idempotent.providers.job_states import JobUnknown
from dagster_idempotent.providers.outcome import Accepted, InDoubt, NotSent, Outcome, Rejected
from dagster_idempotent.providers.profiles import HTTP_REFUSALS
from dagster_idempotent.providers.protocol import Sink
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import BodyLost, Response, Route, send_once, send_unpaid

JsonPath = tuple[str, ...]
MAX_ANSWER = 4 * 1024 * 1024
# What may stand in the answer to a free question: where it is the result itself, a table takes no more.
MAX_TOLD = 64 * 1024 * 1024
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_MOST_REDIRECTS = 5
# What an address may have as it is; services name results in any language.
_URL = "%/:?#[]@!$&'()*+,;=~"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobHttp:
    """The way to one job API: its address and its credential, which goes to no other origin."""

    base_url: str
    api_key_variable: str | None
    credential: CredentialPlace = BEARER
    refusals: Mapping[int, str] = field(default_factory=lambda: HTTP_REFUSALS)
    route: Route = field(default_factory=Route)

    def __post_init__(self) -> None:
        object.__setattr__(self, "base_url", plain_address(self.base_url))
        if self.api_key_variable is not None:
            check_variable(self.api_key_variable)

    def submit(
        self, path: str, body: bytes, headers: Mapping[str, str], window: SendWindow, *, id_at: JsonPath
    ) -> Outcome:
        """Send the paid request once; accepted is an answer of the 200s that names the job."""
        url, pairs, secret = self._authorised(
            self.base_url + path, {**headers, "Content-Type": "application/json", "Accept-Encoding": "identity"}
        )
        result = send_once("POST", url, headers=pairs, body=body, window=window, route=self.route, max_body=MAX_ANSWER)
        outcome = self._outcome(result, id_at)
        if isinstance(outcome, Accepted) or not secret:
            return outcome
        return replace(outcome, reason=outcome.reason.replace(secret, "***"))

    def free(
        self,
        method: str,
        place: str,
        *,
        body: bytes = b"",
        content_type: str = "application/json",
        into: Sink | None = None,
    ) -> Response | str:
        """Send a request that costs nothing, to a path or to a whole URL; return its answer, or why there is none.

        The body of a 200 goes `into`, where that is given. Unlike those of a paid request, redirects of a download are
        followed; the credential stays with its origin.
        """
        url = place if "://" in place else self.base_url + place
        try:
            for _ in range(_MOST_REDIRECTS):
                response = self._once(method, quote(url, safe=_URL), body, content_type, into)
                target = None if isinstance(response, str) else response.header("location")
                if isinstance(response, str) or method != "GET" or response.status not in _REDIRECTS or target is None:
                    return response
                url = urljoin(url, target)
                if urlsplit(url).scheme not in {"http", "https"}:
                    return f"the answer leads to {urlsplit(url).scheme}:, expected http or https"
        except ValueError as error:
            return f"the answer leads to an address that is none: {error}"
        return f"more than {_MOST_REDIRECTS} redirects"

    def _once(self, method: str, url: str, body: bytes, content_type: str, into: Sink | None) -> Response | str:
        headers = {"Accept-Encoding": "identity", **({"Content-Type": content_type} if body else {})}
        secret = None
        pairs: list[tuple[str, str]] = list(headers.items())
        if origin_of(urlsplit(url)) == origin_of(urlsplit(self.base_url)):
            url, pairs, secret = self._authorised(url, headers)
        response = send_unpaid(method, url, headers=pairs, body=body, route=self.route, max_body=MAX_TOLD, into=into)
        if secret is None:
            return response
        if isinstance(response, str):
            return response.replace(secret, "***")
        if 200 <= response.status < 300:  # noqa: PLR2004 - HTTP's class of success
            return response
        # A refusal is shown to people, and some of them repeat the key.
        return replace(response, body=response.body.replace(secret.encode(), b"***"))

    def download(self, place: str, into: Sink) -> Response | JobUnknown:
        """Fetch a result into `into`; return its response, without a body, or say why it did not come whole."""
        response = self.free("GET", place, into=into)
        if isinstance(response, str):
            return JobUnknown(reason=response)
        if response.status != 200:  # noqa: PLR2004 - HTTP's own number
            return JobUnknown(reason=f"HTTP {response.status}: {excerpt(response.body)}")
        return response

    def told(self, method: str, place: str, *, body: bytes = b"") -> Mapping[str, object] | str:
        """Return the JSON object that a free request is answered with, or why there is none."""
        response = self.free(method, place, body=body)
        if isinstance(response, str):
            return response
        found = json_object(response.body)
        if not 200 <= response.status < 300 or found is None:  # noqa: PLR2004 - HTTP's class of success
            return f"HTTP {response.status}: {excerpt(response.body)}"
        return found

    def absolute(self, place: str) -> str:
        """Return a URL that an answer gives, which may be relative to the API."""
        return place if "://" in place else urljoin(f"{self.base_url}/", place)

    def _outcome(
        self, result: Response | NotSent | InDoubt, id_at: JsonPath
    ) -> Accepted | Rejected | NotSent | InDoubt:
        if isinstance(result, BodyLost) and result.response.status in self.refusals:
            result = result.response
        if isinstance(result, NotSent | InDoubt):
            return result
        told = f"HTTP {result.status}: {excerpt(result.body)}"
        if result.status in self.refusals:
            return Rejected(reason=f"{told} [{self.refusals[result.status]}]")
        found = json_object(result.body)
        reference = text_at(found, id_at)
        if not 200 <= result.status < 300:  # noqa: PLR2004 - HTTP's class of success
            return InDoubt(reason=told, remote_ref=reference)
        if reference is None:
            where = ".".join(id_at)
            return InDoubt(reason=f"{told}: the answer names no job (`{where}` is missing or no text)")
        return Accepted(remote_ref=reference)

    def _authorised(self, url: str, headers: Mapping[str, str]) -> tuple[str, list[tuple[str, str]], str | None]:
        if self.api_key_variable is None:
            return url, list(headers.items()), None
        secret = read_credential(self.api_key_variable)
        url, pairs = self.credential.put(secret, url, list(headers.items()))
        return url, pairs, secret


def json_object(body: bytes) -> Mapping[str, object] | None:
    """Return a body as a JSON object, numbers with a point as Decimal; None where it is not one."""
    try:
        value: object = json.loads(body, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else None


def at(found: object, path: JsonPath) -> object:
    """Return what stands at a path of an object; None where nothing does."""
    for name in path:
        found = cast("Mapping[str, object]", found).get(name) if isinstance(found, dict) else None
    return found


def text_at(found: object, path: JsonPath) -> str | None:
    """Return a printable text, or a whole number as text; None where there is none."""
    value = at(found, path)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value and value.isprintable() else None


def money_at(found: object, amount_at: JsonPath, currency: str) -> Money | None:
    """Return an amount; None where nothing at the path reads as one."""
    value = at(found, amount_at)
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        return None
    try:
        return Money(amount=Decimal(value), currency=currency)
    except (ArithmeticError, ConfigurationError, ValueError):
        return None
