"""Same key, same bytes, where the provider documents that this is one request."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.submission import SettledBy
from dagster_idempotent.engine import freezing
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.retry_policy import Verdict
from dagster_idempotent.engine.sweeping import sweep_pipeline
from dagster_idempotent.errors import CallInDoubt, CredentialMissing, PayloadMismatch, PipelineFrozen, TaskHeld
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

ADA = Who(actor="ada", reason="failover")


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

    def test_a_frozen_pipeline_sends_nothing_again_and_goes_on_by_itself_when_it_is_thawed(
        self, bench: "Bench"
    ) -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        freezing.freeze(bench.database, bench.pipeline.name, who=ADA)
        for _ in range(6):  # more runs than there are attempts
            work = bench.claim(bench.allocate(), [provider])
            with pytest.raises(PipelineFrozen, match="goes on once an operator unfreezes it") as caught:
                bench.call(provider, work=work)
            assert bench.task()["status"] == "running"
            assert work.fail_with(caught.value) is Verdict.HOLD
            assert self._swept(bench) == []
        assert (bench.task()["attempts"], len(bench.posts)) == (1, 1)
        freezing.unfreeze(bench.database, bench.pipeline.name, who=ADA)
        assert self._swept(bench) == [bench.task()["task_id"]]
        assert bench.task()["status"] == "pending"
        assert bench.call(provider).settled_by is SettledBy.SENDER
        assert (len(bench.posts), bench.charges, bench.task()["attempts"]) == (2, 1, 2)

    def _swept(self, bench: "Bench") -> list[str]:
        swept = sweep_pipeline(bench.database, bench.pipeline.name, is_finished=lambda _: True)
        return list(swept.released)

    def test_a_key_that_is_forgotten_during_the_freeze_leaves_the_doubt_to_a_person(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        freezing.freeze(bench.database, bench.pipeline.name, who=ADA)
        work = bench.claim(bench.allocate(), [provider])
        with pytest.raises(PipelineFrozen) as caught:
            bench.call(provider, work=work)
        work.fail_with(caught.value)
        bench.sql.execute("SET session_replication_role = replica")
        bench.sql.execute("UPDATE dagster_idempotent.submissions SET intended_at = clock_timestamp() - interval '2 h'")
        bench.sql.execute("SET session_replication_role = origin")
        freezing.unfreeze(bench.database, bench.pipeline.name, who=ADA)
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        assert (bench.task()["held_for"], len(bench.posts)) == ("in_doubt", 1)
        assert self._swept(bench) == []

    def test_a_closed_gate_stops_it_until_the_approval(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        bench.declare(approval="spend")
        with pytest.raises(TaskHeld, match="has to approve"):
            bench.call(provider)
        assert (bench.task()["held_for"], self._swept(bench), len(bench.posts)) == ("gate", [], 1)
        bench.declare()
        bench.allocate()
        assert self._swept(bench) == [bench.task()["task_id"]]
        assert bench.call(provider).submission == 1
        assert (len(bench.posts), bench.charges) == (2, 1)

    def test_a_sibling_that_is_still_sending_keeps_the_hold(self, bench: "Bench") -> None:
        bench.doubt(self._provider(bench))
        bench.sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'held', held_for = 'gate', attempts = attempts - 1"
        )
        sending = "UPDATE dagster_idempotent.submissions SET state = 'intended', sender_expires_at = clock_timestamp() "
        bench.sql.execute("SET session_replication_role = replica")
        bench.sql.execute(sending + "+ interval '1 h'")
        assert self._swept(bench) == []
        bench.sql.execute(sending + "- interval '1 s'")
        bench.sql.execute("SET session_replication_role = origin")
        assert self._swept(bench) == [bench.task()["task_id"]]

    def test_a_resend_with_another_payload_is_refused(self, bench: "Bench") -> None:
        provider = self._provider(bench)
        bench.doubt(provider)
        with pytest.raises(PayloadMismatch):
            bench.call(provider, bench.changed)
        assert len(bench.posts) == 1
