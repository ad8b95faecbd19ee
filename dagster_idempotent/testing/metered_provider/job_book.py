"""How far each job is, on disk: a kill of the provider forgets no job.

A job exists by its charge in the bill; what stands here is only what became of it.
"""

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id         TEXT PRIMARY KEY,
    status     TEXT NOT NULL,
    progress   REAL,
    error      TEXT,
    result     BLOB,
    media_type TEXT,
    polls      INTEGER NOT NULL,
    driven     INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS files (id TEXT PRIMARY KEY, body BLOB NOT NULL);
"""
ENDED = frozenset({"succeeded", "failed", "cancelled"})
STATUSES = ("queued", "running", *sorted(ENDED))


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What became of a job; `driven` once a test has set it, so that polls do not move it any more."""

    status: str = "queued"
    progress: float | None = None
    error: str | None = None
    result: bytes | None = None
    media_type: str | None = None
    polls: int = 0
    driven: bool = False


class JobBook:
    """The states of all jobs, and uploaded files; a method that writes has committed when it returns."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.executescript(_SCHEMA)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def get(self, job_id: str) -> JobState:
        """Return the state of a job; one that nothing happened to is queued."""
        row = self._connection.execute(
            "SELECT status, progress, error, result, media_type, polls, driven FROM jobs WHERE id = ?", (job_id,)
        ).fetchone()
        if row is None:
            return JobState()
        return JobState(
            status=row[0],
            progress=row[1],
            error=row[2],
            result=row[3],
            media_type=row[4],
            polls=row[5],
            driven=bool(row[6]),
        )

    def put(self, job_id: str, state: JobState) -> JobState:
        """Store the state of a job."""
        self._connection.execute(
            "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                job_id,
                state.status,
                state.progress,
                state.error,
                state.result,
                state.media_type,
                state.polls,
                state.driven,
            ),
        )
        return state

    def keep_file(self, file_id: str, body: bytes) -> None:
        """Store an uploaded file."""
        self._connection.execute("INSERT INTO files VALUES (?, ?)", (file_id, body))

    def file(self, file_id: str) -> bytes | None:
        """Return an uploaded file."""
        row = self._connection.execute("SELECT body FROM files WHERE id = ?", (file_id,)).fetchone()
        return None if row is None else row[0]
