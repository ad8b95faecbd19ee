"""The provider's own durable record: what arrived and what was charged.

SQLite rather than an appended file: a charge, its number and its answer become durable in one commit, and a
kill in the middle of a write leaves no torn line behind.
"""

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Self, cast

from dagster_idempotent.testing.metered_provider.answers import Answer

_SCHEMA = """
CREATE TABLE IF NOT EXISTS requests (
    sequence         INTEGER PRIMARY KEY AUTOINCREMENT,
    arrived_at       TEXT NOT NULL,
    method           TEXT NOT NULL,
    path             TEXT NOT NULL,
    client_reference TEXT,
    headers          TEXT NOT NULL,
    body             BLOB NOT NULL,
    outcome          TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS charges (
    number            INTEGER PRIMARY KEY CHECK (number > 0),
    request_id        TEXT NOT NULL UNIQUE,
    sequence          INTEGER NOT NULL UNIQUE REFERENCES requests (sequence),
    client_reference  TEXT,
    accepted_at       TEXT NOT NULL,
    amount            TEXT NOT NULL,
    currency          TEXT NOT NULL,
    body_sha256       TEXT NOT NULL,
    answer            TEXT NOT NULL,
    finished          INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS charges_by_reference ON charges (client_reference);
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request that reached the provider, accepted or not."""

    sequence: int
    arrived_at: str
    method: str
    path: str
    client_reference: str | None
    headers: Mapping[str, str]
    body: bytes
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One accepted request; `finished` says whether its answer may be seen yet."""

    number: int
    request_id: str
    sequence: int
    client_reference: str | None
    accepted_at: str
    amount: Decimal
    currency: str
    body_sha256: str
    answer: bytes
    finished: bool


class Bill:
    """All charges and arrivals in `path`; a method that writes has committed when it returns."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        # FULL syncs the log at each commit: without it a charge could be forgotten by a power cut.
        self._connection.execute("PRAGMA synchronous = FULL")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def arrive(
        self, *, method: str, path: str, client_reference: str | None, headers: Mapping[str, str], body: bytes
    ) -> int:
        """Record a request before anything is decided about it; returns its sequence number."""
        cursor = self._connection.execute(
            "INSERT INTO requests (arrived_at, method, path, client_reference, headers, body, outcome)"
            " VALUES (?, ?, ?, ?, ?, ?, 'arrived')",
            (_now(), method, path, client_reference, json.dumps(dict(headers)), body),
        )
        return cast("int", cursor.lastrowid)

    def conclude(self, sequence: int, outcome: str) -> None:
        """Record what became of a request: accepted, replayed, refused, dropped, redirected, answered."""
        self._connection.execute("UPDATE requests SET outcome = ? WHERE sequence = ?", (outcome, sequence))

    def charge(
        self,
        *,
        sequence: int,
        client_reference: str | None,
        amount: Decimal,
        currency: str,
        body_sha256: str,
        compose: Callable[[int], Answer],
    ) -> Charge:
        """Commit one charge under the next number, with the answer that `compose` makes of that number."""
        self._connection.execute("BEGIN IMMEDIATE")
        with self._connection:
            (number,) = cast(
                "tuple[int]",
                self._connection.execute("SELECT coalesce(max(number), 0) + 1 FROM charges").fetchone(),
            )
            answer = compose(number)
            self._connection.execute(
                "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0)",
                (
                    number,
                    answer.request_id,
                    sequence,
                    client_reference,
                    _now(),
                    str(amount),
                    currency,
                    body_sha256,
                    answer.body,
                ),
            )
            self._connection.execute("UPDATE requests SET outcome = 'accepted' WHERE sequence = ?", (sequence,))
        return self._charges(number=number)[0]

    def finish(self, client_reference: str | None = None, *, number: int | None = None) -> None:
        """Let look-up show the answers of one charge, of one reference or, with neither, of all."""
        self._connection.execute(
            "UPDATE charges SET finished = 1 WHERE NOT finished"
            " AND (?1 IS NULL OR client_reference = ?1) AND (?2 IS NULL OR number = ?2)",
            (client_reference, number),
        )

    def charges(self) -> list[Charge]:
        """Every charge, oldest first."""
        return self._charges()

    def find(self, client_reference: str) -> list[Charge]:
        """Every charge under a reference, oldest first."""
        return self._charges(client_reference=client_reference)

    def charge_of(self, request_id: str) -> Charge | None:
        """Return the charge of what the provider calls `request_id`."""
        found = self._charges(request_id=request_id)
        return found[0] if found else None

    def arrivals(self) -> list[Arrival]:
        """Every request that arrived, oldest first."""
        rows = self._connection.execute(
            "SELECT sequence, arrived_at, method, path, client_reference, headers, body, outcome"
            " FROM requests ORDER BY sequence"
        )
        return [
            Arrival(
                sequence=row[0],
                arrived_at=row[1],
                method=row[2],
                path=row[3],
                client_reference=row[4],
                headers=json.loads(row[5]),
                body=row[6],
                outcome=row[7],
            )
            for row in rows
        ]

    def _charges(
        self, *, number: int | None = None, client_reference: str | None = None, request_id: str | None = None
    ) -> list[Charge]:
        rows = self._connection.execute(
            "SELECT number, request_id, sequence, client_reference, accepted_at, amount, currency,"
            " body_sha256, answer, finished FROM charges"
            " WHERE (?1 IS NULL OR number = ?1) AND (?2 IS NULL OR client_reference = ?2)"
            " AND (?3 IS NULL OR request_id = ?3) ORDER BY number",
            (number, client_reference, request_id),
        )
        return [
            Charge(
                number=row[0],
                request_id=row[1],
                sequence=row[2],
                client_reference=row[3],
                accepted_at=row[4],
                amount=Decimal(row[5]),
                currency=row[6],
                body_sha256=row[7],
                answer=row[8],
                finished=bool(row[9]),
            )
            for row in rows
        ]


def _now() -> str:
    return datetime.now(UTC).isoformat()
