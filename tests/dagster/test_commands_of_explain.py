"""The commands by which `explain` has a task launched again are those of the installed `dagster`."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from locations import loaded_anew
from real_dagster import CODE, Dagster

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.engine.allocator import Allocator, get_task
from dagster_idempotent.engine.explain import explain
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.testing.metered_provider import MeteredProvider

PARTITION = "acme|2026-08-03"
TASK = "2026-W32-0"


@pytest.fixture
def typed(folder: Path, dagster: Dagster) -> Callable[[str], None]:
    """Type a command in a project's folder, as a person does who pastes it; its backfill and its runs go to the end."""
    project = folder.with_name("project")
    project.mkdir()
    location = f"{{relative_path: {CODE}, location_name: first}}"
    (project / "workspace.yaml").write_text(f"load_from:\n  - python_file: {location}\n")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    here = os.pathsep.join(map(os.fspath, (Path(__file__).parents[2], CODE.parent)))

    def run(command: str) -> None:
        known = {backfill.backfill_id for backfill in dagster.instance.get_backfills()}
        done = subprocess.run(
            shlex.split(command),
            cwd=project,
            env=os.environ | {"PATH": path, "PYTHONPATH": here, "DAGSTER_HOME": dagster.instance.root_directory},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        for backfill in dagster.instance.get_backfills():
            if backfill.backfill_id not in known:
                dagster.finish_backfill(backfill.backfill_id)
        dagster.work_off_queue()

    return run


def launching(ledger: Database, pipeline: str, task_id: str) -> str:
    found = [
        step.command
        for step in explain(
            ledger,
            TaskRef(pipeline=pipeline, task_id=task_id),  # type: ignore[arg-type]
            providers=f"{CODE.stem}:defs",
        ).next
        if step.command.startswith("dagster ")
    ]
    return found[0]


def status(ledger: Database, pipeline: str, task_id: str) -> str:
    return str(get_task(ledger, pipeline, task_id).status)  # type: ignore[arg-type]


def test_a_partition_is_launched_again_and_replays(
    dagster: Dagster, ledger: Database, metered_provider: MeteredProvider, typed: Any, folder: Path
) -> None:
    (folder / "after_payment_weekly_digest").touch()
    assert dagster.launch("weekly_digest", partition=PARTITION).status is dg.DagsterRunStatus.FAILURE
    typed(launching(ledger, "weekly_digest", TASK))
    assert status(ledger, "weekly_digest", TASK) == "completed"
    assert metered_provider.charges == 1


@pytest.mark.parametrize(
    ("asset", "pipeline", "partition"),
    [("report", "report", "2026-08-03"), ("weekly_digest_asset", "weekly_digest", PARTITION)],
)
def test_an_asset_is_materialised_again_and_replays(
    dagster: Dagster,
    ledger: Database,
    metered_provider: MeteredProvider,
    typed: Any,
    folder: Path,
    *,
    asset: str,
    pipeline: str,
    partition: str,
) -> None:
    (folder / f"after_payment_{pipeline}").touch()
    assert dagster.materialise(asset, partition).status is dg.DagsterRunStatus.FAILURE
    typed(launching(ledger, pipeline, TASK))
    assert status(ledger, pipeline, TASK) == "completed"
    assert metered_provider.charges == 1


def test_a_run_without_a_partition_is_launched_again_by_its_key(
    dagster: Dagster, ledger: Database, metered_provider: MeteredProvider, typed: Any, folder: Path
) -> None:
    (folder / "after_payment_nightly").touch()
    config = {"ops": {"allocate": {"config": {"explicit_key": "order-17"}}}}
    assert dagster.launch("nightly", config=config).status is dg.DagsterRunStatus.FAILURE
    row = ledger.run(lambda c: c.execute("SELECT task_id FROM dagster_idempotent.tasks").fetchone())
    assert row is not None
    typed(launching(ledger, "nightly", row["task_id"]))
    assert status(ledger, "nightly", row["task_id"]) == "completed"
    assert metered_provider.charges == 1


def test_a_task_that_was_never_launched_is_launched_as_those_like_it_were(
    dagster: Dagster, ledger: Database, metered_provider: MeteredProvider, typed: Any, folder: Path
) -> None:
    identity = Identity(pipeline="weekly_digest", subject="globex", scheduled_at=datetime(2026, 8, 10, tzinfo=UTC))
    task_id = Allocator(ledger).allocate(loaded_anew(folder).weekly, identity).task_id
    (unknown,) = explain(ledger, TaskRef(pipeline="weekly_digest", task_id=task_id)).next
    assert "no task like it was launched from Dagster yet" in unknown.command
    assert dagster.launch("weekly_digest", partition=PARTITION).status is dg.DagsterRunStatus.SUCCESS
    typed(launching(ledger, "weekly_digest", task_id))
    assert status(ledger, "weekly_digest", task_id) == "completed"
    assert metered_provider.charges == 2
