"""Something happens at message n, before or after it, and before its reply."""

import threading

import pytest

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.fault_proxy import Direction, FaultProxy, When
from tests.integration.fault_proxy.conftest import READY, START_UP, Upstream, connected, query, receive


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

    def test_waiting_for_idleness_ends_when_the_last_connection_does(self, proxy: FaultProxy) -> None:
        with connected(proxy) as client:
            client.sendall(b"x")
            receive(client, 1)
            assert not proxy.wait_idle(timeout=0)
        assert proxy.wait_idle()

    def test_waiting_for_a_message_ends_when_it_comes(self, proxy: FaultProxy) -> None:
        assert not proxy.wait_for(1, direction="to_upstream", timeout=0)
        with connected(proxy) as client:
            client.sendall(b"x")
            assert proxy.wait_for(1, direction="to_upstream")
