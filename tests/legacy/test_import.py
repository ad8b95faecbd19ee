"""Old records become tasks: the right ones whole and to the letter, the others refused each with its reason (R34)."""

import json
from collections import Counter
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path

import pytest

from dagster_idempotent.domain.legacy import ACCEPTED, REASONS, LegacyRecord, LegacyState, Refusal, Verdict
from dagster_idempotent.engine.legacy_check import check_import
from dagster_idempotent.engine.verify import verify
from dagster_idempotent.errors import ConfigurationError
from tests.legacy.conftest import RIGHT, Legacy, write

# Two records each.
PAIRS = {Verdict.ONE_KEY, Verdict.SAME_CONTENT}


def test_every_record_gets_a_verdict_and_only_the_right_ones_become_tasks(
    legacy: Legacy, ambiguous: list[Verdict]
) -> None:
    of_each = 5
    right = 200 - of_each * (len(ambiguous) + len(PAIRS))
    write(legacy, ambiguous, of_each=of_each, right=right)
    assert len(list(legacy.folder.path.iterdir())) == 200
    summary = legacy.run()
    expected = {kind: of_each * (2 if kind in PAIRS else 1) for kind in ambiguous}
    assert summary.verdicts == Counter({**expected, Verdict.IMPORTED: right})
    assert summary.records == len(legacy.findings) == 200
    assert legacy.one("SELECT count(*) AS n FROM dagster_idempotent.tasks")["n"] == right
    assert all(finding.reason.startswith(REASONS[finding.verdict]) for finding in legacy.findings)


def test_a_dry_run_tells_the_same_and_writes_nothing(mixed: Legacy) -> None:
    mixed.folder.record(100, name="2021-W49-b", key="b", scheduled_at=...)
    before = mixed.state()
    dry = mixed.run(dry_run=True)
    told = list(mixed.findings)
    assert mixed.state() == before
    assert mixed.run().verdicts == dry.verdicts
    assert mixed.findings == told


def test_a_second_import_finds_everything_and_changes_nothing(mixed: Legacy) -> None:
    first = mixed.run()
    state = mixed.state()
    second = mixed.run()
    assert mixed.state() == state
    assert second.verdicts[Verdict.ALREADY_IMPORTED] == first.verdicts[Verdict.IMPORTED]
    assert second.refused == first.refused


def test_everything_that_a_record_says_is_kept_to_the_letter(legacy: Legacy) -> None:
    directory = legacy.folder.record(5)
    legacy.run()
    task = legacy.one("SELECT *, output::text AS output FROM dagster_idempotent.tasks")
    text = (directory / "state.json").read_text()
    assert task["task_id"] == "2020-W07-0"
    assert task["status"] == "completed"
    assert task["completed_at"] == datetime(2020, 2, 10, 2, 0, 0, 5, tzinfo=UTC)
    assert task["output"] in text
    assert task["output_sha256"] == sha256(task["output"].encode()).hexdigest()
    metadata = task["import_metadata"]
    assert metadata["source"] == "records/2020-W07"
    assert metadata["actor"] == "ada"
    assert datetime.fromisoformat(metadata["imported_at"]).tzinfo is not None
    artifacts = {
        row["name"]: row for row in legacy.sql.execute("SELECT * FROM dagster_idempotent.artifacts").fetchall()
    }
    assert bytes(artifacts["legacy/state.json"]["body"]) == (directory / "state.json").read_bytes()
    assert bytes(artifacts["legacy/history.json"]["body"]) == (directory / "history.json").read_bytes()
    media = artifacts["legacy/media/a.bin"]
    assert media["uri"] == "legacy:media/a.bin"
    assert media["sha256"] == sha256((directory / "media" / "a.bin").read_bytes()).hexdigest()
    calls = legacy.sql.execute("SELECT * FROM dagster_idempotent.submissions ORDER BY call_key").fetchall()
    assert [call["remote_ref"] for call in calls] == ["resp_5/ä", "resp_5-b"]
    assert [call["state"] for call in calls] == ["succeeded", "succeeded"]
    assert [str(call["cost"]) for call in calls] == ["0.150", "1.5"]
    assert all(bytes(call["response_body"]).decode() in text for call in calls)
    approval = legacy.one("SELECT * FROM dagster_idempotent.approvals")
    assert (approval["actor"], approval["created_at"]) == ("ada", datetime(2020, 2, 10, 3, tzinfo=UTC))
    assert approval["revoked_at"] is None


def test_costs_and_counters_agree_after_an_import(mixed: Legacy) -> None:
    mixed.run()
    booked = mixed.sql.execute(
        "SELECT currency, sum(amount) AS total FROM dagster_idempotent.costs WHERE kind = 'settled' GROUP BY currency"
    ).fetchall()
    for scope in ("pipeline", "period:%", "task:%"):
        counted = mixed.sql.execute(
            "SELECT currency, sum(settled) AS total FROM dagster_idempotent.budgets WHERE scope LIKE %s "
            "GROUP BY currency",
            [scope],
        ).fetchall()
        assert {row["currency"]: row["total"] for row in counted} == {row["currency"]: row["total"] for row in booked}


