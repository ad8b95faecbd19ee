"""Errors of the guard reach the caller as the SDK words them."""

import pickle
from concurrent.futures import ThreadPoolExecutor

import anthropic
import openai
import pytest
import stripe

from dagster_idempotent.errors import CallInProgress, CallNotSent, CallRejected, CredentialMissing, PayloadMismatch
from tests.integration.conftest import Desk, every_sdk

BASES = {"openai": openai.OpenAIError, "anthropic": anthropic.AnthropicError, "stripe": stripe.StripeError}


class TestErrors:
    @pytest.mark.parametrize("sdk", list(BASES))
    def test_an_error_of_the_guard_is_of_its_own_class_and_of_the_sdks(self, desk: Desk, sdk: str) -> None:
        desk.metered.fault("status", status=400)

        with pytest.raises(CallRejected) as caught:
            desk.ask(sdk)

        assert isinstance(caught.value, BASES[sdk])
        assert caught.value.call_key == "summary"  # pyright: ignore[reportAttributeAccessIssue]
        assert str(caught.value) == caught.value.message
        again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own
        assert (type(again), str(again), again.facts) == (type(caught.value), str(caught.value), caught.value.facts)

    @every_sdk
    def test_a_request_that_never_left_says_so_and_goes_out_later(self, desk: Desk, sdk: str) -> None:
        before = desk.metered.charges
        with pytest.raises(CallNotSent):
            desk.ask(sdk, provider=desk.provider(sdk, control_url="http://127.0.0.1:9"))

        desk.ask(sdk)

        assert desk.metered.charges - before == 1

    @every_sdk
    def test_a_missing_credential_is_named_and_nothing_is_sent(
        self, desk: Desk, sdk: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = len(desk.metered.requests())
        monkeypatch.delenv("METERED_PROVIDER_KEY")

        with pytest.raises(CredentialMissing, match="METERED_PROVIDER_KEY"):
            desk.ask(sdk)

        assert len(desk.metered.requests()) == before
        assert desk.row()["state"] == "not_sent"

    def test_an_answer_stored_for_one_request_is_not_given_for_another(self, desk: Desk) -> None:
        desk.ask("openai")

        with pytest.raises(PayloadMismatch) as caught:
            desk.ask("openai-stream")

        assert isinstance(caught.value, openai.OpenAIError)
        assert "/json/stream" in str(caught.value)

    def test_a_call_that_is_being_sent_names_its_sender_and_is_replayed_afterwards(self, desk: Desk) -> None:
        before = desk.metered.charges
        desk.metered.fault("hold")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(desk.ask, "openai")
            desk.metered.wait_held()
            with pytest.raises(CallInProgress, match="test-run"):
                desk.ask("openai")
            desk.metered.release()
            answer = first.result(30)

        assert desk.ask("openai") == answer
        assert desk.metered.charges - before == 1
