"""One call key stands for one request; which key it travels under (R17)."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import CallInProgress, CallRejected, CredentialMissing, PayloadMismatch

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class TestPayload:
    def test_another_payload_is_refused_by_the_names_that_differ(self, bench: "Bench") -> None:
        bench.call(bench.provider())
        with pytest.raises(PayloadMismatch, match="/messages/0/content") as caught:
            bench.call(bench.provider(), bench.changed)
        assert caught.value.facts["fields"] == ("/messages/0/content",)
        assert len(bench.posts) == 1

    def test_it_is_refused_before_any_word_about_progress(self, bench: "Bench") -> None:
        bench.metered.fault("hold")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(), work=work)
            bench.metered.wait_held(1)
            with pytest.raises(PayloadMismatch):
                Guard(work, bench.provider()).call(CallKey("summary"), bench.changed)
            with pytest.raises(CallInProgress) as caught:
                Guard(work, bench.provider()).call(CallKey("summary"), bench.request)
            bench.metered.release()
            assert sending.result().replayed is False
        assert caught.value.retry_after is not None
        assert 0 < caught.value.retry_after <= 30
        assert caught.value.facts["owner"] == "run-1"
        assert len(bench.posts) == 1

    def test_it_is_refused_while_the_call_is_in_doubt(self, bench: "Bench") -> None:
        bench.doubt(bench.without_look_up())
        bench.sql.execute(
            "UPDATE dagster_idempotent.tasks SET status = 'pending', held_for = NULL, owner = NULL, "
            "lease_expires_at = NULL, fencing_token = fencing_token + 1"
        )
        with pytest.raises(PayloadMismatch):
            bench.call(bench.without_look_up(), bench.changed)
        assert len(bench.posts) == 1

    def test_a_rejected_request_may_be_changed_and_gets_a_new_key(self, bench: "Bench") -> None:
        bench.metered.fault("status", status=400)
        with pytest.raises(CallRejected, match="HTTP 400"):
            bench.call(bench.provider())
        assert bench.call(bench.provider(), bench.changed).submission == 2
        assert bench.states() == ["rejected", "succeeded"]
        assert [row["key_no"] for row in bench.rows()] == [0, 1]
        assert len(set(bench.posts)) == 2
        assert bench.charges == 1

    def test_what_the_sender_proved_unsent_may_be_changed(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("K")
        with pytest.raises(CredentialMissing):
            bench.call(bench.provider())
        monkeypatch.setenv("K", bench.secret)
        bench.call(bench.provider(), bench.changed)
        assert [row["key_no"] for row in bench.rows()] == [0, 1]
        assert len(bench.posts) == 1

    def test_what_a_look_up_called_unsent_may_not_be_changed(self, bench: "Bench") -> None:
        bench.doubt(bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)
        with pytest.raises(PayloadMismatch):
            bench.call(bench.provider(), bench.changed)
        assert bench.states() == ["not_sent"]
        assert bench.charges == 0


class TestKeys:
    def test_after_not_found_the_same_key_goes_again(self, bench: "Bench") -> None:
        bench.doubt(bench.provider(), "drop_before_accepting")
        bench.expire(seconds=61)
        bench.call(bench.provider())
        first, second = bench.posts
        assert first == second
        assert bench.charges == 1

    def test_after_a_rejection_a_new_key_goes(self, bench: "Bench") -> None:
        bench.metered.fault("status", status=422)
        with pytest.raises(CallRejected):
            bench.call(bench.provider())
        bench.call(bench.provider())
        assert len(set(bench.posts)) == 2

    def test_two_ledgers_never_share_a_key(self, bench: "Bench") -> None:
        bench.call(bench.provider())
        (row,) = bench.rows()
        ledger = bench.sql.execute("SELECT ledger_id::text AS id FROM dagster_idempotent.ledger").fetchone()
        assert ledger is not None
        assert row["idempotency_key"] == bench.posts[0]
        assert ledger["id"] not in row["idempotency_key"]
