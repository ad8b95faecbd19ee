"""Reading what the ledger keeps of a task for a person: raw artifacts, answers, the accepted output."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from dagster_idempotent.domain.submission import CallKey, Submission, SubmissionState
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.answer_files import stored_answer
from dagster_idempotent.engine.large_artifacts import StoredFile
from dagster_idempotent.engine.listing import unknown_call
from dagster_idempotent.errors import IdempotentError, PayloadPruned
from dagster_idempotent.providers.outcome import Answer, AnswerInFile
from dagster_idempotent.store import artifacts, listing, submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.submissions import Call

JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """Bytes as they were stored, and what they are where that was recorded; `uri` where they lie outside the ledger."""

    name: str
    media_type: str | None
    sha256: str
    size: int
    source: Answer
    uri: str | None = None

    def read(self) -> bytes:
        """Return the bytes at once."""
        return self.source.body

    def pieces(self) -> Iterator[bytes]:
        """Give the bytes piece by piece."""
        return self.source.pieces()


def artifact(database: Database, ref: TaskRef, name: str) -> Payload:
    """Read an artifact; raises IdempotentError naming those there are, PayloadPruned or ArtifactDamaged."""
    stored = database.run(lambda c: artifacts.get(c, ref.pipeline, ref.task_id, name))
    if stored is None:
        names = [row["name"] for row in database.run(lambda c: listing.artifacts(c, ref))]
        there = f"it has {', '.join(names)}" if names else "it has none yet: its collect op has not succeeded"
        raise IdempotentError(f"Task {ref} has no artifact {name!r}; {there}.", found=names)
    if stored.body is None:
        what = f"Artifact {name!r} of task {ref}"
        file = StoredFile(uri=stored.uri or "", sha256=stored.sha256, size=stored.size, what=what)
        file.check()
        source: Answer = AnswerInFile(head={}, file=file)
    else:
        source = Answer(body=stored.body)
    return Payload(
        name=name,
        media_type=stored.media_type,
        sha256=stored.sha256,
        size=stored.size,
        source=source,
        uri=stored.uri,
    )


def output(database: Database, ref: TaskRef) -> Payload:
    """Read the accepted output, as JSON; raises IdempotentError where there is none yet, or PayloadPruned."""
    task = get_task(database, ref.pipeline, ref.task_id)
    if task.output_sha256 is None:
        raise IdempotentError(f"Task {ref} has no accepted output: it is {task.status}.", status=task.status)
    if task.output is None:
        raise PayloadPruned(
            f"The output of task {ref} was pruned; its hash {task.output_sha256} is kept.", task_id=ref.task_id
        )
    body = task.output.encode()
    return Payload(name="output", media_type=JSON, sha256=task.output_sha256, size=len(body), source=Answer(body=body))


def answer(database: Database, ref: TaskRef, call_key: str, submission: int | None = None) -> Payload:
    """Read the answer of a call: the one that is replayed, or that of a submission.

    Raises IdempotentError where there is none, PayloadPruned or ArtifactDamaged.
    """
    call = Call(pipeline=ref.pipeline, task_id=ref.task_id, call_key=CallKey(call_key))
    state = database.run(lambda c: submissions.read_call(c, call))
    if state is None or not state.submissions:
        raise unknown_call(database, ref, call_key)
    row = _answered(state.submissions, submission)
    if row is None:
        others = ", ".join(f"submission {each.submission} is {each.state}" for each in state.submissions)
        asked = "" if submission is None else f" to submission {submission}"
        raise IdempotentError(f"Call {call_key!r} of task {ref} has no stored answer{asked}: {others}.")
    stored = stored_answer(call, row)
    if stored is None:
        raise PayloadPruned(
            f"The answer of call {call_key!r} of task {ref} was pruned; its hash {row.response_sha256} is kept.",
            task_id=ref.task_id,
            call_key=call_key,
            submission=row.submission,
        )
    return Payload(
        name=f"{call_key}, submission {row.submission}",
        media_type=_media_type(row.response or {}),
        sha256=stored.sha256,
        size=len(stored.body) if row.response_size is None else row.response_size,
        source=stored,
        uri=row.response_uri,
    )


def _media_type(head: Mapping[str, object]) -> str | None:
    # A job's result says what it is; of an HTTP answer the headers are kept.
    stated = head.get("media_type")
    if stated is None and isinstance(headers := head.get("headers"), list):
        pairs = cast("list[tuple[str, str]]", headers)
        stated = next((value for name, value in pairs if name.lower() == "content-type"), None)
    return None if stated is None else str(stated)


def _answered(rows: Sequence[Submission], submission: int | None) -> Submission | None:
    answered = [row for row in rows if row.response_sha256 is not None]
    if submission is not None:
        return next((row for row in answered if row.submission == submission), None)
    replayed = [row for row in answered if row.state is SubmissionState.SUCCEEDED]
    return next(iter(replayed), None)
