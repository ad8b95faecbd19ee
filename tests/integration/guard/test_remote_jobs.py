"""A remote job is submitted once, its reference kept before it is asked about, its result fetched once (R13)."""

import threading
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import SettledBy
from dagster_idempotent.engine import remote_jobs, resolutions
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.errors import (
    CallInDoubt,
    CallNotSent,
    CallRejected,
    DecisionRefused,
    LeaseLost,
    RemoteJobFailed,
    RemoteJobUnfinished,
    TaskClosed,
)
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi
from dagster_idempotent.store.listing import TaskRef

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

PROMPT: dict[str, object] = {"prompt": "a forest"}
QUICK = Backoff(base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20), jitter=0.0)
ADA = Who(actor="ada", reason="told so")
PNG = b"\x89PNG\r\n\x1a\n"


def studio(bench: "Bench", *, upper_bound: Money | None = None, **settings: Any) -> Any:
    api = JobApi(
        **{
            "result_path": "/jobs/{id}/result",
            "cancel_path": "/jobs/{id}/cancel",
            "look_up_path": "/jobs?key={key}",
            "look_up_complete_at": "complete",
            "progress_at": "progress",
            "cost_at": "cost.amount",
            "currency_at": "cost.currency",
            "settle_delay": timedelta(minutes=1),
            "pace": QUICK,
            "poll_budget": timedelta(seconds=30),
            **settings,
        }
    )
    base = bench.metered.base_url
    return JsonJobApi(api, name="studio", base_url=base, api_key_variable="K", upper_bound=upper_bound)


def driven(bench: "Bench", status: str, **facts: object) -> str:
    """Drive the newest job, which the next polls then find so."""
    job = bench.metered.jobs()[-1].id
    bench.metered.drive(job, status, **facts)
    return job


def unfinished(bench: "Bench", **settings: Any) -> str:
    """Submit a job that stays queued, by a run that soon stops to wait."""
    bench.metered.fault("hold", path_contains="GET /v1/jobs/")
    provider = studio(bench, poll_budget=timedelta(0), **settings)
    done = threading.Event()

    def queue_up() -> None:
        bench.metered.wait_held()
        driven(bench, "queued")
        bench.metered.release()
        done.set()

    threading.Thread(target=queue_up).start()
    with pytest.raises(RemoteJobUnfinished) as caught:
        bench.call(provider, PROMPT)
    assert done.wait(30)
    return str(caught.value.facts["remote_ref"])


def ref(bench: "Bench") -> TaskRef:
    return TaskRef(pipeline=bench.pipeline.name, task_id=TaskId(bench.task()["task_id"]))


class TestOneJob:
    def test_it_is_charged_once_and_replayed_with_its_result(self, bench: "Bench") -> None:
        first = bench.call(studio(bench), PROMPT)
        assert first.value.body.startswith(PNG)
        assert (first.value.media_type, first.settled_by, first.replayed) == ("image/png", SettledBy.POLL, False)
        assert (first.cost, first.remote_ref) == (Money.parse("0.02 USD"), bench.metered.jobs()[-1].id)
        assert first.value.remote_ref == first.remote_ref
        again = bench.call(studio(bench), PROMPT)
        assert (again.value, again.replayed) == (first.value, True)
        assert bench.charges == 1
        assert bench.metered.jobs()[-1].polls == 3

    def test_its_reference_is_committed_before_it_is_asked_about(self, bench: "Bench") -> None:
        seen: list[Any] = []

        class Watching(JsonJobApi):
            def poll(self, remote_ref: str) -> Any:
                seen.extend(bench.sql.execute("SELECT state, remote_ref FROM dagster_idempotent.submissions"))
                return super().poll(remote_ref)

        made = studio(bench)
        provider = Watching(made.api, name="studio", base_url=bench.metered.base_url, api_key_variable="K")
        bench.call(provider, PROMPT)
        assert seen[0] == {"state": "accepted", "remote_ref": bench.metered.jobs()[-1].id}

    def test_progress_is_told_as_it_changes(self, bench: "Bench") -> None:
        lines: list[str] = []
        work = bench.claim(bench.allocate())
        work.say = lines.append
        bench.call(studio(bench), PROMPT, work=work)
        job = bench.metered.jobs()[-1].id
        assert lines == [
            f"Job {job} of call 'summary' at studio: running, 33% done.",
            f"Job {job} of call 'summary' at studio: running, 67% done.",
            f"Job {job} of call 'summary' at studio: it has ended well.",
        ]

    def test_polls_and_downloads_that_go_wrong_submit_nothing(self, bench: "Bench") -> None:
        for kind, options in [
            ("status", {"status": 500}),
            ("status", {"status": 404}),
            ("status", {"status": 429}),
            ("garbage", {}),
            ("half_answer", {}),
            ("accept_then_drop", {"reset": True}),
            ("empty_answer", {}),
        ]:
            bench.metered.fault(kind, path_contains="GET /v1/jobs/", **options)
        for kind in ("half_answer", "drop_before_accepting", "status"):
            bench.metered.fault(kind, path_contains="/result")
        assert bench.call(studio(bench), PROMPT).value.body.startswith(PNG)
        assert bench.charges == 1
        assert bench.posts == [bench.rows()[0]["idempotency_key"]]


