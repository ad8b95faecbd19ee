"""Every row of what an answer proves, by TLS directly and through a proxy's CONNECT, against a provider with a bill."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

import pytest
import trustme

from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.outcome import InDoubt, NotSent, Outcome, Rejected, Succeeded
from dagster_idempotent.providers.profiles import ANTHROPIC, GENERIC, OPENAI, STRIPE, Profile
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.providers.single_send import Route
from dagster_idempotent.testing.metered_provider import MeteredProvider

KEY = "METERED_PROVIDER_KEY"
Ends = tuple[socket.socket, socket.socket]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A fault, what it proves, and whether the provider charges in it."""

    fault: str = ""
    options: dict[str, object] = field(default_factory=dict)
    proves: type[Outcome]
    charged: bool


def status(code: int, proves: type[Outcome], *, charged: bool = False) -> Row:
    return Row(fault="status", options={"status": code, "charged": charged}, proves=proves, charged=charged)


REFUSED = (400, 401, 402, 403, 404, 405, 411, 413, 415, 422, 425)
ROWS = {
    "no fault": Row(proves=Succeeded, charged=True),
    "gzip": Row(fault="gzipped", proves=Succeeded, charged=True),
    "accepted, then dropped": Row(fault="accept_then_drop", proves=InDoubt, charged=True),
    "accepted, then reset": Row(fault="accept_then_drop", options={"reset": True}, proves=InDoubt, charged=True),
    "dropped before accepting": Row(fault="drop_before_accepting", proves=InDoubt, charged=False),
    "read timeout": Row(fault="slow", options={"seconds": 1.2}, proves=InDoubt, charged=True),
    "half an answer": Row(fault="half_answer", proves=InDoubt, charged=True),
    "garbage": Row(fault="garbage", proves=InDoubt, charged=True),
    "nothing in a 200": Row(fault="empty_answer", proves=InDoubt, charged=True),
    "nothing in a 204": Row(fault="empty_answer", options={"status": 204}, proves=InDoubt, charged=True),
    "error in a 200": Row(fault="error_in_200", proves=InDoubt, charged=True),
    **{
        str(code): Row(fault="redirect", options={"status": code}, proves=InDoubt, charged=False) for code in (303, 307)
    },
    **{str(code): status(code, InDoubt) for code in (408, 409, 429, 503, 529)},
    "500 after accepting": status(500, InDoubt, charged=True),
    **{str(code): status(code, Rejected) for code in REFUSED},
    "cut stream": Row(fault="cut_stream", proves=InDoubt, charged=True),
    "truncated stream": Row(fault="truncated_stream", proves=InDoubt, charged=True),
    "error in a stream": Row(fault="error_in_stream", proves=InDoubt, charged=True),
    "stream that stays open": Row(fault="open_stream", proves=Succeeded, charged=True),
}
STREAMS = {name for name in ROWS if "stream" in name}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """One provider behind TLS, and a proxy in front of it."""

    provider: MeteredProvider
    secure: str
    proxy: str
    trusting: ssl.SSLContext
    tunnels: list[bytes]

    def send(self, way: str, profile: Profile = GENERIC, *, stream: bool = False, patience: float = 20) -> Outcome:
        """Send one paid request."""
        direct = way == "directly"
        base = f"https://{self.secure if direct else 'provider.invalid'}/v1"
        route = Route(
            connect_timeout=timedelta(seconds=10),
            read_timeout=timedelta(seconds=patience),
            ssl_context=self.trusting,
            proxy="" if direct else f"http://{self.proxy}",
        )
        request = HttpRequest(
            method="POST",
            url=f"{base}/chat/completions",
            headers=(("Content-Type", "application/json"), ("Accept-Encoding", "gzip")),
            body=b'{"model": "m", "messages": [], "stream": %s}' % (b"true" if stream else b"false"),
        )
        provider = HttpProvider(profile, base_url=base, api_key_variable=KEY, route=route)
        return provider.submit(request, key=IdempotencyKey("k"), window=SendWindow(timedelta(seconds=10)))


