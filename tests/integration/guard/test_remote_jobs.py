"""A remote job is submitted once, its reference kept before it is asked about, its result fetched once (R13)."""

from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.submission import SettledBy
from dagster_idempotent.engine import freezing, resolutions
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.errors import (
    CallInDoubt,
    CallNotSent,
    CallRejected,
    PipelineFrozen,
    RemoteJobFailed,
    RemoteJobUnfinished,
)
from dagster_idempotent.providers.remote_job import JsonJobApi

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

PROMPT: dict[str, object] = {"prompt": "a forest"}
ADA = Who(actor="ada", reason="told so")
PNG = b"\x89PNG\r\n\x1a\n"


class TestOneJob:
    def test_it_is_charged_once_and_replayed_with_its_result(self, bench: "Bench") -> None:
        first = bench.call(bench.studio(), PROMPT)
        assert first.value.body.startswith(PNG)
        assert (first.value.media_type, first.settled_by, first.replayed) == ("image/png", SettledBy.POLL, False)
        assert (first.cost, first.remote_ref) == (Money.parse("0.02 USD"), bench.metered.jobs()[-1].id)
        assert first.value.remote_ref == first.remote_ref
        again = bench.call(bench.studio(), PROMPT)
        assert (again.value, again.replayed) == (first.value, True)
        assert bench.charges == 1
        assert bench.metered.jobs()[-1].polls == 3

    def test_its_reference_is_committed_before_it_is_asked_about(self, bench: "Bench") -> None:
        seen: list[Any] = []

        class Watching(JsonJobApi):
            def poll(self, remote_ref: str) -> Any:
                seen.extend(bench.sql.execute("SELECT state, remote_ref FROM dagster_idempotent.submissions"))
                return super().poll(remote_ref)

        made = bench.studio()
        provider = Watching(made.api, name="studio", base_url=bench.metered.base_url, api_key_variable="K")
        bench.call(provider, PROMPT)
        assert seen[0] == {"state": "accepted", "remote_ref": bench.metered.jobs()[-1].id}

    def test_progress_is_told_as_it_changes(self, bench: "Bench") -> None:
        lines: list[str] = []
        work = bench.claim(bench.allocate())
        work.log = lines.append
        bench.call(bench.studio(), PROMPT, work=work)
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
        assert bench.call(bench.studio(), PROMPT).value.body.startswith(PNG)
        assert bench.charges == 1
        assert bench.posts == [bench.rows()[0]["idempotency_key"]]

    def test_a_download_may_be_redirected_and_takes_the_credential_nowhere_else(self, bench: "Bench") -> None:
        elsewhere = bench.metered.control_url.replace("127.0.0.1", "localhost")
        for target in ("/v1/jobs/no-such-job", f"{elsewhere}/v1/jobs/x", "file:///etc/passwd"):
            bench.metered.fault("redirect", status=302, location=target, path_contains="/result")
        said: list[str] = []
        work = bench.claim(bench.allocate())
        work.log = said.append
        assert bench.call(bench.studio(), PROMPT, work=work).value.body.startswith(PNG)
        told = " ".join(said)
        assert "no job no-such-job" in told
        assert "expected the header Authorization" in told
        assert "leads to file:" in told

    def test_a_key_that_a_refusal_repeats_is_shown_to_nobody(self, bench: "Bench") -> None:
        bench.metered.fault("status", status=401, body=f"no such key: {bench.secret}", path_contains="GET /v1/jobs/")
        with pytest.raises(RemoteJobUnfinished, match=r"no such key: \*\*\*"):
            bench.call(bench.studio(poll_budget=timedelta(0)), PROMPT)

    def test_what_a_test_drives_a_job_to_make_is_its_result(self, bench: "Bench") -> None:
        bench.unfinished()
        bench.driven("succeeded", result='{"frames": 7}', media_type="application/json")
        assert bench.call(bench.studio(), PROMPT).value.json() == {"frames": 7}


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
        result = bench.call(bench.studio(), PROMPT)
        assert result.value.body.startswith(PNG)
        assert bench.charges == len(bench.posts) == 1

    def test_without_look_up_it_waits_for_a_person_who_brings_the_reference(self, bench: "Bench") -> None:
        blind = bench.studio(look_up_path=None)
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(blind, PROMPT)
        assert bench.task()["held_for"] == "in_doubt"
        found = Evidence(proof=Proof.ACCEPTED, told="console", remote_ref=bench.metered.jobs()[-1].id)
        resolutions.resolve(bench.database, bench.ref(), "summary", found, who=ADA)
        assert bench.call(blind, PROMPT).value.body.startswith(PNG)
        assert bench.charges == len(bench.posts) == 1

    def test_a_service_that_honours_keys_is_sent_the_same_key_again_and_names_the_same_job(
        self, bench: "Bench"
    ) -> None:
        bench.metered.configure(deduplicate=True)
        bench.metered.fault("accept_then_drop")
        keyed = bench.studio(look_up_path=None, key_window=timedelta(hours=1))
        with pytest.raises(CallInDoubt):
            bench.call(keyed, PROMPT)
        result = bench.call(keyed, PROMPT)
        assert result.value.body.startswith(PNG)
        assert (len(bench.posts), len(set(bench.posts)), bench.charges) == (2, 1, 1)
        assert [(row["state"], row["sends"]) for row in bench.rows()] == [("succeeded", 2)]

    def test_a_freeze_at_that_moment_leaves_the_job_to_the_run_after_it(self, bench: "Bench") -> None:
        bench.metered.configure(deduplicate=True)
        bench.metered.fault("accept_then_drop")
        keyed = bench.studio(look_up_path=None, key_window=timedelta(hours=1))
        with pytest.raises(CallInDoubt):
            bench.call(keyed, PROMPT)
        freezing.freeze(bench.database, bench.pipeline.name, who=ADA)
        work = bench.claim(bench.allocate())
        with pytest.raises(PipelineFrozen) as caught:
            bench.call(keyed, PROMPT, work=work)
        work.fail_with(caught.value)
        freezing.unfreeze(bench.database, bench.pipeline.name, who=ADA)
        assert bench.call(keyed, PROMPT).value.body.startswith(PNG)
        assert (len(bench.posts), bench.charges, bench.states()) == (2, 1, ["succeeded"])

    def test_an_accepted_job_is_fetched_also_from_a_frozen_pipeline(self, bench: "Bench") -> None:
        bench.unfinished()
        bench.driven("succeeded")
        freezing.freeze(bench.database, bench.pipeline.name, who=ADA)
        assert bench.call(bench.studio(), PROMPT).value.body.startswith(PNG)
        assert bench.charges == 1

    def test_a_service_that_does_not_honour_its_keys_is_shown_in_red(self, bench: "Bench") -> None:
        bench.metered.fault("accept_then_drop")
        not_yet = '{"jobs": [], "complete": true}'
        # Once after the send, and by the next run before its claim and before its resend.
        bench.metered.fault("status", times=3, status=200, body=not_yet, path_contains="GET /v1/jobs")
        keyed = bench.studio(key_window=timedelta(hours=1))
        with pytest.raises(CallInDoubt):
            bench.call(keyed, PROMPT)
        assert bench.call(keyed, PROMPT).value.body.startswith(PNG)
        assert bench.charges == 2
        red = bench.sql.execute("SELECT remote_ref FROM dagster_idempotent.charged_twice").fetchall()
        other = next(job.id for job in bench.metered.jobs()[-2:] if job.id != bench.rows()[0]["remote_ref"])
        assert red == [{"remote_ref": other}]
        # In whatever order a service lists them.
        found = keyed.find([bench.rows()[0]["idempotency_key"]])
        assert {found.remote_ref, *found.also} == {job.id for job in bench.metered.jobs()[-2:]}

    def test_a_refusal_is_no_job_and_may_be_followed_by_one(self, bench: "Bench") -> None:
        with pytest.raises(CallRejected, match="expected `prompt`"):
            bench.call(bench.studio(), {"no": "prompt"})
        assert bench.charges == 0
        assert bench.call(bench.studio(), PROMPT).submission == 2
        assert bench.charges == 1

    def test_one_that_never_arrived_is_submitted_again_under_its_key(self, bench: "Bench") -> None:
        bench.metered.fault("drop_before_accepting")
        provider = bench.studio(settle_delay=timedelta(0))
        with pytest.raises((CallInDoubt, CallNotSent)):
            bench.call(provider, PROMPT)
        bench.expire()
        assert bench.call(provider, PROMPT).value.body.startswith(PNG)
        assert len(set(bench.posts)) == bench.charges == 1
        assert bench.states() == ["not_sent", "succeeded"]