class TestSubmission:
    @pytest.mark.parametrize(
        ("kind", "options"),
        [
            ("accept_then_drop", {}),
            ("half_answer", {}),
            ("garbage", {}),
            ("status", {"status": 500, "charged": True}),
            ("status", {"status": 429, "charged": True}),
            ("empty_answer", {}),
            ("error_in_200", {}),
        ],
    )
    def test_a_lost_answer_is_in_doubt_until_the_job_is_found_by_its_key(
        self, bench: "Bench", kind: str, options: dict[str, Any]
    ) -> None:
        bench.metered.fault(kind, **options)
        result = bench.call(studio(bench), PROMPT)
        assert result.value.body.startswith(PNG)
        assert bench.charges == len(bench.posts) == 1

    def test_without_look_up_it_waits_for_a_person_who_brings_the_reference(self, bench: "Bench") -> None:
        blind = studio(bench, look_up_path=None)
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(blind, PROMPT)
        assert bench.task()["held_for"] == "in_doubt"
        found = Evidence(proof=Proof.ACCEPTED, told="console", remote_ref=bench.metered.jobs()[-1].id)
        resolutions.resolve(bench.database, ref(bench), "summary", found, who=ADA)
        assert bench.call(blind, PROMPT).value.body.startswith(PNG)
        assert bench.charges == len(bench.posts) == 1

    def test_a_refusal_is_no_job_and_may_be_followed_by_one(self, bench: "Bench") -> None:
        with pytest.raises(CallRejected, match="expected `prompt`"):
            bench.call(studio(bench), {"no": "prompt"})
        assert bench.charges == 0
        assert bench.call(studio(bench), PROMPT).submission == 2
        assert bench.charges == 1

    def test_one_that_never_arrived_is_submitted_again_under_its_key(self, bench: "Bench") -> None:
        bench.metered.fault("drop_before_accepting")
        provider = studio(bench, settle_delay=timedelta(0))
        with pytest.raises((CallInDoubt, CallNotSent)):
            bench.call(provider, PROMPT)
        bench.expire()
        assert bench.call(provider, PROMPT).value.body.startswith(PNG)
        assert len(set(bench.posts)) == bench.charges == 1
        assert bench.states() == ["not_sent", "succeeded"]


