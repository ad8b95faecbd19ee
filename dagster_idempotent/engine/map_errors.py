"""What a map of calls says where some of them have no answer."""

from collections.abc import Callable, Mapping, Sequence

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.retry_policy import Verdict, rule_of
from dagster_idempotent.errors import CallInDoubt, CallsUnfinished, IdempotentError

SHOWN = 10


def unfinished(
    task_id: str,
    errors: Mapping[CallKey, IdempotentError],
    stop: IdempotentError | None,
    *,
    answered: int,
    total: int,
) -> CallsUnfinished:
    """Build the error of a map: which calls are in doubt, which failed, how many were not started, and what leads."""
    doubtful = [name for name, error in errors.items() if isinstance(error, CallInDoubt)]
    others = [name for name in errors if name not in set(doubtful)]
    left = total - answered - len(errors)
    parts = [f"{answered} of {total} calls of task {task_id} are answered, stored and paid for."]
    if doubtful:
        parts.append(
            f"In doubt: {_list(doubtful, errors)}. Their answers are settled by evidence, never by a new send."
        )
    if others:
        parts.append(f"Without an answer: {_list(others, errors)}.")
    if left:
        why = f": {stop.message}" if stop is not None else ", since too many failed one after the other"
        parts.append(f"Not started: {left}{why}")
    parts.append("A later run sends only what has no answer and was not sent.")
    return CallsUnfinished(
        " ".join(parts),
        task_id=task_id,
        answered=answered,
        total=total,
        in_doubt=tuple(doubtful),
        failed=tuple(others),
        not_started=left,
        retry_after=_retry_after(errors, stop),
        errors=errors,
        leading=_leading(errors, stop),
    )


def is_held(error: IdempotentError) -> bool:
    """Whether a call waits for a person."""
    return isinstance(error, CallInDoubt) and error.retry_after is None


def _leading(errors: Mapping[CallKey, IdempotentError], stop: IdempotentError | None) -> IdempotentError | None:
    """Return what decides about the task: an error that holds it, else ends it, else fails the attempt, else waits."""
    tests: Sequence[Callable[[IdempotentError], bool]] = (
        is_held,
        lambda error: error is stop,
        lambda error: rule_of(error).verdict is Verdict.DEAD_LETTER,
        lambda error: rule_of(error).verdict is Verdict.AGAIN,
    )
    every = [*errors.values(), *([] if stop is None else [stop])]
    for test in tests:
        found = next((error for error in every if test(error)), None)
        if found is not None:
            return found
    return every[0] if every else None


def _retry_after(errors: Mapping[CallKey, IdempotentError], stop: IdempotentError | None) -> float | None:
    """Return after how long asking again can bring all that is missing; None where it takes more than time."""
    waits = [getattr(error, "retry_after", None) for error in errors.values()]
    known = [wait for wait in waits if isinstance(wait, float | int)]
    return max(known) if stop is None and known and len(known) == len(waits) else None


def _list(names: Sequence[CallKey], errors: Mapping[CallKey, IdempotentError]) -> str:
    shown = ", ".join(f"{name} ({type(errors[name]).__name__})" for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
