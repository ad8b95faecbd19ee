"""Same key, same bytes, where the provider documents that this is one request."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.submission import SettledBy
from dagster_idempotent.errors import CallInDoubt, CredentialMissing, PayloadMismatch
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class TestResend:
    """Same key, same bytes, where the provider documents that this is one request."""

    def _provider(self, bench: "Bench", **options: Any) -> ChatCompletionsProvider:
        bench.metered.configure(deduplicate=True)
        settings: dict[str, Any] = {"key_window": timedelta(hours=1), "settle_delay": timedelta(seconds=1), **options}
        return bench.without_look_up(**settings)

    def test_inside_the_window_the_provider_answers_from_memory(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        assert bench.doubt(provider).retry_after is not None
        result = bench.call(provider)
        assert result.settled_by is SettledBy.SENDER
        (row,) = bench.rows()
        assert (row["state"], row["sends"], row["owner"]) == ("succeeded", 2, "run-2")
        assert bench.posts == [row["idempotency_key"]] * 2
        assert bench.charges == 1

    def test_outside_the_window_nothing_goes_again(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        bench.sql.execute("SET session_replication_role = replica")
        # Less than the key window ago, but the request could land after it: send window and settle delay are counted.
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions "
            "SET intended_at = clock_timestamp() - interval '59 minutes 50 seconds'"
        )
        bench.sql.execute("SET session_replication_role = origin")
        with pytest.raises(CallInDoubt) as caught:
            bench.call(provider)
        assert caught.value.retry_after is None
        assert bench.task()["status"] == "held"
        assert len(bench.posts) == 1

    @pytest.mark.parametrize("refusal", [400, 401, 403, 422])
    def test_a_refused_resend_says_nothing_about_the_first_send(self, bench: "Bench", refusal: int) -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        bench.metered.fault("status", status=refusal)
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        (row,) = bench.rows()
        assert (row["state"], row["sends"]) == ("in_doubt", 2)
        assert bench.call(provider).replayed is False
        assert bench.charges == 1

    def test_a_resend_that_never_left_says_nothing_either(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        monkeypatch.delenv("K")
        with pytest.raises(CredentialMissing):
            bench.call(provider)
        assert bench.states() == ["in_doubt"]

    def test_a_frozen_pipeline_sends_nothing_again(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover'")
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        assert len(bench.posts) == 1

    def test_a_resend_with_another_payload_is_refused(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        with pytest.raises(PayloadMismatch):
            bench.call(provider, bench.changed)
        assert len(bench.posts) == 1
