"""`legacy`: exit code, stdout, stderr and `--json` of its commands."""

import json
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner, Result

from dagster_idempotent.cli import main
from dagster_idempotent.domain.legacy import REASONS, Verdict

Run = Callable[..., Result]
WHO = ("--pipeline", "weekly_digest", "--actor", "ada", "--reason", "history")


@pytest.fixture
def run(ledger_url: str) -> Run:
    def do(*arguments: str) -> Result:
        result = CliRunner().invoke(
            main,
            ["legacy", *arguments],
            prog_name="dagster-idempotent",
            env={"DAGSTER_IDEMPOTENT_POSTGRES_URL": ledger_url},
        )
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return do


@pytest.fixture
def records(tmp_path: Path) -> Path:
    """Write one right record, and one without an identity."""
    for week, key in (("2020-W02", "a"), ("2020-W03", None)):
        directory = tmp_path / "records" / week
        directory.mkdir(parents=True)
        state = {
            "week": week,
            "status": "completed",
            "completed_at": "2020-01-08T00:00:00Z",
            "calls": [{"name": "c", "remote_reference": "r", "cost": {"amount": "2.50", "currency": "USD"}}],
        }
        (directory / "state.json").write_text(json.dumps(state | ({"key": key} if key else {})))
    return tmp_path / "records"


def test_import_prints_a_verdict_for_each_record_and_asks_for_a_person(run: Run, records: Path) -> None:
    done = run("import", str(records), "--timezone", "UTC", *WHO)
    assert done.exit_code == 3
    assert done.stdout.splitlines() == [
        f"2020-W03  no_identity  -  {REASONS[Verdict.NO_IDENTITY]}: week 2020-W03, subject ''",
        "2020-W02  imported  2020-W02-0",
    ]
    assert "1 imported, 1 no_identity" in done.stderr
    assert "1 of 2 records are ambiguous" in done.stderr


def test_a_dry_run_prints_the_same_document_and_writes_nothing(run: Run, records: Path, ledger_url: str) -> None:
    dry = run("import", str(records), "--timezone", "UTC", "--dry-run", "--json", *WHO)
    with psycopg.connect(ledger_url) as sql:
        assert sql.execute("SELECT count(*) FROM dagster_idempotent.pipelines").fetchone() == (0,)
    real = run("import", str(records), "--timezone", "UTC", "--json", *WHO)
    told, done = json.loads(dry.stdout), json.loads(real.stdout)
    assert (told.pop("dry_run"), done.pop("dry_run")) == (True, False)
    assert told == done
    assert done["summary"]["verdicts"] == {"imported": 1, "no_identity": 1}
    assert done["records"][1]["task_id"] == "2020-W02-0"


def test_an_empty_folder_is_an_empty_document(run: Run, tmp_path: Path) -> None:
    done = run("import", str(tmp_path), "--timezone", "UTC", "--json", *WHO)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["records"] == []


def test_an_unknown_pipeline_needs_its_timezone_once(run: Run, records: Path) -> None:
    done = run("import", str(records), *WHO)
    assert done.exit_code == 2
    assert "give its timezone" in done.stderr
    assert run("import", str(records), "--timezone", "UTC", "--without-identity", "unrelated", *WHO).exit_code == 0
    assert run("import", str(records), "--without-identity", "unrelated", *WHO).exit_code == 0
    other = run("import", str(records), "--timezone", "Europe/Berlin", *WHO)
    assert other.exit_code == 1
    assert "numbers its tasks in UTC" in other.stderr


def test_map_gives_an_imported_task_its_identity(run: Run, records: Path) -> None:
    run("import", str(records), "--timezone", "UTC", "--without-identity", "import", *WHO)
    both = run("map", "2020-W03-0", "--unrelated", "--key", "b", *WHO)
    assert both.exit_code == 2
    time = ("--scheduled-at", "2020-01-13T00:00:00Z")
    dry = run("map", "2020-W03-0", *time, "--dry-run", "--json", *WHO)
    assert json.loads(dry.stdout)["dry_run"] is True
    done = run("map", "2020-W03-0", *time, "--json", *WHO)
    assert done.exit_code == 0
    assert json.loads(done.stdout)["allocation_key"] == "weekly_digest/2020-01-13T00:00:00Z"
    again = run("map", "2020-W03-0", "--key", "other", *WHO)
    assert again.exit_code == 1
    assert "fixed once it is there" in again.stderr
    assert run("map", "2020-W03-0", "--scheduled-at", "monday", *WHO).exit_code == 2
    assert run("map", "2020-W03-0", "--scheduled-at", "2020-01-13T00:00:00", *WHO).exit_code == 2


def test_check_prints_the_same_twice_and_fails_on_a_difference(run: Run, records: Path, tmp_path: Path) -> None:
    target = tmp_path / "imported"
    run("import", str(records), "--timezone", "UTC", "--move-to", str(target), *WHO)
    arguments = ("check", str(records), "--pipeline", "weekly_digest", "--move-to", str(target))
    first = run(*arguments, "--json")
    assert first.exit_code == 0
    assert run(*arguments, "--json").stdout == first.stdout
    found = json.loads(first.stdout)
    assert found["records"] == found["ledger"] == {"tasks": 1, "files": 0, "references": 1, "costs": {"USD": "2.50"}}
    assert found["not_imported"] == 1
    (target / "2020-W02-0" / "state.json").unlink()
    lost = run(*arguments)
    assert lost.exit_code == 1
    assert "all records: tasks of the ledger is 1, of the records 0" in lost.stdout


def test_an_adapter_is_named_by_its_module(run: Run, records: Path) -> None:
    adapter = ("--adapter", "dagster_idempotent.engine.legacy_import:read_weeks")
    assert run("import", str(records), "--timezone", "UTC", *adapter, *WHO).exit_code == 3
    missing = run("import", str(records), "--adapter", "nowhere:f", *WHO)
    assert missing.exit_code == 2
    assert "cannot be loaded" in missing.stderr
