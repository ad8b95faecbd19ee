"""What each command speaks of in its transcript: each case makes it, and gives the words that follow the command."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import RemoteJobUnfinished
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "ticket 812")
TASK = "2026-W32-0"
KEY = "METERED_PROVIDER_KEY"
JOBS = JobApi(result_path="/jobs/{id}/result", poll_budget=timedelta(0))


class Stage:
    """What a transcript needs around it."""

    def __init__(self, cli: Run, world: Any, folder: Path) -> None:
        self.cli, self.world, self.folder = cli, world, folder


# Each makes what its command speaks of, and returns the words that follow the command.


def nothing(_: Stage) -> list[str]:
    return []


def done(stage: Stage) -> list[str]:
    stage.world.run(stage.world.allocate(), channels={"email": True})
    return []


def done_task(stage: Stage) -> list[str]:
    done(stage)
    return [TASK]


def paid_call(stage: Stage) -> list[str]:
    return [*done_task(stage), "summary"]


def collected(stage: Stage) -> list[str]:
    task_id = stage.world.allocate()
    work = stage.world.claim(task_id)
    with work.renewed():
        stages.collect(work, lambda: {"documents": ["one", "two"]})
    return [task_id]


def in_doubt(stage: Stage) -> list[str]:
    return [stage.world.settled_down(stage.world.doubtful())]


def call_in_doubt(stage: Stage) -> list[str]:
    return [*in_doubt(stage), "summary"]


def dead(stage: Stage) -> list[str]:
    stage.world.max_attempts = 1
    return [stage.world.dead()]


def failed(stage: Stage) -> list[str]:
    task_id = stage.world.allocate()
    stage.world.metered.fault("status", status=422)
    stage.world.run(task_id)
    return [task_id]


def at_the_gate(stage: Stage) -> list[str]:
    stage.world.gate = "spend"
    stage.world.run(stage.world.allocate())
    (row,) = stage.cli("approvals", "list", "--json").json()
    return [TASK, "--shown", row["shown_sha256"]]


def approved(stage: Stage) -> list[str]:
    assert stage.cli("approvals", "approve", *at_the_gate(stage), *WHO).code == 0
    return [str(row["id"]) for row in stage.cli("approvals", "list", "--json").json()]


def over_budget(stage: Stage) -> list[str]:
    stage.world.budget = Budget.per_task("0.01 USD")
    stage.world.run(stage.world.allocate())
    return [TASK]


def frozen(stage: Stage) -> list[str]:
    stage.world.allocate()
    assert stage.cli("pipelines", "freeze", "weekly_digest", *WHO).code == 0
    return ["weekly_digest"]


def a_pipeline(stage: Stage) -> list[str]:
    stage.world.allocate()
    return ["weekly_digest"]


def message_in_doubt(stage: Stage) -> list[str]:
    done(stage)
    stage.world.query(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', sender = gen_random_uuid(), "
        "sender_expires_at = clock_timestamp() RETURNING 1 AS x"
    )
    return [TASK, "email", "--as", "delivered", "--evidence", "the sent folder"]


def decided(stage: Stage) -> list[str]:
    assert stage.cli("pipelines", "freeze", *a_pipeline(stage), *WHO).code == 0
    return []


def record(stage: Stage) -> list[str]:
    directory = stage.folder / "records" / "2020-W02"
    directory.mkdir(parents=True)
    state = {"week": "2020-W02", "status": "completed", "completed_at": "2020-01-08T00:00:00Z", "unrelated": False}
    (directory / "state.json").write_text(json.dumps(state | {"key": "a"}))
    return [str(stage.folder / "records"), "--pipeline", "weekly_digest", "--timezone", "UTC"]


def imported(stage: Stage) -> list[str]:
    words = record(stage)
    assert stage.cli("legacy", "import", *words, *WHO).code == 0
    return words[:3]


def unmapped(stage: Stage) -> list[str]:
    words = record(stage)
    (stage.folder / "records" / "2020-W02" / "state.json").write_text(
        json.dumps({"week": "2020-W02", "status": "completed", "completed_at": "2020-01-08T00:00:00Z"})
    )
    assert stage.cli("legacy", "import", *words, "--without-identity", "import", *WHO).code == 0
    return ["2020-W02-0", "--key", "a", "--pipeline", "weekly_digest"]


def reconcilable(stage: Stage) -> list[str]:
    found = in_doubt(stage)
    stage.world.metered.configure(lookup=True)
    return [*found, "-m", "my_providers:provider"]


def charged_twice(stage: Stage) -> list[str]:
    done(stage)
    stage.world.query(
        "INSERT INTO dagster_idempotent.sightings "
        "(pipeline, task_id, call_key, submission, kind, remote_ref, described) VALUES "
        "('weekly_digest', %s, 'summary', 1, 'charged_again', 'req-2', 'beside req-1') RETURNING 1 AS x",
        TASK,
    )
    return [TASK, "summary"]


def accepted_job(stage: Stage) -> list[str]:
    task_id = stage.world.allocate()
    provider = JsonJobApi(JOBS, name="studio", base_url=stage.world.metered.base_url, api_key_variable=KEY)
    work = claim(
        stage.world.ledger,
        Heartbeat(stage.world.ledger),
        stage.world.pipeline,
        task_id,
        Owner("run"),
        is_finished=lambda _: True,
    )
    with work.renewed(), pytest.raises(RemoteJobUnfinished):
        Guard(work, provider).call(CallKey("film"), {"prompt": "a forest"})
    return [task_id, "film", "-m", "my_providers:studio"]


CASES: dict[str, tuple[Callable[[Stage], list[str]], list[str]]] = {
    "approvals approve": (at_the_gate, [*WHO]),
    "approvals list": (at_the_gate, []),
    "approvals revoke": (approved, [*WHO]),
    "audit": (decided, []),
    "budgets release": (over_budget, [*WHO]),
    "budgets set": (a_pipeline, ["5.00 USD", *WHO]),
    "budgets show": (over_budget, ["--all"]),
    "calls answer": (paid_call, []),
    "calls abandon": (call_in_doubt, [*WHO]),
    "calls acknowledge": (charged_twice, [*WHO]),
    "calls cancel": (accepted_job, [*WHO]),
    "calls list": (in_doubt, []),
    "calls reconcile": (reconcilable, []),
    "calls resend": (call_in_doubt, ["--may-charge-twice", *WHO]),
    "calls resolve": (call_in_doubt, ["--as", "not_sent", "--evidence", "no. 7", *WHO]),
    "calls show": (call_in_doubt, []),
    "costs": (done, []),
    "dead-letters discard": (dead, [*WHO]),
    "dead-letters list": (dead, []),
    "dead-letters redrive": (dead, [*WHO]),
    "dead-letters show": (dead, []),
    "doctor": (nothing, []),
    "explain": (in_doubt, []),
    "legacy check": (imported, []),
    "legacy import": (record, [*WHO]),
    "legacy map": (unmapped, [*WHO]),
    "outbox deliver": (done_task, ["-m", "my_channels:channels"]),
    "outbox list": (done, []),
    "outbox resolve": (message_in_doubt, [*WHO]),
    "pipelines freeze": (a_pipeline, [*WHO]),
    "pipelines list": (frozen, []),
    "pipelines unfreeze": (frozen, [*WHO]),
    "postgres start": (nothing, []),
    "postgres status": (nothing, []),
    "postgres stop": (nothing, ["--dry-run"]),
    "prune": (done, ["--older-than", "0s", *WHO]),
    "schema check": (nothing, []),
    "schema sql": (nothing, []),
    "schema upgrade": (nothing, []),
    "tasks artifact": (collected, []),
    "tasks list": (failed, []),
    "tasks output": (done_task, []),
    "tasks release": (failed, [*WHO]),
    "tasks show": (done_task, []),
    "verify": (done, []),
}
# What they print is the server's or the provider's, or too long to keep.
NO_TEXT = {"calls answer", "doctor", "tasks output", "schema sql", "postgres start", "postgres status"}
SELECTS = {
    "approvals list",
    "outbox list",
    "calls list",
    "tasks list",
    "dead-letters list",
    "pipelines list",
    "budgets show",
}
