"""One HTTP request, sent once: no retry, no redirect, no byte after the send window.

The `http` extra brings httpcore. It is used below the level of httpx because only there can every write be preceded
by a check.
"""

import socket
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.outcome import InDoubt, NotSent
from dagster_idempotent.providers.send_window import SendWindow, SendWindowClosed

if TYPE_CHECKING:
    import httpcore


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A whole response: status, headers in order, raw body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the first header of that name, in any case."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def send_once(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    body: bytes,
    window: SendWindow,
    connect_timeout: timedelta = timedelta(seconds=10),
    read_timeout: timedelta = timedelta(minutes=10),
) -> Response | NotSent | InDoubt:
    """Send a request and return its whole response, or what is proved about a failure.

    Not sent is proved by no write having been allowed; anything after the first write is in doubt.
    """
    httpcore = _httpcore()
    timeouts = {
        "connect": min(connect_timeout.total_seconds(), max(window.remaining(), 0.001)),
        "pool": connect_timeout.total_seconds(),
        "write": max(window.remaining(), 0.001),
        "read": read_timeout.total_seconds(),
    }
    pool = httpcore.ConnectionPool(
        ssl_context=_tls(),
        http1=True,
        http2=False,
        retries=0,
        max_keepalive_connections=0,
        network_backend=_watched_backend(window),
    )
    try:
        with pool:
            response = pool.request(
                method,
                url,
                headers={**headers, "Connection": "close"},
                content=body,
                extensions={"timeout": timeouts},
            )
            return _whole(response.status, response.headers, response.content)
    except (SendWindowClosed, OSError, ssl.SSLError, *_failures(httpcore)) as error:
        reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return InDoubt(reason=reason) if window.opened else NotSent(reason=reason)


def get(url: str, *, headers: Mapping[str, str], timeout: timedelta) -> Response | str:
    """Send an unpaid GET; return its response, or why there is none."""
    httpcore = _httpcore()
    seconds = timeout.total_seconds()
    limits = {"connect": seconds, "read": seconds, "write": seconds, "pool": seconds}
    try:
        with httpcore.ConnectionPool(ssl_context=_tls()) as pool:
            response = pool.request("GET", url, headers=dict(headers), extensions={"timeout": limits})
            return _whole(response.status, response.headers, response.content)
    except (OSError, ssl.SSLError, *_failures(httpcore)) as error:
        return f"{type(error).__name__}: {error}"


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


def _watched_backend(window: SendWindow) -> "httpcore.NetworkBackend":
    """Return the default network backend with `window` asked before every write of a stream."""
    import httpcore  # noqa: PLC0415 - an optional dependency

    class WatchedStream(httpcore.NetworkStream):
        def __init__(self, stream: httpcore.NetworkStream) -> None:
            self._stream = stream

        def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
            return self._stream.read(max_bytes, timeout)

        def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002 - the window is shorter
            try:
                _write(self._stream.get_extra_info("socket"), buffer, window)
            except TimeoutError as error:
                raise httpcore.WriteTimeout(str(error)) from error
            except OSError as error:
                raise httpcore.WriteError(str(error)) from error

        def close(self) -> None:
            self._stream.close()

        def start_tls(
            self,
            ssl_context: ssl.SSLContext,
            server_hostname: str | None = None,
            timeout: float | None = None,
        ) -> httpcore.NetworkStream:
            # The handshake carries nothing of the request; only what is written through TLS afterwards counts.
            return WatchedStream(self._stream.start_tls(ssl_context, server_hostname, timeout))

        def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - httpcore's own signature
            return self._stream.get_extra_info(info)

    class WatchedBackend(httpcore.NetworkBackend):
        def __init__(self) -> None:
            self._backend = httpcore.SyncBackend()

        def connect_tcp(
            self,
            host: str,
            port: int,
            timeout: float | None = None,
            local_address: str | None = None,
            socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
        ) -> httpcore.NetworkStream:
            return WatchedStream(self._backend.connect_tcp(host, port, timeout, local_address, socket_options))

        def connect_unix_socket(
            self,
            path: str,
            timeout: float | None = None,
            socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
        ) -> httpcore.NetworkStream:
            return WatchedStream(self._backend.connect_unix_socket(path, timeout, socket_options))

    return WatchedBackend()


def _write(raw: socket.socket, buffer: bytes, window: SendWindow) -> None:
    """Write to a socket, plain or TLS, asking the window before every part that the kernel takes.

    The stream's own `write` would go on with a full timeout for each part, however long a body crawls.
    """
    left = memoryview(buffer)
    while left:
        window.before_write()
        raw.settimeout(max(window.remaining(), 0.001))
        left = left[raw.send(left[:PIECE]) :]


PIECE = 64 * 1024
