"""Messages are counted one by one, whatever the chunks that they come in."""

import http.client
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.fault_proxy.framing import PostgresFraming
from dagster_idempotent.testing.fault_proxy.http_framing import HttpFraming
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.fault_proxy.conftest import (
    GSS_REQUEST,
    READY,
    SSL_REQUEST,
    START_UP,
    Upstream,
    connected,
    query,
    receive,
)


class TestPostgres:
    def test_messages_are_counted_one_by_one_whatever_the_chunks(self, postgres_proxy: FaultProxy) -> None:
        stream = START_UP + query("one") + query("two")
        with connected(postgres_proxy) as whole:
            whole.sendall(stream)
            receive(whole, 3 * len(READY))
        with connected(postgres_proxy) as pieces:
            for position in range(len(stream)):
                pieces.sendall(stream[position : position + 1])
            receive(pieces, 3 * len(READY))

        assert postgres_proxy.wait_idle()
        assert postgres_proxy.counts.to_upstream == 6

    @pytest.mark.parametrize("request_for_encryption", [SSL_REQUEST, GSS_REQUEST])
    def test_encryption_is_declined_by_the_proxy_itself_and_not_counted(
        self, postgres_proxy: FaultProxy, postgres: Upstream, request_for_encryption: bytes
    ) -> None:
        with connected(postgres_proxy) as client:
            client.sendall(request_for_encryption)
            assert receive(client, 1) == b"N"
            client.sendall(START_UP)
            receive(client, len(READY))

        assert postgres.received == START_UP
        assert postgres_proxy.counts.to_upstream == 1

    def test_an_unfinished_message_is_passed_on_at_the_end_of_the_stream(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        with connected(postgres_proxy) as client:
            client.sendall(START_UP + query("one")[:-1])
        assert postgres.wait_ends("closed")

        assert postgres.received == START_UP + query("one")[:-1]
        assert postgres_proxy.counts.to_upstream == 1

    @given(
        texts=st.lists(st.text(max_size=20).map(lambda text: query(text.encode().hex())), max_size=8),
        sizes=st.lists(st.integers(min_value=1, max_value=40), min_size=1, max_size=60),
        asks=st.sampled_from([b"", SSL_REQUEST, GSS_REQUEST + SSL_REQUEST]),
    )
    def test_the_same_stream_gives_the_same_messages_in_any_chunks(
        self, texts: list[bytes], sizes: list[int], asks: bytes
    ) -> None:
        stream = asks + START_UP + b"".join(texts)
        framing = PostgresFraming(from_client=True)
        messages: list[bytes] = []
        position = 0
        for size in [*sizes, len(stream)]:
            messages += framing.feed(stream[position : position + size])
            position += size

        requests = [asks[start : start + 8] for start in range(0, len(asks), 8)]
        assert messages == [*requests, START_UP, *texts]
        assert framing.rest() == b""


HEADS_AND_BODIES = {
    "a request without a body": (True, [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"]),
    "a request with a body": (True, [b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n", b"\r\n\r\n"]),
    "an empty body": (True, [b"POST / HTTP/1.1\r\ncontent-length: 0\r\n\r\n"]),
    "a chunked body": (
        True,
        [
            b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"5;x=y\r\nab\r\nc\r\n",
            b"A\r\n0123456789\r\n",
            b"0\r\nTrailer: t\r\n\r\n",
        ],
    ),
    "an interim response": (
        False,
        [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", b"ok"],
    ),
    "a response that has no body": (False, [b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n"]),
}


def ask(proxy: FaultProxy) -> bytes:
    with closing(http.client.HTTPConnection(*proxy.address, timeout=30)) as client:
        client.request("POST", "/v1/chat/completions", b'{"messages": []}', {"Authorization": "Bearer x"})
        return client.getresponse().read()


class TestHttp:
    @pytest.mark.parametrize("case", HEADS_AND_BODIES)
    @given(sizes=st.lists(st.integers(min_value=1, max_value=60), min_size=1, max_size=60))
    def test_the_same_stream_gives_the_same_messages_in_any_chunks(self, case: str, sizes: list[int]) -> None:
        from_client, once = HEADS_AND_BODIES[case]
        expected = [*once, *once]
        stream = b"".join(expected)
        framing = HttpFraming(from_client=from_client)
        messages: list[bytes] = []
        position = 0
        for size in [*sizes, len(stream)]:
            messages += framing.feed(stream[position : position + size])
            position += size

        assert messages == expected
        assert framing.rest() == b""

    @pytest.mark.parametrize(
        "head",
        [
            b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
        ],
    )
    def test_what_has_no_readable_length_passes_as_it_comes(self, head: bytes) -> None:
        framing = HttpFraming(from_client=False)

        assert framing.feed(head + b"xyz\r\n") == [head, b"xyz\r\n"]
        assert framing.feed(b"more") == [b"more"]

    @pytest.mark.parametrize(
        ("direction", "n", "when", "charges"),
        [
            ("to_upstream", 1, "before", 0),
            ("to_upstream", 2, "before", 0),
            ("to_client", 1, "before", 1),
            ("to_client", 2, "before", 1),
        ],
    )
    def test_a_provider_charged_when_the_whole_request_arrived_whatever_came_back(
        self, tmp_path: Path, direction: str, n: int, when: str, charges: int
    ) -> None:
        with MeteredProvider.start(tmp_path) as provider:
            upstream = urlsplit(provider.base_url).netloc
            with FaultProxy(upstream, protocol="http") as proxy:
                proxy.at(n, direction=direction, when=when, action=proxy.cut_all)
                with pytest.raises((OSError, http.client.HTTPException)):
                    ask(proxy)
                assert proxy.wait_idle()

            assert provider.charges == charges
