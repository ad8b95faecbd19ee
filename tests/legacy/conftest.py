"""Old records on disk, and what their import leaves in a ledger."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.legacy import Verdict
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.legacy_import import Finding, Import, Summary, import_records
from dagster_idempotent.store.database import Database

MONDAY = datetime(2020, 1, 6, tzinfo=UTC)
RIGHT = 12
TABLES = ("tasks", "artifacts", "submissions", "costs", "budgets", "approvals", "audit", "outbox")
# What depends on the moment or on chance.
ACCIDENTAL = {"id", "at", "created_at", "booked_at", "sender", "imported_at", "import_id"}


class Digest(BaseModel):
    title: str


DIGEST = Pipeline("weekly_digest", output=Digest)


def week_of(monday: datetime) -> str:
    year, week, _ = monday.isocalendar()
    return f"{year}-W{week:02d}"


def state_of(number: int, **changes: object) -> dict[str, Any]:
    """Give the state of the record of one week: two calls, one approval, one file."""
    monday = MONDAY + timedelta(weeks=number)
    state: dict[str, Any] = {
        "week": week_of(monday),
        "scheduled_at": monday.isoformat(),
        "status": "completed",
        "completed_at": (monday + timedelta(hours=2, microseconds=number)).isoformat(),
        "calls": [
            {
                "name": "summary",
                "provider": "somebody",
                "remote_reference": f"resp_{number}/ä",
                "cost": {"amount": f"0.{number % 90 + 10}0", "currency": "USD"},
                "sent_at": monday.isoformat(),
            },
            {"name": "title", "remote_reference": f"resp_{number}-b", "cost": {"amount": 1.5, "currency": "EUR"}},
        ],
        "approvals": [{"who": "ada", "when": (monday + timedelta(hours=3)).isoformat()}],
        "media": [{"path": "media/a.bin", "sha256": sha256(media_of(number)).hexdigest()}],
        "output": {"title": f"Week {number}"},
    }
    return {name: value for name, value in (state | changes).items() if value is not ...}


def media_of(number: int) -> bytes:
    return f"media of {number}\r\n".encode() * 3


class Folder:
    """A folder of old records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def record(self, number: int, *, name: str = "", body: bytes | None = None, **changes: object) -> Path:
        """Write a record as it should be, but for the changes; `...` leaves a field out."""
        state = state_of(number, **changes)
        directory = self.path / (name or state["week"])
        (directory / "media").mkdir(parents=True)
        (directory / "media" / "a.bin").write_bytes(media_of(number) if body is None else body)
        text = json.dumps(state, indent=1, ensure_ascii=False)
        (directory / "state.json").write_bytes(text.encode())
        (directory / "history.json").write_bytes(b'[ {"status": "running"} ]\r\n')
        return directory

    def broken(self, kind: Verdict, number: int) -> None:
        """Write a record (or two) that nothing but a person can decide."""
        change = _AMBIGUOUS.get(kind)
        if change is not None:
            self.record(number, **change(state_of(number)))
            return
        match kind:
            case Verdict.UNREADABLE:
                (self.record(number) / "state.json").write_text('{"week": "2020-W0')
            case Verdict.MISSING_FILE:
                (self.record(number) / "media" / "a.bin").unlink()
            case Verdict.HASH_MISMATCH:
                self.record(number, body=b"somebody edited this")
            case Verdict.WRONG_WEEK:
                self.record(number, name=f"1999-W01-{number}")
            case Verdict.ONE_KEY:
                week = state_of(number)["week"]
                self.record(number)
                self.record(number, name=f"{week}-again", output={"title": "another"})
            case Verdict.SAME_CONTENT:
                week = state_of(number)["week"]
                for name in (week, f"{week}-copy"):
                    self.record(number, name=name, scheduled_at=..., unrelated=True)
            case _:
                raise AssertionError(kind)


