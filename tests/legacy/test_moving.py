"""Directories of imported records are moved, and nothing else is."""

from pathlib import Path

import pytest

from dagster_idempotent.engine.legacy_check import check_import
from dagster_idempotent.errors import ConfigurationError
from tests.legacy.conftest import RIGHT, Legacy


def test_moved_directories_are_called_by_their_task_and_the_refused_stay(mixed: Legacy, tmp_path: Path) -> None:
    target = tmp_path / "imported"
    before = len(list(mixed.folder.path.iterdir()))
    summary = mixed.run(move_to=target)
    tasks = {row["task_id"] for row in mixed.sql.execute("SELECT task_id FROM dagster_idempotent.tasks").fetchall()}
    assert {path.name for path in target.iterdir()} == tasks
    assert len(list(mixed.folder.path.iterdir())) == before - RIGHT
    assert mixed.run(move_to=target).records == summary.refused
    assert check_import(mixed.ledger, mixed.what(move_to=target)).equal


def test_a_directory_is_never_moved_over_another(legacy: Legacy, tmp_path: Path) -> None:
    directory = legacy.folder.record(0)
    (tmp_path / "imported" / "2020-W02-0").mkdir(parents=True)
    legacy.run(move_to=tmp_path / "imported")
    assert directory.exists()
    assert legacy.findings[0].note == "left in place: 2020-W02-0 exists in the target"


def test_records_are_not_moved_among_themselves(legacy: Legacy) -> None:
    with pytest.raises(ConfigurationError, match="beside"):
        legacy.run(move_to=legacy.folder.path / "imported")