def head_of(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data and (piece := connection.recv(65536)):
        data += piece
    return data


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes one way; where one side ends, both do."""
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for each in (source, target):
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)


@contextmanager
def relay(ends_of: Callable[[socket.socket], Ends]) -> Generator[str]:
    """Listen, and carry bytes between the two ends that a connection stands for."""
    threads: list[threading.Thread] = []

    def serve(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            inside, upstream = ends_of(connection)
            with inside, upstream:
                back = threading.Thread(target=pump, args=(upstream, inside))
                back.start()
                pump(inside, upstream)
                back.join()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=(connection,)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        acceptor = threading.Thread(target=accept)
        acceptor.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        acceptor.join(10)
        for thread in threads:
            thread.join(10)


def place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ways]:
    authority, serving = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1", "provider.invalid").configure_cert(serving)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    tunnels: list[bytes] = []
    with MeteredProvider.start(tmp_path_factory.mktemp("provider")) as provider:
        behind = urlsplit(provider.control_url).netloc

        def terminated(connection: socket.socket) -> Ends:
            return serving.wrap_socket(connection, server_side=True), socket.create_connection(place(behind))

        with relay(terminated) as secure:

            def tunnel(connection: socket.socket) -> Ends:
                tunnels.append(head_of(connection))
                upstream = socket.create_connection(place(secure))
                connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
                return connection, upstream

            with relay(tunnel) as proxy:
                yield Ways(provider=provider, secure=secure, proxy=proxy, trusting=trusting, tunnels=tunnels)


@pytest.fixture
def ways(shared: Ways, monkeypatch: pytest.MonkeyPatch) -> Ways:
    monkeypatch.setenv(KEY, "sk-secret")
    shared.provider.clear_faults()
    shared.tunnels.clear()
    return shared


by_each_way = pytest.mark.parametrize("way", ["directly", "by CONNECT"])


@by_each_way
@pytest.mark.parametrize("name", list(ROWS))
def test_a_row_proves_what_the_table_says(ways: Ways, way: str, name: str) -> None:
    row = ROWS[name]
    charges, requests = ways.provider.charges, len(ways.provider.requests())
    if row.fault:
        ways.provider.fault(row.fault, **row.options)
    found = ways.send(way, stream=name in STREAMS, patience=0.4 if name == "read timeout" else 20)
    assert isinstance(found, row.proves), found
    assert len(ways.provider.requests()) - requests == 1
    assert ways.provider.charges - charges == int(row.charged)
    assert [head.split(b"\r\n")[0] for head in ways.tunnels] == (
        [] if way == "directly" else [b"CONNECT provider.invalid:443 HTTP/1.1"]
    )
    assert b"sk-secret" not in b"".join(ways.tunnels)


@by_each_way
@pytest.mark.parametrize("profile", [OPENAI, ANTHROPIC, STRIPE], ids=lambda profile: profile.name)
def test_a_profile_may_know_that_a_429_was_refused_at_admission(ways: Ways, way: str, profile: Profile) -> None:
    ways.provider.fault("status", status=429)
    found = ways.send(way, profile)
    assert isinstance(found, Rejected if 429 in profile.refusals else InDoubt)


def test_the_proxy_of_the_environment_is_used_and_its_exceptions_are_kept(
    ways: Ways, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = HttpRequest(method="POST", url="https://provider.invalid/v1/chat/completions", body=b'{"messages": []}')
    route = Route(ssl_context=ways.trusting, connect_timeout=timedelta(seconds=10))
    provider = HttpProvider(base_url="https://provider.invalid/v1", api_key_variable=KEY, route=route)

    def send() -> Outcome:
        return provider.submit(request, key=IdempotencyKey("k"), window=SendWindow(timedelta(seconds=10)))

    monkeypatch.setenv("HTTPS_PROXY", f"http://{ways.proxy}")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    assert isinstance(send(), Succeeded)
    assert len(ways.tunnels) == 1
    monkeypatch.setenv("NO_PROXY", ".invalid")
    assert isinstance(send(), NotSent)
    assert len(ways.tunnels) == 1
