"""One client connection and its twin to the upstream."""

import asyncio
import socket
import struct
from typing import cast

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class Link:
    """Both connections, ended together."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self._upstream: asyncio.StreamWriter | None = None
        self.is_cut = False
        _keep_no_backlog(client)

    def connect(self, upstream: asyncio.StreamWriter, *, cut: bool) -> None:
        """Take in the connection to the upstream, only to end it where the link was cut meanwhile."""
        self._upstream = upstream
        _keep_no_backlog(upstream)
        if self.is_cut or cut:
            self.cut(reset=True)

    def cut(self, *, reset: bool) -> None:
        """End both at once, by RST or by FIN."""
        self.is_cut = True
        for writer in (self.client, self._upstream):
            if writer is None or writer.transport.is_closing():
                continue
            raw = cast("socket.socket", writer.get_extra_info("socket"))
            if reset and raw.family != socket.AF_UNIX:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


def _keep_no_backlog(writer: asyncio.StreamWriter) -> None:
    # Then drain() means that the kernel has it all, not that little is left.
    writer.transport.set_write_buffer_limits(high=0)
