"""`calls cancel`, and an operator's word about a job that the provider has forgotten."""

import shlex
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import RemoteJobUnfinished
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "wrong cut")
MODULE = """
from dagster_idempotent import JobApi, JsonJobApi
api = JobApi(result_path="/jobs/{{id}}/result", cancel_path="/jobs/{{id}}/cancel", error_at="error.message")
studio = JsonJobApi(api, name="studio", base_url={base_url!r}, api_key_variable={key!r})
other = JsonJobApi(api, name="other", base_url={base_url!r}, api_key_variable={key!r})
"""


@pytest.fixture
def task_id(world: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Give a task with an accepted job, and a module with its provider in the current folder."""
    monkeypatch.setenv("STUDIO_KEY", "k")
    task_id = world.allocate()
    api = JobApi(result_path="/jobs/{id}/result", poll_budget=timedelta(0))
    provider = JsonJobApi(api, name="studio", base_url=world.metered.base_url, api_key_variable="STUDIO_KEY")
    work = claim(
        world.ledger, Heartbeat(world.ledger), world.pipeline, task_id, Owner("run"), is_finished=lambda _: True
    )
    with work.renewed(), pytest.raises(RemoteJobUnfinished):
        Guard(work, provider).call(CallKey("film"), {"prompt": "a forest"})
    (tmp_path / "my_studio.py").write_text(MODULE.format(base_url=world.metered.base_url, key="STUDIO_KEY"))
    monkeypatch.chdir(tmp_path)
    return task_id


def test_a_job_that_takes_longer_than_expected_is_shown_to_whoever_looks(cli: Run, world: Any, task_id: str) -> None:
    jobs = {row["check"]: row for row in cli("doctor", "--json").json()}["jobs"]
    assert jobs["health"] == "ok"
    tomorrow = world.query("SELECT now() + interval '1 day' AS x")[0]["x"]
    told = cli("explain", task_id).out
    assert f"its result was expected by {tomorrow:%Y-%m-%d}" in told
    assert "OVERDUE" not in told
    world.query("UPDATE dagster_idempotent.submissions SET settled_at = now() - interval '25 hours' RETURNING 1 AS x")
    assert "OVERDUE: its result was expected by" in cli("explain", task_id).out
    jobs = {row["check"]: row for row in cli("doctor", "--json").json()}["jobs"]
    assert (jobs["health"], world.metered.jobs()[-1].id in jobs["found"]) == ("warning", True)
    assert f"explain weekly_digest/{task_id}" in jobs["do"]
    assert cli(*shlex.split(jobs["do"].partition(":")[0])[1:]).code == 3
    # Its steps end it, and what has ended is not overdue.
    cli("calls", "resolve", task_id, "film", "--as", "failed", "--evidence", "console", *WHO)
    assert {row["check"]: row for row in cli("doctor", "--json").json()}["jobs"]["health"] == "ok"


def test_cancel_tells_what_the_provider_said_and_keeps_who_asked(cli: Run, world: Any, task_id: str) -> None:
    words = ("calls", "cancel", task_id, "film", *WHO, "--json", "-m")
    wrong = cli(*words, "my_studio:other")
    assert (wrong.code, "given are 'other'" in wrong.err) == (2, True)
    dry = cli(*words, "my_studio:studio", "--dry-run")
    assert (dry.code, world.metered.jobs()[-1].status) == (0, "running")
    done = cli(*words, "my_studio:studio")
    assert (done.json()["action"], done.json()["after"]["state"]) == ("cancelled", "failed")
    assert "submits a new one" in done.err
    assert world.metered.jobs()[-1].status == "cancelled"
    (audit,) = cli("audit", "--action", "cancel", "--json").json()
    assert (audit["actor"], audit["after"]["provider_said"]) == ("ada", "cancelled: cancelled")
    again = cli(*words, "my_studio:studio")
    assert (again.code, "is failed" in again.err) == (1, True)
    assert cli("verify").code == 0


def test_the_end_of_a_forgotten_job_is_told_by_a_person(cli: Run, world: Any, task_id: str) -> None:
    words = ("calls", "resolve", task_id, "film", "--evidence", "ticket 7", *WHO, "--json")
    assert cli(*words, "--as", "not_sent").code == 1
    done = cli(*words, "--as", "failed", "--cost", "0.02 USD")
    assert (done.json()["after"]["state"], done.json()["after"]["cost"]) == ("failed", 0.02)
    assert cli("verify").code == 0
    assert world.metered.charges == 1


@pytest.mark.parametrize("status", ["pending", "running", "dead"])
def test_explain_says_how_a_forgotten_job_ends_and_its_command_does_it(
    cli: Run, world: Any, task_id: str, status: str
) -> None:
    if status == "pending":
        released = cli("tasks", "release", task_id, *WHO)
        assert released.code == 0, released.err
    elif status == "dead":
        world.query(
            "UPDATE dagster_idempotent.tasks SET status = 'dead', owner = NULL, lease_expires_at = NULL, "
            "fencing_token = fencing_token + 1 WHERE task_id = %s RETURNING 1 AS x",
            task_id,
        )
    steps = cli("explain", task_id, "--json").json()["next"]
    (step,) = [each for each in steps if "--as failed" in each["command"]]
    assert "forgotten for good" in step["when"]
    assert world.metered.jobs()[-1].id in step["when"]
    filled = {"TEXT": "ticket 7", "NAME": "ada"}
    done = cli(*[filled.get(word, word) for word in shlex.split(step["command"])[1:]])
    assert done.code == 0, done.err
    assert world.query("SELECT state FROM dagster_idempotent.submissions") == [{"state": "failed"}]
    steps = cli("explain", task_id, "--json").json()["next"]
    assert not [each for each in steps if "calls resolve" in each["command"]]