class TestWaiting:
    def test_a_spent_budget_fails_nothing_and_the_next_run_goes_on_with_the_same_job(self, bench: "Bench") -> None:
        job = unfinished(bench)
        assert bench.states() == ["accepted"]
        assert bench.task()["status"] == "running"
        driven(bench, "succeeded")
        result = bench.call(studio(bench), PROMPT)
        assert (result.remote_ref, result.replayed, bench.charges) == (job, True, 1)

    def test_a_run_that_lets_go_gives_its_attempt_back(self, bench: "Bench") -> None:
        unfinished(bench)
        waiting = studio(bench, poll_budget=timedelta(0))
        for _ in range(10):
            work = bench.claim(bench.allocate(), [waiting])
            with pytest.raises(RemoteJobUnfinished) as caught:
                bench.call(waiting, PROMPT, work=work)
            assert work.let_go(caught.value)
            task = bench.task()
            assert (task["status"], task["attempts"], task["owner"]) == ("pending", 1, None)
            assert task["next_attempt_at"] is not None
        driven(bench, "succeeded")
        bench.call(studio(bench), PROMPT)
        assert (bench.task()["attempts"], bench.charges) == (2, 1)

    def test_the_run_that_submitted_may_wait_too_but_one_that_saw_a_job_fail_is_counted(self, bench: "Bench") -> None:
        bench.declare(max_attempts=1)
        waiting = studio(bench, poll_budget=timedelta(0))
        work = bench.claim(bench.allocate())
        with pytest.raises(RemoteJobUnfinished) as caught:
            bench.call(waiting, PROMPT, work=work)
        assert work.let_go(caught.value)
        assert bench.task()["attempts"] == 0
        driven(bench, "failed")
        work = bench.claim(bench.allocate())
        with pytest.raises(RemoteJobFailed) as failed:
            bench.call(waiting, PROMPT, work=work)
        work.fail_with(failed.value)
        # The op's own retry submits a new job, and waits for it in the same, counted attempt.
        with pytest.raises(RemoteJobUnfinished) as caught:
            bench.call(waiting, PROMPT, work=work)
        assert work.let_go(caught.value)
        assert (bench.task()["attempts"], bench.charges) == (1, 2)
        with pytest.raises(TaskClosed, match="is dead"):
            bench.claim(bench.allocate())

    def test_nobody_lets_go_of_a_task_that_is_not_theirs(self, bench: "Bench") -> None:
        unfinished(bench)
        old = bench.claim(bench.allocate())
        bench.claim(bench.allocate())
        assert not old.let_go(RemoteJobUnfinished("late", retry_after=1.0))
        assert bench.task()["status"] == "running"

    def test_a_poll_that_loses_its_lease_stops_at_once(self, bench: "Bench") -> None:
        unfinished(bench)
        bench.declare(lease="600ms")
        slow = studio(
            bench, pace=Backoff(base=timedelta(hours=1), cap=timedelta(hours=1)), poll_budget=timedelta(days=1)
        )
        work = bench.claim(bench.allocate())
        caught: list[BaseException] = []

        def poll() -> None:
            try:
                bench.call(slow, PROMPT, work=work)
            except LeaseLost as error:
                caught.append(error)

        thread = threading.Thread(target=poll)
        thread.start()
        bench.sql.execute("UPDATE dagster_idempotent.tasks SET owner = 'another', fencing_token = fencing_token + 1")
        thread.join(timeout=30)
        assert not thread.is_alive()
        assert len(caught) == 1

    def test_the_lease_is_renewed_while_a_job_is_polled(self, bench: "Bench") -> None:
        bench.declare(lease="900ms")
        bench.metered.fault("slow", seconds=2.0, path_contains="/result")
        assert bench.call(studio(bench), PROMPT).value.body.startswith(PNG)
        assert bench.task()["fencing_token"] == 1


