"""The check recomputes what was imported, and names every difference."""

from dagster_idempotent.engine.legacy_check import check_import
from tests.legacy.conftest import RIGHT, Legacy


def test_the_check_recomputes_what_the_import_kept(mixed: Legacy) -> None:
    mixed.run()
    lines: list[str] = []
    check = check_import(mixed.ledger, mixed.what(), tell=lines.append)
    assert lines == []
    assert check.records == check.ledger
    assert (check.ledger.tasks, check.ledger.files, check.ledger.references) == (RIGHT, RIGHT, 2 * RIGHT)
    assert check_import(mixed.ledger, mixed.what()) == check


def test_the_check_names_a_file_that_changed_after_the_import(legacy: Legacy) -> None:
    directory = legacy.folder.record(0)
    legacy.run()
    (directory / "media" / "a.bin").write_bytes(b"changed")
    lines: list[str] = []
    check = check_import(legacy.ledger, legacy.what(), tell=lines.append)
    assert not check.equal
    assert "media/a.bin has the hash" in lines[0]


def test_the_check_names_a_ledger_that_says_something_else(legacy: Legacy) -> None:
    legacy.folder.record(0)
    legacy.run()
    legacy.sql.execute("SET session_replication_role = replica")
    legacy.sql.execute("UPDATE dagster_idempotent.costs SET amount = amount + 1 WHERE currency = 'EUR'")
    legacy.sql.execute("UPDATE dagster_idempotent.submissions SET remote_ref = 'x' WHERE call_key = 'title'")
    lines: list[str] = []
    check_import(legacy.ledger, legacy.what(), tell=lines.append)
    assert {line.split(" of ")[0] for line in lines} == {
        "2020-W02: costs",
        "2020-W02: counters",
        "2020-W02: references",
        "all records: costs",
    }
