"""How far a request provably got decides what a failure means: every row, over real sockets."""

import contextlib
import os
import re
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
import trustme

from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.errors import CredentialMissing
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.outcome import InDoubt, NotSent, Outcome, Rejected, Succeeded
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Route
from dagster_idempotent.testing.metered_provider import MeteredProvider

Play = Callable[[socket.socket], None]
TIMEOUT = timedelta(seconds=0.3)
WHOLE = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 17\r\n\r\n{"id": "thing-1"}'


@contextmanager
def server(play: Play | None) -> Generator[str]:
    """Listen, and play with each connection until it closes; with no play, never take one."""
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        threads: list[threading.Thread] = []

        def serve(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                assert play is not None
                play(connection)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listener.accept()
                    threads.append(threading.Thread(target=serve, args=(connection,)))
                    threads[-1].start()

        acceptor = threading.Thread(target=accept)
        if play is not None:
            acceptor.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        if play is not None:
            acceptor.join(10)
        for thread in threads:
            thread.join(10)


def until_closed(connection: socket.socket) -> None:
    while connection.recv(65536):
        pass


def head_of(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            break
        data += piece
    return data


def request_of(connection: socket.socket) -> bytes:
    """Read a whole request: a socket that is closed with something unread resets the answer away."""
    data = head_of(connection)
    length = re.search(rb"content-length: (\d+)", data.lower())
    missing = (int(length[1]) if length else 0) - len(data.partition(b"\r\n\r\n")[2])
    while missing > 0 and (piece := connection.recv(65536)):
        data += piece
        missing -= len(piece)
    return data


def answering(data: bytes, *, reset: bool = False) -> Play:
    def play(connection: socket.socket) -> None:
        request_of(connection)
        connection.sendall(data)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    return play


def send(
    url: str,
    *,
    body: bytes = b'{"model": "m"}',
    window: SendWindow | None = None,
    proxy: str | None = None,
    timeout: timedelta = TIMEOUT,
) -> Outcome:
    provider = HttpProvider(route=Route(connect_timeout=timeout, read_timeout=timeout, proxy=proxy))
    request = HttpRequest(method="POST", url=url, headers=(("Content-Type", "application/json"),), body=body)
    return provider.submit(request, key=IdempotencyKey("k"), window=window or SendWindow(timedelta(seconds=10)))


@pytest.fixture
def closed_port() -> Iterator[str]:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound, so that nobody else gets it; not listening, so that it refuses
        yield f"127.0.0.1:{unheard.getsockname()[1]}"


class TestNotSent:
    @pytest.mark.parametrize("scheme", ["http", "https"])
    def test_a_refused_connection(self, closed_port: str, scheme: str) -> None:
        assert isinstance(send(f"{scheme}://{closed_port}/paid"), NotSent)

    def test_a_host_that_has_no_address(self) -> None:
        assert isinstance(send("http://no-such-host.invalid/paid"), NotSent)

    def test_a_connection_that_is_never_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, contextlib.ExitStack() as stack:
            for _ in range(4):
                filler = stack.enter_context(socket.socket())
                filler.settimeout(0)
                filler.connect_ex(listener.getsockname())

            assert isinstance(send(f"http://127.0.0.1:{listener.getsockname()[1]}/paid"), NotSent)

    def test_a_tls_handshake_that_stalls(self) -> None:
        with server(until_closed) as address:
            assert isinstance(send(f"https://{address}/paid"), NotSent)

    def test_a_tls_handshake_with_something_else(self) -> None:
        with server(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as address:
            assert isinstance(send(f"https://{address}/paid"), NotSent)

    @pytest.mark.parametrize("status", ["403 Forbidden", "407 Proxy Authentication Required", "502 Bad Gateway"])
    def test_a_proxy_that_refuses_to_connect(self, status: str) -> None:
        seen: list[bytes] = []

        def refuse(connection: socket.socket) -> None:
            seen.append(head_of(connection))
            connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())

        with server(refuse) as address:
            found = send("https://provider.invalid/paid", proxy=f"http://user:pass@{address}")

        assert isinstance(found, NotSent)
        assert seen[0].startswith(b"CONNECT provider.invalid:443 ")
        assert b"model" not in b"".join(seen)

    def test_a_proxy_that_hangs_up_before_it_connects(self) -> None:
        with server(answering(b"")) as address:
            assert isinstance(send("https://provider.invalid/paid", proxy=f"http://{address}"), NotSent)

    def test_a_tunnel_whose_tls_stalls(self) -> None:
        def connect_and_stall(connection: socket.socket) -> None:
            head_of(connection)
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            until_closed(connection)

        with server(connect_and_stall) as address:
            assert isinstance(send("https://provider.invalid/paid", proxy=f"http://{address}"), NotSent)

    def test_a_window_that_is_over_before_the_first_byte(self) -> None:
        with server(until_closed) as address:
            assert isinstance(send(f"http://{address}/paid", window=SendWindow(timedelta(0))), NotSent)

    def test_a_missing_credential(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NO_KEY", " ")
        window = SendWindow(timedelta(seconds=10))
        provider = HttpProvider(base_url="http://127.0.0.1:9", api_key_variable="NO_KEY")
        request = HttpRequest(method="POST", url="http://127.0.0.1:9/paid")

        with pytest.raises(CredentialMissing, match="NO_KEY"):
            provider.submit(request, key=IdempotencyKey("k"), window=window)

        assert not window.opened


class TestInDoubt:
    @pytest.mark.parametrize("reset", [False, True])
    def test_a_connection_lost_before_the_response(self, *, reset: bool) -> None:
        with server(answering(b"", reset=reset)) as address:
            assert isinstance(send(f"http://{address}/paid"), InDoubt)

    def test_a_response_that_does_not_come(self) -> None:
        with server(until_closed) as address:
            assert isinstance(send(f"http://{address}/paid"), InDoubt)

    def test_a_body_that_nobody_reads(self) -> None:
        finished = threading.Event()
        with server(lambda _: finished.wait(10) and None) as address:
            found = send(
                f"http://{address}/paid",
                body=os.urandom(24 * 1024 * 1024),
                window=SendWindow(timedelta(seconds=0.5)),
                timeout=timedelta(seconds=5),
            )
            finished.set()
        assert isinstance(found, InDoubt)

    def test_half_a_block_of_headers(self) -> None:
        with server(answering(b"HTTP/1.1 200 OK\r\nContent-Ty")) as address:
            assert isinstance(send(f"http://{address}/paid"), InDoubt)

    def test_something_that_is_not_http(self) -> None:
        with server(answering(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")) as address:
            assert isinstance(send(f"http://{address}/paid"), InDoubt)

    def test_headers_and_then_nothing(self) -> None:
        def stall(connection: socket.socket) -> None:
            head_of(connection)
            connection.sendall(b'HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"id": "thing-1", ')
            until_closed(connection)

        with server(stall) as address:
            found = send(f"http://{address}/paid")

        assert isinstance(found, InDoubt)
        assert found.remote_ref == "thing-1"

    def test_an_answer_that_is_too_large_names_its_reference(self, metered_provider: MeteredProvider) -> None:
        provider = HttpProvider(max_answer=100)
        request = HttpRequest(
            method="POST",
            url=f"{metered_provider.base_url}/chat/completions",
            headers=(("Authorization", "Bearer k"), ("Content-Type", "application/json")),
            body=b'{"messages": []}',
        )

        found = provider.submit(request, key=IdempotencyKey("k"), window=SendWindow(timedelta(seconds=10)))

        assert isinstance(found, InDoubt)
        assert found.remote_ref == metered_provider.bill().lines[0].request_id
        assert "larger than the 100 bytes" in found.reason


class TestStatusInHand:
    def test_a_refusal_counts_although_its_body_is_lost(self) -> None:
        with server(answering(b"HTTP/1.1 422 Unprocessable\r\nContent-Length: 99\r\n\r\n{")) as address:
            assert isinstance(send(f"http://{address}/paid"), Rejected)

    def test_a_refusal_counts_although_the_body_of_the_request_was_not_taken(self) -> None:
        def refuse(connection: socket.socket) -> None:
            head_of(connection)
            connection.sendall(b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            connection.shutdown(socket.SHUT_WR)
            until_closed(connection)

        with server(refuse) as address:
            found = send(f"http://{address}/paid", body=b"x" * (4 * 1024 * 1024), timeout=timedelta(seconds=5))
        assert isinstance(found, Rejected)

    def test_an_answer_without_a_length_ends_with_the_connection(self) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
        with server(answering(head + b'{"id": "thing-1"}')) as address:
            assert isinstance(send(f"http://{address}/paid"), Succeeded)
        with server(answering(head + b'{"id": "thi')) as address:
            assert isinstance(send(f"http://{address}/paid"), InDoubt)

    def test_a_request_goes_through_a_plain_proxy(self) -> None:
        seen: list[bytes] = []

        def proxy(connection: socket.socket) -> None:
            seen.append(request_of(connection))
            connection.sendall(WHOLE)

        with server(proxy) as address:
            found = send("http://provider.invalid/paid", proxy=f"http://{address}")

        assert isinstance(found, Succeeded)
        assert seen[0].startswith(b"POST http://provider.invalid/paid HTTP/1.1\r\n")


class TestThroughATunnel:
    """The same rows by way of a CONNECT, whose own bytes prove nothing."""

    @pytest.mark.parametrize(
        ("answer", "kind"),
        [
            (WHOLE, Succeeded),
            (b"", InDoubt),
            (WHOLE[:30], InDoubt),
            (WHOLE[:-5], InDoubt),
            (b"HTTP/1.1 307 Elsewhere\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", InDoubt),
            (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", InDoubt),
            (b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n", Rejected),
        ],
    )
    def test_the_answer_decides(self, answer: bytes, kind: type[Outcome]) -> None:
        authority = trustme.CA()
        secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("provider.invalid").configure_cert(secure)
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        requests: list[bytes] = []

        def tunnel(connection: socket.socket) -> None:
            head_of(connection)
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            with secure.wrap_socket(connection, server_side=True) as inside:
                requests.append(request_of(inside))
                inside.sendall(answer)

        with server(tunnel) as address:
            route = Route(
                connect_timeout=timedelta(seconds=5),
                read_timeout=timedelta(seconds=5),
                proxy=f"http://{address}",
                ssl_context=trusting,
            )
            request = HttpRequest(method="POST", url="https://provider.invalid/paid", body=b"{}")
            window = SendWindow(timedelta(seconds=10))
            found = HttpProvider(route=route).submit(request, key=IdempotencyKey("k"), window=window)

        assert isinstance(found, kind)
        assert len(requests) == 1
        assert window.opened
