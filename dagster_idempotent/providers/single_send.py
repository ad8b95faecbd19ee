"""One HTTP request, sent once: no retry, no redirect, no byte after the send window.

The `http` extra brings httpcore. It is used below the level of httpx because only there can every write be preceded
by a check.
"""

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.outcome import InDoubt, NotSent
from dagster_idempotent.providers.proxies import proxy_for
from dagster_idempotent.providers.send_window import SendWindow, SendWindowClosed

if TYPE_CHECKING:
    import httpcore

HeaderPairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole response: status, headers in order, raw body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLost(InDoubt):
    """The response began, but its body is not whole here; `response` is what came of it."""

    response: Response


# Told the status and headers of a response, it returns what is then fed each piece of the body, and says True once
# nothing more is needed; None where the end of the body is the end.
BodyWatch = Callable[[int, HeaderPairs], Callable[[bytes], bool] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """How a request gets to its provider: certificates to trust, an HTTP proxy, and the time for each stage.

    `proxy` is an address such as "http://proxy.example:3128", with a user and password in it if need be; None takes
    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY from the environment, "" goes without a proxy.
    """

    connect_timeout: timedelta = timedelta(seconds=10)
    read_timeout: timedelta = timedelta(minutes=10)
    ssl_context: ssl.SSLContext | None = field(default=None, repr=False)
    proxy: str | None = field(default=None, repr=False)


DIRECT = Route()


def send_once(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | HeaderPairs,
    body: bytes,
    window: SendWindow,
    connect_timeout: timedelta = timedelta(seconds=10),
    read_timeout: timedelta = timedelta(minutes=10),
    route: Route | None = None,
    watch: BodyWatch | None = None,
    max_body: int | None = None,
) -> Response | NotSent | InDoubt:
    """Send a request and return its whole response, or what is proved about a failure.

    Not sent is proved by no write having been allowed; anything after the first write is in doubt. `watch` may end
    the body early; a body of more than `max_body` bytes is given up as BodyLost. A `route` replaces both timeouts.
    """
    httpcore = _httpcore()
    way = route or Route(connect_timeout=connect_timeout, read_timeout=read_timeout)
    timeouts = {
        "connect": min(way.connect_timeout.total_seconds(), max(window.remaining(), 0.001)),
        "pool": way.connect_timeout.total_seconds(),
        "write": max(window.remaining(), 0.001),
        "read": way.read_timeout.total_seconds(),
    }
    arriving = _Arriving(watch=watch, max_body=max_body)
    try:
        with _pool(url, way, window) as pool:
            pairs = [*_encoded(headers), (b"Connection", b"close")]
            extensions = {"timeout": timeouts}
            with pool.stream(method, url, headers=pairs, content=body, extensions=extensions) as response:
                arriving.begin(response.status, response.headers)
                arriving.read(response.iter_stream())
    except (SendWindowClosed, OSError, ssl.SSLError, *_failures(httpcore)) as error:
        if arriving.lost is None:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            arriving.lost = reason
    if not arriving.began:
        reason = arriving.lost or "no response"
        return InDoubt(reason=reason) if window.opened else NotSent(reason=reason)
    if arriving.whole:
        return arriving.response
    return BodyLost(reason=arriving.lost or "its body is not whole", response=arriving.response)


def get(url: str, *, headers: Mapping[str, str], timeout: timedelta) -> Response | str:
    """Send an unpaid GET; return its response, or why there is none."""
    return send_unpaid(
        "GET", url, headers=headers, body=b"", route=Route(connect_timeout=timeout, read_timeout=timeout)
    )


def send_unpaid(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str] | HeaderPairs,
    body: bytes,
    route: Route = DIRECT,
    max_body: int | None = None,
    into: Callable[[bytes], object] | None = None,
) -> Response | str:
    """Send a request that costs nothing, once; return its response, or why there is none.

    The body of a 200 goes `into` piece by piece and is then no part of the response; any other body has at most
    `max_body` bytes.
    """
    httpcore = _httpcore()
    connect, read = route.connect_timeout.total_seconds(), route.read_timeout.total_seconds()
    limits = {"connect": connect, "read": read, "write": read, "pool": connect}
    try:
        with (
            _pool(url, route, None) as pool,
            pool.stream(
                method, url, headers=_encoded(headers), content=body or None, extensions={"timeout": limits}
            ) as response,
        ):
            arriving = _Arriving(watch=None, max_body=max_body)
            arriving.begin(response.status, response.headers)
            if into is not None and response.status == 200:  # noqa: PLR2004 - HTTP's own number
                for piece in response.iter_stream():
                    into(piece)
                return arriving.response
            arriving.read(response.iter_stream())
            return arriving.lost or arriving.response
    except (OSError, ssl.SSLError, *_failures(httpcore)) as error:
        return f"{type(error).__name__}: {error}"


