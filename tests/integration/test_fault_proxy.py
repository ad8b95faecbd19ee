import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.fault_proxy import Direction, FaultProxy, When
from dagster_idempotent.testing.fault_proxy.framing import PostgresFraming

SSL_REQUEST = struct.pack("!II", 8, 80877103)
GSS_REQUEST = struct.pack("!II", 8, 80877104)
START_UP = struct.pack("!II", 16, 196608) + b"user\0me\0"
READY = b"Z" + struct.pack("!I", 5) + b"I"


def query(text: str) -> bytes:
    return b"Q" + struct.pack("!I", len(text) + 5) + text.encode() + b"\0"


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := connection.recv(size - len(data))):
        data += more
    return data


class Upstream:
    """Serves each connection in a thread; `received` is what came in, over all connections."""

    def __init__(self, listener: socket.socket, new_answer: Callable[[], Callable[[bytes], bytes]]) -> None:
        self.address = listener.getsockname()
        self._listener = listener
        self._new_answer = new_answer
        self._changed = threading.Condition()
        self._received = b""
        self._ends: list[str] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._begin(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        end, answer = "closed", self._new_answer()
        with connection:
            try:
                while chunk := connection.recv(65536):
                    with self._changed:
                        self._received += chunk
                        self._changed.notify_all()
                    connection.sendall(answer(chunk))
            except ConnectionError:
                end = "reset"
        with self._changed:
            self._ends.append(end)
            self._changed.notify_all()

    @property
    def received(self) -> bytes:
        with self._changed:
            return self._received

    def wait_received(self, data: bytes) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._received == data, 30)

    def wait_ends(self, *ends: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: tuple(self._ends) == ends, 30)

    def close(self) -> None:
        # A shutdown wakes the accepting thread, which a plain close would leave waiting.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(30)


@contextmanager
def serving(new_answer: Callable[[], Callable[[bytes], bytes]], *, path: Path | None = None) -> Iterator[Upstream]:
    listener = socket.socket(socket.AF_INET if path is None else socket.AF_UNIX)
    listener.bind(("127.0.0.1", 0) if path is None else str(path))
    listener.listen()
    upstream = Upstream(listener, new_answer)
    try:
        yield upstream
    finally:
        upstream.close()


def echo() -> Callable[[bytes], bytes]:
    return bytes


class ScriptedPostgres:
    """Answers each whole frontend message with `ReadyForQuery`, whatever chunks they come in."""

    def __init__(self) -> None:
        self._framing = PostgresFraming(from_client=True)

    def __call__(self, chunk: bytes) -> bytes:
        return READY * len(self._framing.feed(chunk))


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(proxy.address, 30) as client:
        yield client


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving(echo) as started:
        yield started


@pytest.fixture
def proxy(upstream: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(upstream.address) as started:
        yield started


@pytest.fixture
def postgres() -> Iterator[Upstream]:
    with serving(ScriptedPostgres) as started:
        yield started


@pytest.fixture
def postgres_proxy(postgres: Upstream) -> Iterator[FaultProxy]:
    with FaultProxy(postgres.address, protocol="postgres") as started:
        yield started


class TestForwarding:
    def test_bytes_pass_both_ways_unchanged_and_are_counted(self, proxy: FaultProxy) -> None:
        with connected(proxy) as client:
            client.sendall(b"hello")
            assert receive(client, 5) == b"hello"

        assert (proxy.counts.connections, proxy.counts.to_upstream, proxy.counts.to_client) == (1, 1, 1)

    def test_a_megabyte_passes_unchanged(self, proxy: FaultProxy) -> None:
        data = bytes(range(256)) * 4096
        with connected(proxy) as client:
            sender = threading.Thread(target=client.sendall, args=(data,))
            sender.start()
            assert receive(client, len(data)) == data
            sender.join(30)

    def test_an_end_of_stream_is_passed_on_and_the_answer_still_comes_back(
        self, proxy: FaultProxy, upstream: Upstream
    ) -> None:
        with connected(proxy) as client:
            client.sendall(b"last words")
            client.shutdown(socket.SHUT_WR)
            assert receive(client, 100) == b"last words"
        assert upstream.wait_ends("closed")

    def test_unix_sockets_serve_on_both_sides(self, tmp_path: Path) -> None:
        behind, front = tmp_path / "behind", tmp_path / ".s.PGSQL.5432"
        with serving(echo, path=behind), FaultProxy(behind, listen=front) as proxy:
            assert proxy.address == (str(tmp_path), 5432)
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(front))
                client.sendall(b"hello")
                assert receive(client, 5) == b"hello"
        assert not front.exists()

    def test_an_upstream_that_refuses_resets_the_client(self) -> None:
        with socket.socket() as reserved:
            reserved.bind(("127.0.0.1", 0))
            host, port = reserved.getsockname()
            # The reset may come before `connect` has returned, or after.
            with (
                FaultProxy(f"{host}:{port}") as proxy,
                pytest.raises(ConnectionResetError),
                connected(proxy) as client,
            ):
                client.recv(1)


