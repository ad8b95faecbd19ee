"""What is refused, what is on record, and what can be looked up."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.metered_provider.conftest import ask, chat, look_up, send


class TestRefusals:
    def test_a_request_without_a_credential_is_refused_and_not_charged(self, provider: MeteredProvider) -> None:
        assert send(provider, body=chat(), key=None).status == 401
        assert send(provider, body=chat(), key="").status == 401
        assert provider.charges == 0

    def test_a_required_key_is_the_only_one_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("METERED_KEY", "right")
        with MeteredProvider.start(tmp_path, require_key="METERED_KEY") as provider:
            assert send(provider, body=chat(), key="wrong").status == 401
            assert send(provider, body=chat(), key="right").status == 200
            assert provider.charges == 1

    @pytest.mark.parametrize(
        ("body", "wrong"),
        [
            (b"{", "JSON object"),
            (b"[]", "JSON object"),
            (b'{"model": "m"}', "messages"),
        ],
    )
    def test_a_request_that_makes_no_sense_is_refused_and_says_why(
        self, provider: MeteredProvider, body: bytes, wrong: str
    ) -> None:
        reply = send(provider, body=body)

        assert reply.status == 400
        assert wrong in reply.json["error"]["message"]
        assert provider.charges == 0

    def test_another_path_or_method_is_refused_but_counted(self, provider: MeteredProvider) -> None:
        assert send(provider, path="/v1/unknown", body=chat()).status == 404
        assert send(provider, "GET").status == 405
        assert [request.outcome for request in provider.requests()] == ["refused", "refused"]


class TestRequests:
    def test_every_request_is_on_record_with_credentials_redacted(self, provider: MeteredProvider) -> None:
        ask(provider, Idempotency_Key="a", X_Api_Key="secret-key")
        send(provider, body=chat(), key=None)

        accepted, refused = provider.requests()
        assert (accepted.sequence, accepted.client_reference, accepted.outcome) == (1, "a", "accepted")
        assert (refused.sequence, refused.client_reference, refused.outcome) == (2, None, "refused")
        assert accepted.headers["authorization"] == "***"
        assert accepted.headers["idempotency-key"] == "a"
        assert "secret-key" not in repr(provider.requests())
        assert json.loads(accepted.body)["model"] == "m"

    def test_the_key_header_goes_before_the_client_request_id_and_the_metadata(self, provider: MeteredProvider) -> None:
        body = chat(metadata={"client_reference": "in-body"})
        send(provider, body=body, Idempotency_Key="key", X_Client_Request_Id="id")
        send(provider, body=body, X_Client_Request_Id="id")
        send(provider, body=body)

        assert [request.client_reference for request in provider.requests()] == ["key", "id", "in-body"]


class TestLookup:
    def test_look_up_lists_every_accepted_request_of_a_reference(self, provider: MeteredProvider) -> None:
        replies = [ask(provider, Idempotency_Key="wanted") for _ in range(2)]
        ask(provider, Idempotency_Key="other")

        found = look_up(provider, "wanted").json
        assert found["complete"] is True
        assert [each["id"] for each in found["requests"]] == [reply.json["id"] for reply in replies]
        assert [each["response"] for each in found["requests"]] == [reply.json for reply in replies]
        assert found["requests"][0]["charge"] == {"amount": "0.02", "currency": "USD"}

    def test_look_up_finds_nothing_under_an_unknown_reference(self, provider: MeteredProvider) -> None:
        assert look_up(provider, "unknown").json["requests"] == []

    def test_look_up_shows_no_response_of_unfinished_work_until_it_is_released(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            (unfinished,) = look_up(provider, "k").json["requests"]
            provider.release("k")
            answer = reply.result(30).json
        (finished,) = look_up(provider, "k").json["requests"]

        assert unfinished["response"] is None
        assert finished["response"] == answer

    def test_work_orphaned_by_a_kill_is_finished_by_a_release(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            provider.kill()
        provider.restart()
        (before,) = look_up(provider, "k").json["requests"]
        provider.release("k")
        (after,) = look_up(provider, "k").json["requests"]

        assert before["response"] is None
        assert after["response"]["id"] == before["id"]

    def test_look_up_can_be_missing(self, provider: MeteredProvider) -> None:
        provider.configure(lookup=False)
        assert look_up(provider, "k").status == 404

        provider.restart()
        assert look_up(provider, "k").status == 404
        assert provider.requests() == ()