class _Arriving:
    """A response while it comes in."""

    def __init__(self, *, watch: BodyWatch | None, max_body: int | None) -> None:
        self._watch = watch
        self._max_body = max_body
        self._status = 0
        self._headers: list[tuple[bytes, bytes]] = []
        self._pieces: list[bytes] = []
        self.whole = False
        self.lost: str | None = None

    @property
    def began(self) -> bool:
        return bool(self._status)

    @property
    def response(self) -> Response:
        return _whole(self._status, self._headers, b"".join(self._pieces))

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._status = status
        self._headers = list(headers)

    def read(self, pieces: Iterable[bytes]) -> None:
        ended = None if self._watch is None else self._watch(self._status, self.response.headers)
        size = 0
        for piece in pieces:
            size += len(piece)
            if self._max_body is not None and size > self._max_body:
                self.lost = f"the answer is larger than the {self._max_body} bytes that are kept"
                return
            self._pieces.append(piece)
            if ended is not None and ended(piece):
                break
        self.whole = True


def _pool(url: str, route: Route, window: SendWindow | None) -> Any:  # noqa: ANN401 - a lazily imported module
    httpcore = _httpcore()
    secure = urlsplit(url).scheme == "https"
    context = route.ssl_context or (_tls() if secure else None)
    proxy = proxy_for(url, route.proxy)
    # Bytes of a CONNECT go out before the TLS of the request itself: they are nothing of the request.
    layers = int(secure) + int(proxy is not None and proxy.scheme == "https")
    settings = {
        "ssl_context": context,
        "http1": True,
        "http2": False,
        "retries": 0,
        "max_keepalive_connections": 0,
        "network_backend": None if window is None else _watched(window, layers),
    }
    if proxy is None:
        return httpcore.ConnectionPool(**settings)
    default_port = 443 if proxy.scheme == "https" else 80
    host = f"[{proxy.hostname}]" if ":" in (proxy.hostname or "") else proxy.hostname
    return httpcore.ConnectionPool(
        **settings,
        proxy=httpcore.Proxy(
            f"{proxy.scheme}://{host}:{proxy.port or default_port}",
            auth=(unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None,
        ),
    )


def _encoded(headers: Mapping[str, str] | HeaderPairs) -> list[tuple[bytes, bytes]]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]


@cache
def _tls() -> ssl.SSLContext:
    """Read the system's certificates once: it takes longer than a request, and the send window is running."""
    return ssl.create_default_context()


def _whole(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Response:
    pairs = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in headers)
    return Response(status=status, headers=pairs, body=body)


def _failures(httpcore: Any) -> tuple[type[Exception], ...]:  # noqa: ANN401 - a lazily imported module
    return (
        httpcore.TimeoutException,
        httpcore.NetworkError,
        httpcore.ProtocolError,
        httpcore.ProxyError,
        httpcore.UnsupportedProtocol,
    )


def _httpcore() -> Any:  # noqa: ANN401 - a lazily imported module
    try:
        import httpcore  # noqa: PLC0415 - an optional dependency
    except ImportError as error:
        raise ConfigurationError(
            "This provider speaks HTTP and httpcore is not installed: `pip install 'dagster-idempotent[http]'`.",
            field="provider",
        ) from error
    return httpcore


def _watched(window: SendWindow, layers: int) -> "httpcore.NetworkBackend":
    from dagster_idempotent.providers.watched_network import WatchedBackend  # noqa: PLC0415 - needs httpcore

    return WatchedBackend(window, layers)
