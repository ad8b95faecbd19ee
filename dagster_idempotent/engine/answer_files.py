"""Answers that are too large for their row are written to a file first; the row then says where (R13, R33)."""

import logging
from dataclasses import replace
from types import TracebackType

from dagster_idempotent.domain.submission import Submission
from dagster_idempotent.engine.large_artifacts import LargeArtifacts, read_artifact
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.store.submissions import AnswerFile, AnswerRow, Call

logger = logging.getLogger(__name__)
# A row takes more, but every read of it, and every backup, would carry it along.
MAX_IN_TABLE = 64 * 1024 * 1024


def in_hand(row: AnswerRow, call: Call, submission: int, large: LargeArtifacts | None) -> AnswerRow:
    """Return the row of an answer that exists only here: where no file can be written, the table takes it."""
    kept = _InHand(row, call)
    with kept:
        kept.row = stored_aside(row, call, submission, large)
    return kept.row


class _InHand:
    """Keeps an answer whatever a file system raises, of which each has errors of its own."""

    def __init__(self, row: AnswerRow, call: Call) -> None:
        self.row = row
        self._call = call

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        logger.warning("answer_files.kept_in_table", extra={"call": self._call.call_key, "reason": str(error)})
        return True


def stored_aside(row: AnswerRow, call: Call, submission: int, large: LargeArtifacts | None) -> AnswerRow:
    """Return the row with its body in a file, where it is large enough for one.

    Raises ConfigurationError for a body that fits nowhere; the job it came from keeps it.
    """
    if row.body is None:
        return row
    if large is None or not large.takes(len(row.body)):
        if len(row.body) > MAX_IN_TABLE:
            raise ConfigurationError(
                f"The result of call {call.call_key!r} of task {call.task_id} has {len(row.body):,} bytes; the "
                f"ledger's table keeps at most {MAX_IN_TABLE:,}. It stays at the provider and is not submitted again. "
                "Give the ledger resource an `artifacts_uri`, where large bodies are written.",
                field="artifacts_uri",
            )
        return row
    name = f"call:{call.call_key}:{submission}"
    uri = large.write(call.pipeline, call.task_id, name, row.body)
    media_type = str((row.response or {}).get("media_type") or "application/octet-stream")
    file = AnswerFile(name=name, uri=uri, size=len(row.body), media_type=media_type)
    return replace(row, body=None, file=file)


def answer_body(call: Call, row: Submission) -> bytes | None:
    """Return the body of a stored answer, from its row or its file; None where it was pruned."""
    if row.response_body is not None or row.response_uri is None:
        return row.response_body
    what = f"The answer of call {call.call_key!r} of task {call.task_id}"
    return read_artifact(row.response_uri, sha256_of=row.response_sha256 or "", size=row.response_size or 0, what=what)