class TestFaults:
    def test_a_cut_resets_both_sides_and_a_new_connection_is_welcome(
        self, proxy: FaultProxy, upstream: Upstream
    ) -> None:
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)
            proxy.cut_all()
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert upstream.wait_ends("reset")

        with connected(proxy) as client:
            client.sendall(b"y")
            assert receive(client, 1) == b"y"

    def test_a_cut_may_end_both_sides_politely(self, proxy: FaultProxy, upstream: Upstream) -> None:
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)
            proxy.cut_all(reset=False)
            assert client.recv(1) == b""
        assert upstream.wait_ends("closed")

    def test_a_reset_of_the_client_reaches_the_upstream(self, proxy: FaultProxy, upstream: Upstream) -> None:
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert upstream.wait_ends("reset")

    def test_a_stall_holds_everything_back_until_it_is_resumed(self, proxy: FaultProxy, upstream: Upstream) -> None:
        with connected(proxy) as client:
            client.sendall(b"a")
            receive(client, 1)
            proxy.stall()
            client.sendall(b"b")
            client.settimeout(0.05)
            with pytest.raises(TimeoutError):
                client.recv(1)
            assert upstream.received == b"a"
            client.settimeout(30)
            proxy.resume()
            assert receive(client, 1) == b"b"

    def test_a_stalled_proxy_closes(self, proxy: FaultProxy) -> None:
        with connected(proxy) as client:
            client.sendall(b"a")
            receive(client, 1)
            proxy.stall()
            client.sendall(b"b")
            proxy.close()

    def test_refused_connections_are_accepted_again_at_the_same_port(self, proxy: FaultProxy) -> None:
        address = proxy.address
        with connected(proxy) as client:
            proxy.refuse()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, 30)
            client.sendall(b"x")
            assert receive(client, 1) == b"x"
        proxy.accept()

        assert proxy.address == address
        with connected(proxy) as client:
            client.sendall(b"y")
            assert receive(client, 1) == b"y"

    def test_a_restart_cuts_and_keeps_port_and_counts(self, proxy: FaultProxy) -> None:
        address = proxy.address
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)
            proxy.restart()
            with pytest.raises(ConnectionResetError):
                client.recv(1)

        assert proxy.address == address
        with connected(proxy) as client:
            client.sendall(b"y")
            assert receive(client, 1) == b"y"
        assert (proxy.counts.connections, proxy.counts.to_upstream) == (2, 2)


