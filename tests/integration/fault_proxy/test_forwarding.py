"""What the fault proxy lets through, and at which address."""

import socket
import threading
from pathlib import Path

import pytest

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.fault_proxy import FaultProxy
from tests.integration.fault_proxy.conftest import Upstream, connected, echo, receive, serving


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
            # The reset may come while the client still connects, or a moment later.
            with (
                FaultProxy(f"{host}:{port}") as proxy,
                pytest.raises(ConnectionResetError),
                connected(proxy) as client,
            ):
                client.recv(1)


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
        with pytest.raises(ConfigurationError, match="raw, postgres, http"):
            FaultProxy("127.0.0.1:1", protocol="mysql")

    def test_an_address_that_is_taken_is_named(self, upstream: Upstream, tmp_path: Path) -> None:
        path = tmp_path / "taken"
        with FaultProxy(upstream.address, listen=path):
            second = FaultProxy(upstream.address, listen=path)
            with pytest.raises(ConfigurationError, match="cannot listen"):
                second.start()

    def test_a_proxy_that_was_not_started_says_so(self) -> None:
        with pytest.raises(ConfigurationError, match="not running"):
            FaultProxy("127.0.0.1:1").stall()
