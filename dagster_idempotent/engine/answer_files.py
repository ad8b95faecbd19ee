"""Answers that are too large for their row are written to a file first; the row then says where (R13, R33)."""

import logging
from dataclasses import replace
from types import TracebackType

from dagster_idempotent.domain.submission import Submission
from dagster_idempotent.engine.large_artifacts import LargeArtifacts, StoredFile
from dagster_idempotent.engine.spool import Spool
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.outcome import Answer, AnswerInFile
from dagster_idempotent.store.submissions import AnswerFile, AnswerRow, Call

logger = logging.getLogger(__name__)
# A row takes more, but every read of it, and every backup, would carry it along.
MAX_IN_TABLE = 64 * 1024 * 1024
# Far beyond what a job makes: it keeps an answer without an end from filling the disk.
MAX_IN_FILE = 16 * 1024 * 1024 * 1024


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


def spool_for(call: Call, large: LargeArtifacts | None) -> Spool:
    """Return what takes the result of a remote job as it comes in; raises ConfigurationError for one that fits nowhere.

    The job keeps its result: nothing is submitted again.
    """
    most = MAX_IN_TABLE if large is None else MAX_IN_FILE
    return Spool(most, lambda: _too_large(call, f"more than {most:,} bytes"))


def stored_aside(
    row: AnswerRow, call: Call, submission: int, large: LargeArtifacts | None, *, spool: Spool | None = None
) -> AnswerRow:
    """Return the row with its body, or with what `spool` took, in a file, where it is large enough for one.

    Raises ConfigurationError for a body that fits nowhere; the job it came from keeps it.
    """
    body = row.body if spool is None else spool
    if body is None:
        return row
    size = body.size if isinstance(body, Spool) else len(body)
    if spool is not None:
        row = replace(row, sha256=spool.sha256)
    if large is None or not large.takes(size):
        if size > MAX_IN_TABLE:
            raise _too_large(call, f"{size:,} bytes")
        return replace(row, body=body.read() if isinstance(body, Spool) else body)
    name = f"call:{call.call_key}:{submission}"
    uri = large.write(call.pipeline, call.task_id, name, body)
    media_type = str((row.response or {}).get("media_type") or "application/octet-stream")
    return replace(row, body=None, file=AnswerFile(name=name, uri=uri, size=size, media_type=media_type))


def stored_answer(call: Call, row: Submission) -> Answer | None:
    """Return a stored answer, from its row or its file, of which every byte was compared; None where it was pruned."""
    head = row.response or {}
    if row.response_body is not None:
        return Answer(head=head, body=row.response_body)
    if row.response_uri is None:
        return None
    what = f"The answer of call {call.call_key!r} of task {call.task_id}"
    file = StoredFile(uri=row.response_uri, sha256=row.response_sha256 or "", size=row.response_size or 0, what=what)
    file.check()
    return AnswerInFile(head=head, file=file)


def _too_large(call: Call, size: str) -> ConfigurationError:
    return ConfigurationError(
        f"The result of call {call.call_key!r} of task {call.task_id} has {size}; the ledger's table keeps at most "
        f"{MAX_IN_TABLE:,}, a file {MAX_IN_FILE:,}. It stays at the provider and is not submitted again. Give the "
        "ledger resource an `artifacts_uri`, where large bodies are written.",
        field="artifacts_uri",
    )