class TestActions:
    def test_an_action_before_runs_before_the_message_arrives(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        seen: list[bytes] = []

        def look() -> None:
            postgres.wait_received(START_UP)
            seen.append(postgres.received)

        postgres_proxy.at(2, action=look)
        with connected(postgres_proxy) as client:
            client.sendall(START_UP + query("one") + query("two"))
            assert receive(client, 3 * len(READY)) == 3 * READY

        assert seen == [START_UP]

    def test_an_action_after_runs_when_the_message_arrived_and_before_its_reply(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        arrived: list[bool] = []
        replies: list[int] = []

        def look() -> None:
            arrived.append(postgres.wait_received(START_UP + query("one")))
            replies.append(postgres_proxy.counts.to_client)

        postgres_proxy.at(2, when="after", action=look)
        with connected(postgres_proxy) as client:
            client.sendall(START_UP)
            receive(client, len(READY))
            client.sendall(query("one"))
            assert receive(client, len(READY)) == READY

        assert arrived == [True]
        assert replies == [1]

    def test_an_action_before_a_reply_runs_when_the_upstream_has_done_the_work(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        postgres_proxy.at(2, direction=Direction.TO_CLIENT, action=postgres_proxy.cut_all)
        with connected(postgres_proxy) as client:
            client.sendall(START_UP)
            receive(client, len(READY))
            client.sendall(query("commit"))
            with pytest.raises(ConnectionResetError):
                client.recv(1)

        assert postgres.received == START_UP + query("commit")

    def test_a_message_whose_connection_was_cut_before_it_never_arrives(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        postgres_proxy.at(2, action=postgres_proxy.cut_all)
        with connected(postgres_proxy) as client:
            client.sendall(START_UP)
            receive(client, len(READY))
            client.sendall(query("one"))
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        assert postgres.wait_ends("reset")

        assert postgres.received == START_UP

    def test_a_message_cut_after_it_arrives_but_its_reply_does_not(
        self, postgres_proxy: FaultProxy, postgres: Upstream
    ) -> None:
        def cut() -> None:
            postgres.wait_received(START_UP + query("one"))
            postgres_proxy.cut_all()

        postgres_proxy.at(2, when=When.AFTER, action=cut)
        with connected(postgres_proxy) as client:
            client.sendall(START_UP)
            receive(client, len(READY))
            client.sendall(query("one"))
            with pytest.raises(ConnectionResetError):
                client.recv(1)

        assert postgres_proxy.counts.to_client == 1

    def test_nothing_moves_on_any_connection_while_an_action_runs(self, proxy: FaultProxy, upstream: Upstream) -> None:
        striking, go_on = threading.Event(), threading.Event()

        def strike() -> None:
            striking.set()
            go_on.wait(30)

        with connected(proxy) as first, connected(proxy) as second:
            second.sendall(b"a")
            receive(second, 1)
            proxy.at(2, action=strike)
            first.sendall(b"b")
            assert striking.wait(30)
            second.sendall(b"c")
            second.settimeout(0.05)
            with pytest.raises(TimeoutError):
                second.recv(1)
            assert upstream.received == b"a"
            go_on.set()
            second.settimeout(30)
            assert receive(first, 1) == b"b"
            assert receive(second, 1) == b"c"

    def test_an_action_that_waits_for_others_lets_them_use_the_proxy(self, proxy: FaultProxy) -> None:
        striking, done = threading.Event(), threading.Event()

        def strike() -> None:
            striking.set()
            assert done.wait(30)

        proxy.at(1, action=strike)
        with connected(proxy) as client:
            client.sendall(b"x")
            assert striking.wait(30)
            proxy.cut_all()
            done.set()
            with pytest.raises(ConnectionResetError):
                client.recv(1)

    def test_an_action_runs_once(self, proxy: FaultProxy) -> None:
        calls: list[int] = []
        proxy.at(1, action=lambda: calls.append(1))
        for _ in range(2):
            with connected(proxy) as client:
                client.sendall(b"x")
                receive(client, 1)

        assert calls == [1]

    def test_an_error_of_an_action_is_raised_when_the_proxy_closes(self, upstream: Upstream) -> None:
        proxy = FaultProxy(upstream.address)
        proxy.start()
        proxy.at(1, action=lambda: 1 // 0)
        with connected(proxy) as client:
            client.sendall(b"x")
            assert receive(client, 1) == b"x"

        with pytest.raises(ZeroDivisionError):
            proxy.close()

    def test_a_message_that_came_through_already_is_refused(self, proxy: FaultProxy) -> None:
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)

        with pytest.raises(ConfigurationError, match="came through already"):
            proxy.at(1, action=print)

    def test_waiting_for_a_message_ends_when_it_comes(self, proxy: FaultProxy) -> None:
        assert not proxy.wait_for(1, direction="to_upstream", timeout=0)
        with connected(proxy) as client:
            client.sendall(b"x")
            assert proxy.wait_for(1, direction="to_upstream")


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


class TestAddresses:
    @pytest.mark.parametrize(
        ("given_dsn", "expected"),
        [
            ("postgresql://me:pw@db.example:5432/app?a=1", "postgresql://me:pw@127.0.0.1:{port}/app?a=1"),
            ("postgresql:///app?host=/run/pg&port=1", "postgresql://127.0.0.1:{port}/app"),
            ("http://db.example:4010/v1", "http://127.0.0.1:{port}/v1"),
            ("user=me dbname=app", "user=me dbname=app host='127.0.0.1' hostaddr='' port={port}"),
        ],
    )
    def test_a_connection_string_leads_to_the_proxy_and_keeps_the_rest(
        self, proxy: FaultProxy, given_dsn: str, expected: str
    ) -> None:
        assert proxy.url_for(given_dsn) == expected.format(port=proxy.address[1])

    def test_a_connection_string_may_lead_to_a_unix_socket(self, upstream: Upstream, tmp_path: Path) -> None:
        proxy = FaultProxy(upstream.address, listen=tmp_path / ".s.PGSQL.5432")
        with proxy:
            url = proxy.url_for("postgresql://me@db.example/app")

        folder = str(tmp_path).replace("/", "%2F")
        assert url.replace("/", "%2F").endswith(f"me@%2Fapp?host={folder}&port=5432")

    def test_a_wrong_address_or_protocol_is_named(self) -> None:
        with pytest.raises(ConfigurationError, match="host:port"):
            FaultProxy("nowhere")
        with pytest.raises(ConfigurationError, match="raw, postgres"):
            FaultProxy("127.0.0.1:1", protocol="mysql")

    def test_a_proxy_that_was_not_started_says_so(self) -> None:
        with pytest.raises(ConfigurationError, match="not running"):
            FaultProxy("127.0.0.1:1").stall()
