"""httpcore's network with the send window asked before every write; loaded only where httpcore is installed."""

import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore

from dagster_idempotent.providers.send_window import SendWindow

PIECE = 64 * 1024


class WatchedStream(httpcore.NetworkStream):
    """A stream whose writes count once `layers` of TLS are in place."""

    def __init__(self, stream: httpcore.NetworkStream, window: SendWindow, layers: int) -> None:
        self._stream = stream
        self._window = window
        self._layers = layers

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Read what has arrived."""
        return self._stream.read(max_bytes, timeout)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Write as the window allows; what goes to a proxy before the tunnel stands is no part of the request."""
        if self._layers > 0:
            self._stream.write(buffer, timeout)
            return
        try:
            _write(self._stream.get_extra_info("socket"), buffer, self._window)
        except TimeoutError as error:
            raise httpcore.WriteTimeout(str(error)) from error
        except OSError as error:
            raise httpcore.WriteError(str(error)) from error

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        """Add a layer; the handshake carries nothing of the request, only what is written through it counts."""
        inner = self._stream.start_tls(ssl_context, server_hostname, timeout)
        return WatchedStream(inner, self._window, self._layers - 1)

    def get_extra_info(self, info: str) -> Any:  # noqa: ANN401 - httpcore's own signature
        """Return what httpcore's stream says."""
        return self._stream.get_extra_info(info)


class WatchedBackend(httpcore.NetworkBackend):
    """Connects as httpcore does and watches what is written."""

    def __init__(self, window: SendWindow, layers: int) -> None:
        self._backend = httpcore.SyncBackend()
        self._window = window
        self._layers = layers

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        """Connect to a host."""
        stream = self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return WatchedStream(stream, self._window, self._layers)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None
    ) -> httpcore.NetworkStream:
        """Connect to a socket of this machine."""
        return WatchedStream(
            self._backend.connect_unix_socket(path, timeout, socket_options), self._window, self._layers
        )


def _write(raw: socket.socket, buffer: bytes, window: SendWindow) -> None:
    """Write to a socket, plain or TLS, asking the window before every part that the kernel takes.

    The stream's own `write` would go on with a full timeout for each part, however long a body crawls.
    """
    left = memoryview(buffer)
    while left:
        window.before_write()
        raw.settimeout(max(window.remaining(), 0.001))
        left = left[raw.send(left[:PIECE]) :]