Change = Callable[[dict[str, Any]], dict[str, Any]]
_AMBIGUOUS: dict[Verdict, Change] = {
    Verdict.INVALID: lambda _: {"completedAt": "2020-01-01"},
    Verdict.NAIVE_DATETIME: lambda state: {"completed_at": state["completed_at"].removesuffix("+00:00")},
    Verdict.INVALID_IDENTITY: lambda _: {"subject": "a\u200bb"},
    Verdict.NO_IDENTITY: lambda _: {"scheduled_at": ...},
    Verdict.SCHEDULED_ELSEWHERE: lambda _: {"scheduled_at": "1999-01-04T00:00:00Z"},
    Verdict.UNKNOWN_CURRENCY: lambda _: {"calls": [{"name": "c", "cost": {"amount": "1", "currency": "UDS"}}]},
    Verdict.INVALID_AMOUNT: lambda _: {"calls": [{"name": "c", "cost": {"amount": "-1", "currency": "USD"}}]},
    Verdict.COST_MISMATCH: lambda state: {
        "calls": state["calls"][:1],
        "cost": {"amount": "99", "currency": "USD"},
    },
    Verdict.UNCLEAR_COST: lambda _: {
        "calls": [{"name": "c", "status": "unknown", "cost": {"amount": "1", "currency": "USD"}}]
    },
    Verdict.UNSAFE_PATH: lambda _: {"media": [{"path": "../../secrets", "sha256": "0" * 64}]},
}
# What a record alone, or two of a folder, can be refused for.
AMBIGUOUS = sorted(
    {*_AMBIGUOUS, Verdict.UNREADABLE, Verdict.MISSING_FILE, Verdict.HASH_MISMATCH, Verdict.WRONG_WEEK}
    | {Verdict.ONE_KEY, Verdict.SAME_CONTENT}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Legacy:
    """A folder, a ledger and the import between them."""

    folder: Folder
    ledger: Database
    sql: psycopg.Connection[dict[str, Any]]
    findings: list[Finding]

    def what(self, **options: Any) -> Import:
        defaults = {"pipeline": DIGEST, "folder": self.folder.path, "actor": "ada", "reason": "history"}
        return Import(**(defaults | options))

    def run(self, *, dry_run: bool = False, **options: object) -> Summary:
        """Import; `findings` holds the verdicts of the last run."""
        self.findings.clear()
        return import_records(self.ledger, self.what(**options), dry_run=dry_run, tell=self.findings.append)

    def verdicts(self) -> dict[str, str]:
        return {finding.source: finding.verdict for finding in self.findings}

    def state(self) -> dict[str, list[str]]:
        return self.state_in(self.sql)

    @staticmethod
    def state_in(sql: psycopg.Connection[dict[str, Any]]) -> dict[str, list[str]]:
        return ledger_state(sql)

    def one(self, query: str, *parameters: object) -> dict[str, Any]:
        row = self.sql.execute(query, parameters).fetchone()  # pyright: ignore[reportArgumentType]
        assert row is not None
        return row


def ledger_state(sql: psycopg.Connection[dict[str, Any]]) -> dict[str, list[str]]:
    """Give all rows of a ledger, without what depends on the moment or on chance."""
    state: dict[str, list[str]] = {}
    for table in TABLES:
        rows = sql.execute(f"SELECT to_jsonb(t) AS row FROM dagster_idempotent.{table} t").fetchall()  # noqa: S608
        state[table] = sorted(json.dumps(_lasting(row["row"]), sort_keys=True) for row in rows)
    return state


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {name: _lasting(part) for name, part in value.items() if name not in ACCIDENTAL}
        # An approval's own moment is the record's, and is kept.
        return kept | ({"created_at": value["created_at"]} if "gate" in value and "actor" in value else {})
    return value


@pytest.fixture
def legacy(tmp_path: Path, ledger: Database, sql: psycopg.Connection[dict[str, Any]]) -> Legacy:
    return Legacy(folder=Folder(tmp_path / "records"), ledger=ledger, sql=sql, findings=[])


@pytest.fixture
def ambiguous() -> list[Verdict]:
    return AMBIGUOUS


@pytest.fixture
def pipeline() -> Pipeline[Digest]:
    return DIGEST


@pytest.fixture
def folder_of() -> Callable[[Path], Folder]:
    return Folder


def write(legacy: Legacy, kinds: list[Verdict], *, of_each: int, right: int) -> None:
    """Write right records, and before them ambiguous ones of each kind."""
    for number, kind in enumerate(kind for kind in kinds for _ in range(of_each)):
        legacy.folder.broken(kind, number)
    for number in range(of_each * len(kinds), of_each * len(kinds) + right):
        legacy.folder.record(number)


@pytest.fixture
def mixed(legacy: Legacy, ambiguous: list[Verdict]) -> Legacy:
    write(legacy, ambiguous, of_each=1, right=RIGHT)
    return legacy