class TestTheJobsOwnEnd:
    def test_it_is_final_its_cost_stays_and_the_next_attempt_submits_a_new_job(self, bench: "Bench") -> None:
        job = unfinished(bench)
        driven(bench, "failed", error="no light")
        with pytest.raises(RemoteJobFailed, match="no light") as caught:
            bench.call(studio(bench), PROMPT)
        assert caught.value.facts["remote_ref"] == job
        row = bench.rows()[0]
        assert (row["state"], row["cost"], row["settled_by"]) == ("failed", Decimal("0.02"), "poll")
        result = bench.call(studio(bench), {"prompt": "another forest"})
        assert (result.submission, bench.charges) == (2, 2)
        assert [(row["state"], row["key_no"]) for row in bench.rows()] == [("failed", 0), ("succeeded", 1)]
        assert len(set(bench.posts)) == 2

    def test_a_failure_of_unknown_cost_counts_as_the_upper_bound(self, bench: "Bench") -> None:
        bench.declare(budget=Budget(per_task="1.00 USD"))
        bound = Money.parse("0.30 USD")
        unfinished(bench, cost_at=None, currency_at=None, upper_bound=bound)
        driven(bench, "failed")
        with pytest.raises(RemoteJobFailed):
            bench.call(studio(bench, cost_at=None, currency_at=None, upper_bound=bound), PROMPT)
        counter = bench.sql.execute("SELECT * FROM dagster_idempotent.budgets WHERE scope = 'pipeline'").fetchone()
        assert counter is not None
        assert (counter["reserved"], counter["settled"]) == (0, Decimal("0.30"))


class TestCancel:
    def cancel(self, bench: "Bench", provider: Any, **options: bool) -> Any:
        return remote_jobs.cancel(bench.database, ref(bench), "summary", [provider], who=ADA, **options)

    def test_the_providers_word_ends_the_job_and_is_kept_with_who_asked(self, bench: "Bench") -> None:
        job = unfinished(bench)
        planned = self.cancel(bench, studio(bench), dry_run=True)
        assert (planned.dry_run, bench.metered.jobs()[-1].status, bench.states()) == (True, "queued", ["accepted"])
        decision = self.cancel(bench, studio(bench))
        assert (decision.action, bench.metered.jobs()[-1].status) == ("cancelled", "cancelled")
        assert bench.states() == ["failed"]
        audit = bench.sql.execute("SELECT * FROM dagster_idempotent.audit WHERE action = 'cancel'").fetchall()
        assert [(row["actor"], row["before"]["state"], row["after"]["remote_ref"]) for row in audit] == [
            ("ada", "accepted", job)
        ]
        with pytest.raises(DecisionRefused, match="is failed"):
            self.cancel(bench, studio(bench))
        assert bench.charges == 1

    def test_a_job_that_ended_well_meanwhile_keeps_its_result(self, bench: "Bench") -> None:
        unfinished(bench)
        driven(bench, "succeeded")
        assert self.cancel(bench, studio(bench)).action == "asked"
        assert bench.states() == ["accepted"]
        assert bench.call(studio(bench), PROMPT).value.body.startswith(PNG)

    def test_no_answer_to_the_cancellation_ends_nothing(self, bench: "Bench") -> None:
        unfinished(bench)
        bench.metered.fault("status", status=500, path_contains="/cancel")
        bench.metered.fault("drop_before_accepting", path_contains="GET /v1/jobs/")
        decision = self.cancel(bench, studio(bench))
        assert (decision.action, bench.states()) == ("asked", ["accepted"])
        assert "RemoteProtocolError" in decision.after["provider_said"]

    def test_an_operator_brings_the_end_of_a_job_that_the_provider_forgot(self, bench: "Bench") -> None:
        unfinished(bench)
        said = Evidence(proof=Proof.NOT_SENT, told="gone")
        with pytest.raises(DecisionRefused):
            resolutions.resolve(bench.database, ref(bench), "summary", said, who=ADA)
        over = Evidence(proof=Proof.FAILED, told="support ticket 7", cost=Money.parse("0.02 USD"))
        resolutions.resolve(bench.database, ref(bench), "summary", over, who=ADA)
        assert (bench.states(), bench.rows()[0]["error"]) == (["failed"], "support ticket 7")

    def test_an_operator_brings_the_result_by_hand(self, bench: "Bench") -> None:
        unfinished(bench)
        brought = Evidence(proof=Proof.SUCCEEDED, told="downloaded", answer=b"the bytes")
        resolutions.resolve(bench.database, ref(bench), "summary", brought, who=ADA)
        assert bench.call(studio(bench), PROMPT).value.body == b"the bytes"
        assert bench.charges == 1
