"""Each fault does what its name says, and is charged as it says."""

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.metered_provider.conftest import PAID_PATH, ask, chat, look_up, send


class TestFaults:
    def test_accepted_then_dropped_is_charged_and_closes_without_a_byte(self, provider: MeteredProvider) -> None:
        provider.fault("accept_then_drop")

        with pytest.raises(http.client.RemoteDisconnected):
            ask(provider)

        assert provider.charges == 1

    def test_a_drop_may_reset_the_connection(self, provider: MeteredProvider) -> None:
        provider.fault("accept_then_drop", reset=True)

        with pytest.raises(ConnectionResetError) as caught:
            ask(provider)

        assert type(caught.value) is ConnectionResetError
        assert provider.charges == 1

    def test_dropped_before_accepting_is_not_charged(self, provider: MeteredProvider) -> None:
        provider.fault("drop_before_accepting")

        with pytest.raises(http.client.RemoteDisconnected):
            ask(provider)

        assert provider.charges == 0
        assert [request.outcome for request in provider.requests()] == ["dropped"]

    def test_a_held_answer_comes_when_it_is_released(self, provider: MeteredProvider) -> None:
        provider.fault("hold", times=2)
        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(ask, provider, Idempotency_Key=key) for key in ("a", "b")]
            held = provider.wait_held(2)
            charged_while_held = provider.charges
            assert provider.release("a") == 1
            assert replies[0].result(30).status == 200
            assert [entry.client_reference for entry in provider.held()] == ["b"]
            assert provider.release() == 1
            assert replies[1].result(30).status == 200

        assert {entry.client_reference for entry in held} == {"a", "b"}
        assert charged_while_held == 2

    def test_a_request_held_before_acceptance_is_charged_on_release(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold_before_accepting")
            (held,) = provider.wait_held()
            charged_while_held, found_while_held = provider.charges, look_up(provider, "k").json["requests"]
            provider.release()
            assert reply.result(30).status == 200

        assert not held.accepted
        assert (charged_while_held, found_while_held) == (0, [])
        assert provider.charges == 1

    def test_a_request_lands_late_although_its_client_is_gone(self, provider: MeteredProvider) -> None:
        address = urlsplit(provider.base_url)
        body = chat()
        head = (
            f"POST {PAID_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nIdempotency-Key: k\r\n"
            f"X-Fault: hold_before_accepting\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port), 30) as client:
            client.sendall(head.encode() + body)
            provider.wait_held()

        provider.release()
        # The release only wakes the request; a later exchange on the same event loop sees it done.
        ask(provider, Idempotency_Key="later")

        assert [line.client_reference for line in provider.bill().lines] == ["k", "later"]

    @pytest.mark.parametrize(("status", "charged"), [(500, True), (503, False), (429, False), (400, False)])
    def test_a_status_is_charged_where_the_order_says_so(
        self, provider: MeteredProvider, status: int, *, charged: bool
    ) -> None:
        provider.fault("status", status=status, charged=charged)

        reply = ask(provider)

        assert reply.status == status
        assert "error" in reply.json
        assert provider.charges == int(charged)

    def test_a_status_may_have_its_own_body_and_headers(self, provider: MeteredProvider) -> None:
        provider.fault("status", status=429, body="slow down", headers={"Retry-After": "7"})

        reply = ask(provider)

        assert (reply.body, reply.headers["retry-after"]) == (b"slow down", "7")

    def test_garbage_is_a_charged_200_that_nobody_can_parse(self, provider: MeteredProvider) -> None:
        provider.fault("garbage")

        reply = ask(provider)

        assert reply.status == 200
        with pytest.raises(json.JSONDecodeError):
            _ = reply.json
        assert provider.charges == 1

    def test_half_an_answer_promises_all_of_it_and_hangs_up(self, provider: MeteredProvider) -> None:
        provider.fault("half_answer")

        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(provider)

        assert caught.value.partial
        assert caught.value.expected
        assert provider.charges == 1

    def test_a_redirect_is_not_charged_but_following_it_is(self, provider: MeteredProvider) -> None:
        provider.fault("redirect")

        reply = ask(provider)
        assert reply.status == 307
        assert provider.charges == 0

        assert send(provider, path=reply.headers["location"], body=chat()).status == 200
        assert provider.charges == 1

    def test_an_answer_may_be_dictated(self, provider: MeteredProvider) -> None:
        provider.fault("answer_with", content='{"title": ""}')

        assert ask(provider).content == '{"title": ""}'
        assert provider.charges == 1

    def test_a_fault_applies_as_often_as_ordered_then_the_next_one(self, provider: MeteredProvider) -> None:
        provider.fault("status", times=2, status=503)
        provider.fault("status", status=400)

        assert [ask(provider).status for _ in range(4)] == [503, 503, 400, 200]

    def test_a_fault_applies_only_to_requests_that_match(self, provider: MeteredProvider) -> None:
        provider.fault("status", times=None, client_reference="a", status=503)
        provider.fault("status", times=None, body_contains="poison", status=400)

        assert ask(provider, Idempotency_Key="b").status == 200
        assert [ask(provider, Idempotency_Key="a").status for _ in range(3)] == [503, 503, 503]
        assert ask(provider, "a poison pill").status == 400
        provider.clear_faults()
        assert ask(provider, "a poison pill").status == 200

    def test_a_header_orders_a_fault_for_its_own_request(self, provider: MeteredProvider) -> None:
        assert ask(provider, X_Fault="status; status=502; charged=true").status == 502
        assert ask(provider).status == 200
        assert provider.charges == 2

    def test_an_unknown_fault_or_option_is_refused_and_says_what_there_is(self, provider: MeteredProvider) -> None:
        with pytest.raises(ConfigurationError, match="accept_then_drop"):
            provider.fault("explode")
        with pytest.raises(ConfigurationError, match="charged"):
            provider.fault("status", code=500)
        with pytest.raises(ConfigurationError, match="number from 1"):
            provider.fault("hold", times=0)
        assert ask(provider, X_Fault="explode").status == 400
        assert provider.charges == 0
