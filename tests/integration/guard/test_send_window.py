"""No byte, first or last, goes out after the send window (R12)."""

import select
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import pytest

from dagster_idempotent.errors import CallInDoubt, CallNotSent
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

Until = Callable[..., object]


class RawServer:
    """Accepts one connection and reads as slowly as it is told."""

    def __init__(self, *, bytes_a_tick: int) -> None:
        self.listener = socket.socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen()
        self.received = 0
        self.ended = threading.Event()
        self._bytes_a_tick = bytes_a_tick
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    @property
    def base_url(self) -> str:
        host, port = self.listener.getsockname()
        return f"http://{host}:{port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.listener.close()

    def _serve(self) -> None:
        while not select.select([self.listener], [], [], 0.05)[0]:
            if self._stop.is_set():
                return
        connection, _ = self.listener.accept()
        with connection:
            connection.settimeout(0.05)
            while not self._stop.is_set():
                try:
                    part = connection.recv(self._bytes_a_tick) if self._bytes_a_tick else b"-"
                except TimeoutError:
                    continue
                except OSError:
                    break
                if not part:
                    break
                self.received += len(part)
                self._stop.wait(0.02)
        self.ended.set()


class TestSendWindow:
    BODY = 8 * 1024 * 1024

    @pytest.mark.parametrize("bytes_a_tick", [0, 4 * 1024], ids=["stuck", "crawling"])
    def test_a_body_that_crawls_out_is_cut_off_and_in_doubt(self, bench: "Bench", bytes_a_tick: int) -> None:
        bench.declare(sender_lease="5s", send_window="2s")
        request = {**bench.request, "padding": "x" * self.BODY}
        with RawServer(bytes_a_tick=bytes_a_tick) as server:
            provider = ChatCompletionsProvider(base_url=server.base_url, api_key_variable="K")
            started = time.monotonic()
            with pytest.raises(CallInDoubt):
                bench.call(provider, request)
            # The window and the closing of a socket; a crawling body would go on for forty seconds and more.
            assert time.monotonic() - started < 10
            assert server.received < self.BODY
        assert bench.states() == ["in_doubt"]

    def test_a_window_that_ends_before_the_first_byte_proves_not_sent(self, bench: "Bench", until: Until) -> None:
        bench.declare(sender_lease="2s", send_window="100ms")

        class Slow(ChatCompletionsProvider):
            def submit(self, request: Any, *, key: Any, window: Any) -> Any:
                until(lambda: window.remaining() < 0)
                return super().submit(request, key=key, window=window)

        with pytest.raises(CallNotSent, match="send window"):
            bench.call(bench.provider(Slow))
        assert bench.states() == ["not_sent"]
        assert bench.posts == []

    def test_a_provider_that_refuses_the_connection_got_nothing(self, bench: "Bench") -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            port = reserved.getsockname()[1]
            provider = ChatCompletionsProvider(base_url=f"http://127.0.0.1:{port}/v1", api_key_variable="K")
            with pytest.raises(CallNotSent):
                bench.call(provider)
        assert bench.states() == ["not_sent"]