class TestTheJobsOwnEnd:
    def test_it_is_final_its_cost_stays_and_the_next_attempt_submits_a_new_job(self, bench: "Bench") -> None:
        job = bench.unfinished()
        bench.driven("failed", error="no light")
        with pytest.raises(RemoteJobFailed, match="no light") as caught:
            bench.call(bench.studio(), PROMPT)
        assert caught.value.facts["remote_ref"] == job
        row = bench.rows()[0]
        assert (row["state"], row["cost"], row["settled_by"]) == ("failed", Decimal("0.02"), "poll")
        result = bench.call(bench.studio(), {"prompt": "another forest"})
        assert (result.submission, bench.charges) == (2, 2)
        assert [(row["state"], row["key_no"]) for row in bench.rows()] == [("failed", 0), ("succeeded", 1)]
        assert len(set(bench.posts)) == 2

    def test_a_failure_of_unknown_cost_counts_as_the_upper_bound(self, bench: "Bench") -> None:
        bench.declare(budget=Budget(per_task="1.00 USD"))
        bound = Money.parse("0.30 USD")
        bench.unfinished(cost_at=None, currency_at=None, upper_bound=bound)
        bench.driven("failed")
        with pytest.raises(RemoteJobFailed):
            bench.call(bench.studio(cost_at=None, currency_at=None, upper_bound=bound), PROMPT)
        counter = bench.sql.execute("SELECT * FROM dagster_idempotent.budgets WHERE scope = 'pipeline'").fetchone()
        assert counter is not None
        assert (counter["reserved"], counter["settled"]) == (0, Decimal("0.30"))

    def test_a_look_up_never_takes_the_failed_job_for_the_one_in_doubt(self, bench: "Bench") -> None:
        bench.unfinished()
        failed = bench.driven("failed")
        with pytest.raises(RemoteJobFailed):
            bench.call(bench.studio(), PROMPT)
        # The second job is taken in, its answer lost; it is listed a little later, as `settle_delay` allows for.
        bench.metered.fault("accept_then_drop")
        not_yet = '{"jobs": [], "complete": true}'
        bench.metered.fault("status", status=200, body=not_yet, path_contains="GET /v1/jobs")
        with pytest.raises(CallInDoubt):
            bench.call(bench.studio(), PROMPT)
        assert [row["remote_ref"] for row in bench.rows()] == [failed, None]
        result = bench.call(bench.studio(), PROMPT)
        assert (result.submission, result.remote_ref) == (2, bench.metered.jobs()[-1].id)
        assert (bench.states(), bench.charges) == (["failed", "succeeded"], 2)
