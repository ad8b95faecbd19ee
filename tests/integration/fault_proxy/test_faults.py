"""Cuts, stalls, refusals and restarts."""

import socket
import struct

import pytest

from dagster_idempotent.testing.fault_proxy import FaultProxy
from tests.integration.fault_proxy.conftest import Upstream, connected, receive


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
