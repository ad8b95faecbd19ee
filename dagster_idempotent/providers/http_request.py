"""One HTTP request as an SDK wanted to send it, and what of it makes two requests the same."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import SplitResult, parse_qsl, urlsplit

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.request_body import body_payload

UNPAID_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
# Names under which a credential may stand in a query; they are neither fingerprinted nor kept.
CREDENTIAL_FIELDS = frozenset({"key", "api_key", "apikey", "api-key", "access_token", "auth_token", "token"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request before anything is decided about it; the headers may hold a placeholder or the caller's credential.

    The timeouts are those that the SDK was given; None leaves them to the provider.
    """

    method: str
    url: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    body: bytes = field(default=b"", repr=False)
    connect_timeout: timedelta | None = None
    read_timeout: timedelta | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", self.method.upper())
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigurationError(
                f"The request goes to {parts.scheme or 'no scheme'}://{parts.hostname or 'no host'}, expected an "
                "http or https address. Nothing was sent.",
                field="url",
            )
        for name, value in self.headers:
            if not _fits_header(name + value):
                raise ConfigurationError(
                    f"The header {name!a} holds characters that HTTP cannot carry. Nothing was sent. Set it to "
                    "text in latin-1, without line ends.",
                    field=name,
                )

    @property
    def paid(self) -> bool:
        """Whether the method may make a provider do something; a provider's profile may know better."""
        return self.method not in UNPAID_METHODS

    @property
    def parts(self) -> SplitResult:
        """The parts of the URL."""
        return urlsplit(self.url)

    @property
    def content_type(self) -> str:
        """The content type with its parameters, empty for none."""
        return self.header("content-type") or ""

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    def address(self, base_url: str | None = None) -> str:
        """Return the URL without query, fragment and credentials; below `base_url`, only the path that follows it.

        So a gateway put in front of a provider does not make another request of it.
        """
        parts = self.parts
        path = parts.path or "/"
        if base_url is not None:
            base = urlsplit(base_url)
            prefix = base.path.rstrip("/")
            if origin_of(parts) == origin_of(base) and (path == prefix or path.startswith(f"{prefix}/")):
                return path[len(prefix) :] or "/"
        scheme, host, port = origin_of(parts)
        default = {"http": 80, "https": 443}.get(scheme)
        return f"{scheme}://{host}{'' if port == default else f':{port}'}{path}"

    def fingerprint_payload(self, base_url: str | None = None) -> Mapping[str, object]:
        """Return method, URL without credentials and the body in its own terms; never a header.

        Raises InvalidPayload for a JSON body with NaN or a number that no JSON carries.
        """
        query: dict[str, list[str]] = {}
        for name, value in parse_qsl(self.parts.query, keep_blank_values=True):
            if name.lower() not in CREDENTIAL_FIELDS:
                query.setdefault(name, []).append(value)
        return {
            "method": self.method,
            "url": self.address(base_url),
            **({"query": query} if query else {}),
            **body_payload(self.body, self.content_type, self.header("content-encoding")),
        }


def _fits_header(text: str) -> bool:
    return all(char == "\t" or (" " <= char <= "\xff" and char != "\x7f") for char in text)


def origin_of(parts: SplitResult) -> tuple[str, str, int | None]:
    """Return scheme, host and port; credentials go to one origin only."""
    default = {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname or "", parts.port or default


def plain_address(base_url: str) -> str:
    """Return the address of an API without a slash at its end; raises ConfigurationError, and shows no part of it.

    A given and empty one is refused too: another address in its place would be charged for what was meant for it.
    """
    try:
        parts = urlsplit(base_url)
        plain = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.username or parts.query)
    except ValueError:
        plain = False
    if not plain:
        found = "is not a plain address" if base_url.strip() else "is given, and it is empty; expected an address"
        raise ConfigurationError(
            f'base_url {found} such as "https://api.openai.com/v1", without user and query.', field="base_url"
        )
    return base_url.rstrip("/")
