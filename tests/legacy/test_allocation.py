"""Imported tasks and new ones share keys and numbers; a person maps what has no key."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.legacy import Verdict, WithoutIdentity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.legacy_import import map_task
from dagster_idempotent.errors import IdentityConflict, TaskNotFound
from tests.legacy.conftest import Legacy


def test_records_of_one_week_are_numbered_by_completion_then_by_name(legacy: Legacy) -> None:
    for name, hour in (("2020-W02-z", 1), ("2020-W02-a", 3), ("2020-W02-m", 2), ("2020-W02-b", 3)):
        legacy.folder.record(0, name=name, key=name, scheduled_at=..., completed_at=f"2020-01-07T0{hour}:00:00Z")
    legacy.run()
    assert [(finding.source, finding.task_id) for finding in legacy.findings] == [
        ("2020-W02-z", "2020-W02-0"),
        ("2020-W02-m", "2020-W02-1"),
        ("2020-W02-a", "2020-W02-2"),
        ("2020-W02-b", "2020-W02-3"),
    ]


def test_allocation_goes_on_after_an_import_into_the_current_week(legacy: Legacy, pipeline: Pipeline[Any]) -> None:
    now = datetime.now(UTC)
    monday = now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=now.weekday())
    weeks = (monday - datetime(2020, 1, 6, tzinfo=UTC)).days // 7
    allocator = Allocator(legacy.ledger)
    first = allocator.allocate(pipeline, Identity(pipeline=pipeline.name, subject="first", scheduled_at=monday))
    legacy.folder.record(weeks)
    legacy.run()
    identity = Identity(pipeline=pipeline.name, scheduled_at=monday)
    imported = allocator.allocate(pipeline, identity)
    following = allocator.allocate(pipeline, Identity(pipeline=pipeline.name, subject="next", scheduled_at=monday))
    assert (first.sequence, imported.sequence, following.sequence) == (0, 1, 2)
    assert imported.status == "completed"


def test_a_record_whose_key_a_task_has_already_is_refused(legacy: Legacy, pipeline: Pipeline[Any]) -> None:
    identity = Identity(pipeline=pipeline.name, scheduled_at=datetime(2020, 1, 6, tzinfo=UTC))
    Allocator(legacy.ledger).allocate(pipeline, identity)
    legacy.folder.record(0)
    legacy.run()
    assert legacy.findings[0].verdict is Verdict.KEY_TAKEN
    assert "2020-W02-0" in legacy.findings[0].reason


def test_an_unmapped_import_stops_allocation_in_its_week_until_it_is_mapped(
    legacy: Legacy, pipeline: Pipeline[Any]
) -> None:
    monday = datetime(2020, 1, 6, tzinfo=UTC)
    legacy.folder.record(0, scheduled_at=...)
    legacy.folder.record(0, name="2020-W02-other", scheduled_at=..., output={"title": "other"})
    legacy.run(without_identity=WithoutIdentity.IMPORT)
    allocator = Allocator(legacy.ledger)
    identity = Identity(pipeline=pipeline.name, scheduled_at=monday)
    with pytest.raises(IdentityConflict, match="2020-W02-0, 2020-W02-1"):
        allocator.allocate(pipeline, identity)
    allocator.allocate(pipeline, Identity(pipeline=pipeline.name, scheduled_at=monday + timedelta(weeks=1)))
    words = {"pipeline": pipeline.name, "actor": "ada", "reason": "it was the tick of Monday"}
    map_task(legacy.ledger, allocator_task("2020-W02-0"), identity, dry_run=True, **words)
    with pytest.raises(IdentityConflict):
        allocator.allocate(pipeline, identity)
    map_task(legacy.ledger, allocator_task("2020-W02-0"), identity, **words)
    with pytest.raises(IdentityConflict, match="belongs to 2020-W02-0"):
        map_task(legacy.ledger, allocator_task("2020-W02-1"), identity, **words)
    map_task(legacy.ledger, allocator_task("2020-W02-1"), None, **words)
    map_task(legacy.ledger, allocator_task("2020-W02-1"), None, **words)
    assert allocator.allocate(pipeline, identity).task_id == "2020-W02-0"
    later = allocator.allocate(pipeline, Identity(pipeline=pipeline.name, subject="s", scheduled_at=monday))
    assert later.task_id == "2020-W02-2"
    assert legacy.one("SELECT count(*) AS n FROM dagster_idempotent.audit WHERE action = 'legacy_map'")["n"] == 2


def allocator_task(text: str) -> Any:
    return text


def test_mapping_refuses_what_would_be_a_guess(legacy: Legacy, pipeline: Pipeline[Any]) -> None:
    legacy.folder.record(0)
    legacy.run()
    words = {"pipeline": pipeline.name, "actor": "ada", "reason": "r"}
    elsewhere = Identity(pipeline=pipeline.name, scheduled_at=datetime(2020, 1, 13, tzinfo=UTC))
    with pytest.raises(IdentityConflict, match="lies in 2020-W03"):
        map_task(legacy.ledger, allocator_task("2020-W02-0"), elsewhere, **words)
    with pytest.raises(IdentityConflict, match="fixed once it is there"):
        map_task(legacy.ledger, allocator_task("2020-W02-0"), None, **words)
    with pytest.raises(TaskNotFound):
        map_task(legacy.ledger, allocator_task("2020-W02-7"), None, **words)
