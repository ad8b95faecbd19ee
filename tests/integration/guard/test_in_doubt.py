"""What may have been accepted is never sent as a new request by itself (R13-R15)."""

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.submission import CallKey, IdempotencyKey, SettledBy
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.reconciliation import reconcile_task
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import CallAbandoned, CallInDoubt, CallInProgress, CallNotSent, TaskHeld
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.providers.outcome import Finding, NotFound
from dagster_idempotent.store.database import Database

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

# What no text about a call in doubt may advise (R14).
ADVICE = r"(?i)try again|retry|rerun|re-run|run (it|this|the job) again|send (it )?again"


class TestInDoubt:
    def test_without_look_up_the_task_is_held_and_nothing_is_ever_sent_again(self, bench: "Bench") -> None:
        error = bench.doubt(bench.without_look_up())
        assert error.retry_after is None
        for _ in range(5):
            bench.expire(seconds=1e6)
            with pytest.raises(TaskHeld) as caught:
                bench.call(bench.without_look_up())
            assert caught.value.facts["held_for"] == "in_doubt"
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "in_doubt")
        assert len(bench.posts) == bench.charges == 1

    def test_not_even_under_a_lease_got_by_force(self, bench: "Bench") -> None:
        bench.doubt(bench.without_look_up())
        for _ in range(5):
            bench.expire(seconds=1e6)
            bench.sql.execute(
                "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
                "lease_expires_at = NULL, fencing_token = fencing_token + 1"
            )
            with pytest.raises(CallInDoubt):
                bench.call(bench.without_look_up())
        assert len(bench.posts) == 1

    @pytest.mark.parametrize(
        "fault",
        [
            ("accept_then_drop", {}),
            ("accept_then_drop", {"reset": True}),
            ("drop_before_accepting", {}),
            ("half_answer", {}),
            ("garbage", {}),
            ("garbage", {"body": "[]"}),
            ("garbage", {"body": '{"choices": []}'}),
            ("status", {"status": 500}),
            ("status", {"status": 502, "charged": True}),
            ("status", {"status": 408}),
            ("status", {"status": 409}),
            ("status", {"status": 429}),
            ("status", {"status": 202, "charged": True}),
            ("redirect", {}),
            ("redirect", {"status": 302}),
        ],
        ids=lambda fault: "-".join([fault[0], *(str(value) for value in fault[1].values())]),
    )
    def test_whatever_is_not_a_proof_is_in_doubt(self, bench: "Bench", fault: tuple[str, dict[str, object]]) -> None:
        kind, options = fault
        bench.metered.fault(kind, **options)
        with pytest.raises(CallInDoubt) as caught:
            bench.call(bench.without_look_up())
        assert bench.states() == ["in_doubt"]
        assert len(bench.posts) == 1
        assert "may have been accepted and charged" in str(caught.value)

    def test_no_text_about_it_advises_to_send_again(self, bench: "Bench") -> None:
        first = bench.doubt(bench.without_look_up())
        with pytest.raises(TaskHeld) as held:
            bench.call(bench.without_look_up())
        row_text = str(bench.rows()[0]["error"])
        for text in (str(first), str(held.value), row_text, bench.task()["error"]):
            assert not re.search(ADVICE, text), text

    def test_a_success_is_found_at_once_and_settles(self, bench: "Bench") -> None:
        bench.metered.fault("accept_then_drop")
        result = bench.call(bench.provider())
        assert result.settled_by is SettledBy.LOOK_UP
        assert bench.charges == len(bench.posts) == 1
        assert bench.call(bench.provider()).value == result.value

    def test_not_found_before_the_settle_delay_proves_nothing(self, bench: "Bench") -> None:
        error = bench.doubt(bench.provider(), "drop_before_accepting")
        assert error.retry_after is not None
        assert 60 < error.retry_after <= 90
        bench.expire(seconds=59)
        with pytest.raises(CallInDoubt) as caught:
            bench.call(bench.provider())
        assert caught.value.retry_after is not None
        assert caught.value.retry_after <= 1
        assert bench.states() == ["in_doubt"]
        bench.expire(seconds=61)
        bench.call(bench.provider())
        assert bench.states() == ["not_sent", "succeeded"]
        assert len(bench.posts) == 2
        assert bench.charges == 1

    def test_not_found_is_the_word_of_a_look_up_begun_after_the_delay(self, bench: "Bench") -> None:
        bench.doubt(bench.provider(), "drop_before_accepting")
        bench.expire(seconds=59.5)

        class Slow(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                found = super().find(keys)
                bench.expire(seconds=61)  # the delay ended while the look-up was on its way
                return found

        (result,) = reconcile_task(bench.database, "weekly_digest", bench.allocate(), [bench.provider(Slow)])
        assert result.settled is False
        assert bench.states() == ["in_doubt"]

    def test_not_found_does_not_void_what_was_sent_again_meanwhile(self, bench: "Bench") -> None:
        bench.doubt(bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)

        class Overtaken(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                bench.sql.execute(
                    "UPDATE dagster_idempotent.submissions SET sends = sends + 1, sender = gen_random_uuid()"
                )
                return super().find(keys)

        with pytest.raises(CallInDoubt, match="somebody else acted"):
            bench.call(bench.provider(Overtaken))
        assert bench.states() == ["in_doubt"]
        assert bench.charges == 0

    def test_an_incomplete_search_proves_nothing(self, bench: "Bench") -> None:
        class Incomplete(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                assert keys
                return NotFound(complete=False)

        bench.doubt(bench.without_look_up(), "drop_before_accepting")
        bench.expire(seconds=1e6)
        with pytest.raises(CallInDoubt, match="not complete"):
            bench.call(bench.provider(Incomplete), work=self._forced(bench))
        assert bench.states() == ["in_doubt"]

    def test_a_look_up_that_fails_proves_nothing(self, bench: "Bench") -> None:
        bench.metered.configure(lookup=False)
        error = bench.doubt(bench.provider())
        assert "look-up failed: HTTP 404" in str(error)
        bench.expire(seconds=1e6)
        with pytest.raises(CallInDoubt):
            bench.call(bench.provider())
        bench.metered.configure(lookup=True)
        assert bench.call(bench.provider()).settled_by is SettledBy.LOOK_UP
        assert len(bench.posts) == 1

    def test_one_call_sends_once_however_fast_a_look_up_says_no(self, bench: "Bench") -> None:
        class Hasty(ChatCompletionsProvider):
            def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
                return super().find(keys)

        bench.metered.fault("drop_before_accepting", times=None)

        class Aging(Database):
            def run(self, function: Any, *, patience: timedelta | None = None) -> Any:
                bench.expire(seconds=1e6)
                return super().run(function, patience=patience)

        work = bench.claim(bench.allocate())
        work.database = Aging(bench.database.url)
        with pytest.raises(CallNotSent, match="its answer was lost"):
            Guard(work, bench.provider(Hasty)).call(CallKey("summary"), bench.request)
        work.database.close()
        assert len(bench.posts) == 1

    def test_an_accepted_call_is_resumed_and_never_submitted_again(self, bench: "Bench") -> None:
        bench.metered.fault("hold")
        read_timeout = timedelta(milliseconds=200)
        with pytest.raises(CallInProgress, match="not submitted again"):
            bench.call(bench.provider(read_timeout=read_timeout))
        assert bench.states() == ["accepted"]
        for _ in range(3):
            with pytest.raises(CallInProgress, match="not submitted again"):
                bench.call(bench.provider())
        bench.metered.release()
        assert bench.call(bench.provider()).settled_by is SettledBy.POLL
        assert len(bench.posts) == bench.charges == 1

    def test_an_abandoned_call_raises(self, bench: "Bench") -> None:
        bench.doubt(bench.without_look_up())
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'abandoned', settled_by = 'operator', settled_at = now()"
        )
        for _ in range(2):
            with pytest.raises(CallAbandoned, match="may charge twice"):
                bench.call(bench.without_look_up())
        assert len(bench.posts) == 1

    def test_a_call_settled_before_its_hold_does_not_hold_the_task_for_ever(self, bench: "Bench") -> None:
        bench.doubt(bench.without_look_up())
        assert bench.task()["status"] == "held"
        reconcile_task(bench.database, "weekly_digest", bench.allocate(), [bench.provider()])
        assert bench.states() == ["succeeded"]
        assert bench.call(bench.without_look_up()).replayed is True

    def test_a_hold_gives_the_attempt_back_only_to_a_run_that_sent_nothing(self, bench: "Bench") -> None:
        bench.doubt(bench.without_look_up())
        assert bench.task()["attempts"] == 1
        with pytest.raises(CallInDoubt):
            bench.call(bench.without_look_up(), work=self._forced(bench))
        assert bench.task()["attempts"] == 1

    def _forced(self, bench: "Bench") -> Work:
        bench.sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
            "lease_expires_at = NULL, fencing_token = fencing_token + 1"
        )
        return bench.claim(bench.allocate())
