"""The example's episodes in Dagster: remote jobs in a dynamic map, paid once, approved before they are published."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import psycopg
import pytest
from real_dagster import CODE, Dagster

from dagster_idempotent.definitions import step
from dagster_idempotent.testing.metered_provider import MeteredProvider
from example_repo.animation import SIGNATURE, chunks_of
from example_repo.studio import STUDIO_API

TUESDAY = datetime(2026, 8, 4, 9, tzinfo=UTC)
FRIDAY = datetime(2026, 8, 7, 9, tzinfo=UTC)
FIRST = "2026-W32-0"
WHO = {"actor": "ada", "reason": "seen and liked"}


@pytest.fixture
def studio(
    start_dagster: Callable[..., AbstractContextManager[Dagster]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Dagster]:
    monkeypatch.setenv("EXAMPLE_HOME", str(folder))
    monkeypatch.setenv("METERED_PROVIDER_KEY", "any text")
    # Dagster keeps a loaded file, which reads where things are kept when it is imported.
    monkeypatch.delitem(sys.modules, "episodes_location", raising=False)
    with start_dagster(code=CODE.with_name("episodes_location.py")) as dagster:
        yield dagster


def for_task(op: str, task_id: str = FIRST, **more: str) -> dict[str, Any]:
    return {"ops": {op: {"config": {"task_id": task_id, **more}}}}


def frames(picture: bytes) -> int:
    assert picture.startswith(SIGNATURE)
    kinds = [kind for kind, _ in chunks_of(picture)]
    assert kinds[0] == b"IHDR"
    assert kinds[-1] == b"IEND"
    return kinds.count(b"fcTL")


def test_two_releases_of_a_week_are_two_tasks_and_each_shot_is_one_paid_job(
    studio: Dagster, folder: Path, metered_provider: MeteredProvider
) -> None:
    studio.tick("episodes_schedule", TUESDAY)
    studio.evaluate(FRIDAY)
    first, second = studio.runs()
    assert [run.status for run in (first, second)] == [dg.DagsterRunStatus.SUCCESS] * 2, studio.failures(first)
    assert [run.tags["dagster-idempotent/task_id"] for run in (first, second)] == [FIRST, "2026-W32-1"]
    assert metered_provider.charges == len(metered_provider.jobs()) == 6
    picture = (folder / "assembled" / "episodes" / FIRST / "episode.png").read_bytes()
    assert frames(picture) == 3
    # Large results lie in files; nothing is published before somebody has approved it.
    assert len(list((folder / "artifacts").rglob("call_shot-*"))) == 6
    assert not (folder / "deliveries").exists()
    # A person sees progress, reference and cost of each job.
    job = metered_provider.jobs()[0].id
    lines = [entry.user_message for entry in studio.instance.all_logs(first.run_id)]
    assert f"Job {job} of call 'shot-01' at studio: running, 33% done." in lines
    assert f"Job {job} of call 'shot-01' at studio: it has ended well." in lines
    shown = studio.metadata(first)["assemble"]
    rows = [record.data for record in shown["calls"].records]
    assert [(row["call"], row["cost"], row["remote_reference"]) for row in rows] == [
        (f"shot-0{n}", "0.02 USD", metered_provider.jobs()[n - 1].id) for n in (1, 2, 3)
    ]
    assert (shown["calls_paid_now"], shown["calls_replayed"]) == (0, 3)


def test_generate_approve_retry_and_reassemble_take_a_task_and_pay_nothing_again(
    studio: Dagster, folder: Path, metered_provider: MeteredProvider, ledger_url: str
) -> None:
    # A task that nobody planned is made by none of them.
    for job in ("episodes_generate", "episodes_reassemble"):
        refused = studio.launch(job, config=for_task("existing_task"))
        assert f"{FIRST}" in studio.failures(refused)[0]
    assert metered_provider.requests() == ()
    studio.tick("episodes_schedule", TUESDAY)
    assert studio.runs()[-1].status is dg.DagsterRunStatus.SUCCESS
    again = studio.launch("episodes_generate", config=for_task("existing_task"))
    assert again.status is dg.DagsterRunStatus.SUCCESS, studio.failures(again)
    made = folder / "assembled" / "episodes" / FIRST / "episode.png"
    before = made.read_bytes()
    made.unlink()
    anew = studio.launch("episodes_reassemble", config=for_task("existing_task"))
    assert anew.status is dg.DagsterRunStatus.SUCCESS, studio.failures(anew)
    assert made.read_bytes() == before
    shown = studio.metadata(again)["persist"]["output_sha256"]
    approval = {"pipeline": "episodes", "task": FIRST, "shown_sha256": shown, **WHO}
    approved = studio.launch("idempotency_approve", config={"ops": {"approve": {"config": approval}}})
    assert approved.status is dg.DagsterRunStatus.SUCCESS, studio.failures(approved)
    published = studio.launch("episodes_generate", config=for_task("existing_task"))
    assert published.status is dg.DagsterRunStatus.SUCCESS, studio.failures(published)
    assert (folder / "deliveries" / "episodes" / FIRST / "episode.png").read_bytes() == before
    assert metered_provider.charges == 3
    with psycopg.connect(ledger_url) as connection:
        assert connection.execute("SELECT count(*) FROM dagster_idempotent.tasks").fetchone() == (1,)


def test_a_job_that_fails_at_the_studio_is_made_anew_by_a_retry_and_the_other_shots_are_not(
    studio: Dagster, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("answer_with", path_contains="GET /v1/jobs/", content='{"status": "failed", "error": {}}')
    studio.tick("episodes_schedule", TUESDAY)
    (run,) = studio.runs()
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert "ended at provider 'studio' without a result" in studio.failures(run)[0]
    assert metered_provider.charges == 3
    retried = studio.reexecute(run, "FROM_FAILURE")
    assert retried.status is dg.DagsterRunStatus.SUCCESS, studio.failures(retried)
    assert metered_provider.charges == 4
    assert len({job.key for job in metered_provider.jobs()}) == 4


def test_a_spent_poll_budget_waits_and_then_lets_go_of_the_task_without_failing_it(
    studio: Dagster, metered_provider: MeteredProvider, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MAX_WAITS", 1)
    impatient = replace(STUDIO_API, poll_budget=timedelta(0))
    monkeypatch.setattr("example_repo.studio.STUDIO_API", impatient)
    # The first shot needs three polls and gets two: one in the op, one in its own retry.
    studio.tick("episodes_schedule", TUESDAY)
    (run,) = studio.runs()
    assert run.status is dg.DagsterRunStatus.FAILURE
    lines = [entry.user_message for entry in studio.instance.all_logs(run.run_id)]
    assert any("It goes on there and is asked about later" in line and "Waiting" in line for line in lines)
    with psycopg.connect(ledger_url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        (task,) = connection.execute("SELECT * FROM dagster_idempotent.tasks").fetchall()
        states = connection.execute("SELECT state FROM dagster_idempotent.submissions").fetchall()
    assert {row["state"] for row in states} == {"accepted"}
    assert (task["status"], task["owner"]) == ("pending", None)
    paid = metered_provider.charges
    monkeypatch.setattr("example_repo.studio.STUDIO_API", STUDIO_API)
    again = studio.launch("episodes_generate", config=for_task("existing_task"))
    assert again.status is dg.DagsterRunStatus.SUCCESS, studio.failures(again)
    assert metered_provider.charges == 3 >= paid


def test_a_job_that_its_studio_has_forgotten_is_ended_by_an_operator_and_made_anew(
    studio: Dagster, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "MAX_WAITS", 0)
    monkeypatch.setattr("example_repo.studio.STUDIO_API", replace(STUDIO_API, poll_budget=timedelta(0)))
    forgotten = {"ops": {"resolve": {"config": {"pipeline": "episodes", "outcome": "failed", **WHO}}}}
    unknown = studio.launch("idempotency_resolve", config=forgotten)
    assert "There is no pipeline 'episodes'; the ledger has none yet." in studio.failures(unknown)[0]
    metered_provider.fault("status", status=404, times=None, path_contains="GET /v1/jobs/")
    studio.tick("episodes_schedule", TUESDAY)
    paid = metered_provider.charges
    assert paid >= 1
    ended = studio.launch("idempotency_resolve", config=forgotten)
    assert ended.status is dg.DagsterRunStatus.SUCCESS, studio.failures(ended)
    nothing = studio.launch("idempotency_resolve", config=forgotten)
    assert "No accepted job of pipeline 'episodes' fits the filter." in studio.failures(nothing)[0]
    metered_provider.clear_faults()
    monkeypatch.setattr("example_repo.studio.STUDIO_API", STUDIO_API)
    again = studio.launch("episodes_generate", config=for_task("existing_task"))
    assert again.status is dg.DagsterRunStatus.SUCCESS, studio.failures(again)
    assert metered_provider.charges == paid + 3