def test_the_ledger_verifies_after_an_import(mixed: Legacy) -> None:
    mixed.run()
    found = verify(mixed.ledger)
    assert found.findings == []
    assert found.totals["remote_references"] == 2 * RIGHT


@pytest.mark.parametrize("identity", [{}, {"scheduled_at": ..., "unrelated": True}])
def test_a_record_that_changed_after_its_import_is_refused(legacy: Legacy, identity: dict[str, object]) -> None:
    directory = legacy.folder.record(0, **identity)
    legacy.run()
    state = legacy.state()
    (directory / "state.json").write_bytes((directory / "state.json").read_bytes() + b"\n")
    legacy.run()
    assert legacy.findings[0].verdict is Verdict.OTHER_CONTENT
    assert legacy.state() == state


def test_an_old_call_of_unknown_outcome_is_in_doubt_and_holds_an_unfinished_task(legacy: Legacy) -> None:
    doubt = [{"name": "summary", "status": "unknown", "remote_reference": "r"}]
    failed = [{"name": "s", "status": "failed", "remote_reference": "r"}, {"name": "s", "status": "failed"}]
    legacy.folder.record(0, status="unfinished", calls=doubt)
    legacy.folder.record(1, status="unfinished", calls=failed)
    legacy.folder.record(2, status="failed", calls=failed)
    legacy.folder.record(3, status="completed", calls=doubt)
    legacy.run()
    assert verify(legacy.ledger).findings == []
    rows = legacy.sql.execute(
        "SELECT status, held_for, (SELECT array_agg(state ORDER BY submission) FROM dagster_idempotent.submissions s "
        "WHERE s.task_id = t.task_id) AS calls, (SELECT array_agg(revoked_at IS NULL) FROM "
        "dagster_idempotent.approvals a WHERE a.task_id = t.task_id) AS valid "
        "FROM dagster_idempotent.tasks t ORDER BY task_id"
    ).fetchall()
    assert [tuple(row.values()) for row in rows] == [
        ("held", "in_doubt", ["in_doubt"], [False]),
        ("dead", None, ["failed", "rejected"], [False]),
        ("discarded", None, ["failed", "rejected"], [False]),
        ("completed", None, ["in_doubt"], [True]),
    ]


def test_a_link_out_of_the_record_is_not_followed(legacy: Legacy, tmp_path: Path) -> None:
    directory = legacy.folder.record(0)
    (tmp_path / "secret").write_bytes((directory / "media" / "a.bin").read_bytes())
    (directory / "media" / "a.bin").unlink()
    (directory / "media" / "a.bin").symlink_to(tmp_path / "secret")
    legacy.folder.record(1).rename(tmp_path / "elsewhere")
    (legacy.folder.path / "2020-W03").symlink_to(tmp_path / "elsewhere")
    legacy.run()
    assert legacy.verdicts() == {"2020-W02": "unsafe_path", "2020-W03": "unsafe_path"}


def test_a_pipeline_that_nobody_declared_is_not_guessed(legacy: Legacy) -> None:
    with pytest.raises(ConfigurationError, match="knows no pipeline 'other'"):
        legacy.run(pipeline="other")


def test_an_adapter_brings_records_of_another_shape(legacy: Legacy) -> None:
    lines = [{"w": "2020-W02", "n": n, "usd": f"{n}.50"} for n in range(3)]
    (legacy.folder.path / "all").mkdir()
    (legacy.folder.path / "all" / "log.jsonl").write_text("\n".join(map(json.dumps, lines)))

    def adapter(folder: Path) -> list[LegacyRecord | Refusal]:
        records: list[LegacyRecord | Refusal] = []
        for line in (folder / "all" / "log.jsonl").read_bytes().splitlines():
            old = json.loads(line)
            state = LegacyState.model_validate(
                {
                    "week": old["w"],
                    "key": f"run-{old['n']}",
                    "status": "completed",
                    "completed_at": f"2020-01-0{8 - old['n']}T00:00:00Z",
                    "cost": {"amount": old["usd"], "currency": "USD"},
                }
            )
            records.append(LegacyRecord.from_state("all", state, {"log.jsonl": line}, name=str(old["n"])))
        return records

    summary = legacy.run(adapter=adapter)
    assert summary.verdicts == {Verdict.IMPORTED: 3}
    assert [finding.source for finding in legacy.findings] == ["all#2", "all#1", "all#0"]
    check = check_import(legacy.ledger, legacy.what(adapter=adapter))
    assert check.equal
    assert check.ledger.costs == {"USD": Decimal("4.50")}


def test_verdicts_are_accepted_or_say_what_is_wrong() -> None:
    assert set(REASONS) == set(Verdict)
    assert {Verdict.IMPORTED, Verdict.ALREADY_IMPORTED} == ACCEPTED
