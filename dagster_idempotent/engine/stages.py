"""The three stages: collect stores the raw artifact, transform proposes, persist commits (R21-R25)."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import AnyPipeline
from dagster_idempotent.domain.task import Raw, Task, TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.large_artifacts import StoredFile
from dagster_idempotent.engine.work import Work, stopped
from dagster_idempotent.errors import CandidateInvalid, ConfigurationError, PayloadPruned, TaskNotFound
from dagster_idempotent.store import artifacts, leases
from dagster_idempotent.store.database import Database

RAW = "raw"
# Larger bodies belong in an object store; one row of a table is a poor place for them.
MAX_ARTIFACT = 32 * 1024 * 1024
logger = logging.getLogger(__name__)
Collected = bytes | str | list[Any] | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Persisted:
    """The accepted output of a task; `accepted_now` is False where it was there already."""

    task: Task
    output: BaseModel
    accepted_now: bool


def collect(work: Work, function: Callable[[], Collected]) -> tuple[Raw, bool]:
    """Return the task's raw artifact and whether it was collected now; a stored one is never collected again."""
    pipeline, task_id = work.lease.pipeline, work.lease.task_id
    stored = work.database.run(lambda c: artifacts.get(c, pipeline, task_id, RAW))
    if stored is not None:
        return _raw(stored, task_id), False
    body, media_type = _encoded(function())
    uri = None
    if work.large is not None and work.large.takes(len(body)):
        uri = work.large.write(pipeline, task_id, RAW, body)
    else:
        _check_size(body)
    first = work.database.run(
        lambda c: artifacts.store(c, pipeline, task_id, name=RAW, body=body, media_type=media_type, uri=uri)
    )
    return get_raw(work.database, pipeline, task_id), first


def get_raw(database: Database, pipeline: str, task_id: TaskId) -> Raw:
    """Read the raw artifact by task, whichever run stored it."""
    stored = database.run(lambda c: artifacts.get(c, pipeline, task_id, RAW))
    if stored is None:
        raise TaskNotFound(
            f"Task {task_id} of pipeline {pipeline!r} has no raw artifact yet: its collect op has not succeeded. "
            "Run collect first; nothing was sent.",
            pipeline=pipeline,
            task_id=task_id,
        )
    return _raw(stored, task_id)


def _raw(stored: artifacts.Stored, task_id: TaskId) -> Raw:
    body = stored.body
    if body is None:
        what = f"Raw artifact {stored.name!r} of task {task_id}"
        body = StoredFile(uri=stored.uri or "", sha256=stored.sha256, size=stored.size, what=what).read()
    return Raw(
        name=stored.name,
        sha256=stored.sha256,
        size=stored.size,
        media_type=stored.media_type,
        body=body,
        uri=stored.uri,
    )


def persist(
    work: Work, candidate: object, *, dagster_run_id: str, channels: Mapping[str, bool] | None = None
) -> Persisted:
    """Validate a candidate and commit it with its outbox rows; a completed task returns what it has.

    `channels` maps channel names to whether they deduplicate. Raises CandidateInvalid (the task is not completed),
    or LeaseLost or TaskHeld (nothing was written).
    """
    output = validated(work.pipeline, candidate)
    text = output.model_dump_json()
    done = work.database.run(
        lambda c: leases.complete(
            c,
            work.lease,
            output=text,
            sha256=sha256(text.encode()).hexdigest(),
            completed_by=dagster_run_id,
            channels=channels or {},
        )
    )
    if done is not None:
        return Persisted(task=done, output=output, accepted_now=True)
    # No row: the lease is lost, or it was committed and the reply was lost. The record says which.
    task = get_task(work.database, work.lease.pipeline, work.lease.task_id)
    if task.status is not TaskStatus.COMPLETED:
        raise stopped(work.database, work.lease)
    if task.output != text:
        logger.warning("persist.other_output_kept", extra={"task": task.task_id, "accepted": task.output_sha256})
    return Persisted(task=task, output=stored_output(work.pipeline, task), accepted_now=False)


def stored_output(pipeline: AnyPipeline, task: Task) -> BaseModel:
    """Return the accepted output of a completed task as the pipeline's model."""
    if task.output is None:
        raise PayloadPruned(
            f"The output of task {task.task_id} was pruned; its hash {task.output_sha256} is kept.",
            task_id=task.task_id,
        )
    try:
        return pipeline.output.model_validate_json(task.output)
    except ValidationError as error:
        raise ConfigurationError(
            f"The accepted output of task {task.task_id} does not fit {pipeline.output.__name__} as it is now: "
            f"{_problems(error)}. An accepted output never changes: keep the model able to read it, for example by "
            "giving new fields a default.",
            field="output",
        ) from error


def validated(pipeline: AnyPipeline, candidate: object) -> BaseModel:
    """Return the candidate as the pipeline's output model; raises CandidateInvalid naming what is wrong."""
    model = pipeline.output
    if candidate in (None, "", b"", [], {}):
        raise CandidateInvalid(
            f"The candidate is empty ({candidate!r}), expected a {model.__name__}. The task is not completed; paid "
            "answers stay stored. Return the values that the model needs.",
            problems=[],
        )
    try:
        if isinstance(candidate, BaseModel):
            # Through JSON, as it will be read again: what cannot make the journey is refused now, not at a replay.
            return model.model_validate_json(candidate.model_dump_json())
        if isinstance(candidate, str | bytes):
            return model.model_validate_json(candidate)
        return model.model_validate_json(model.model_validate(candidate).model_dump_json())
    except ValidationError as error:
        raise CandidateInvalid(
            f"The candidate does not fit {model.__name__}: {_problems(error)}. The task is not completed; paid answers "
            "stay stored, and another try is another call key.",
            problems=error.errors(include_url=False, include_input=False, include_context=False),
        ) from error
    except PydanticSerializationError as error:
        raise CandidateInvalid(
            f"The candidate cannot be written as JSON: {error}. The task is not completed; paid answers stay stored.",
            problems=[],
        ) from error


def _problems(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)
    return "; ".join(
        f"{'/'.join(str(part) for part in each['loc']) or 'the whole'}: {each['msg']}" for each in found[:5]
    )


def _encoded(collected: object) -> tuple[bytes, str]:
    match collected:
        case bytes():
            body, media_type = collected, "application/octet-stream"
        case str() | dict() | list():
            try:
                text = collected if isinstance(collected, str) else _json(collected)
                body = text.encode("utf-8")
            except (TypeError, ValueError, RecursionError) as error:
                raise ConfigurationError(
                    f"collect returned a value that UTF-8 or JSON cannot carry: {error}. Return bytes, text, or plain "
                    "lists and objects.",
                    field="collect",
                ) from error
            media_type = "text/plain; charset=utf-8" if isinstance(collected, str) else "application/json"
        case _:
            raise ConfigurationError(
                f"collect returned {type(collected).__name__}, expected bytes, str, a list or a dict.",
                field="collect",
            )
    return body, media_type


def _check_size(body: bytes) -> None:
    if len(body) > MAX_ARTIFACT:
        raise ConfigurationError(
            f"collect returned {len(body):,} bytes; the ledger's table keeps at most {MAX_ARTIFACT:,}. Give the ledger "
            "resource an `artifacts_uri`, where large bodies are written, or return a document that names and hashes "
            "them.",
            field="collect",
        )


def _json(value: Any) -> str:  # noqa: ANN401 - json refuses what it cannot write
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
