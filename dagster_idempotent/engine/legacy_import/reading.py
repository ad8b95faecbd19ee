"""Reads old records from directories; what cannot be read becomes a refusal, never a guess."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pydantic import ValidationError

from dagster_idempotent.domain import json_text
from dagster_idempotent.domain.legacy import HISTORY, STATE, LegacyRecord, Refusal, Verdict

# Yields the records below a folder, in any order, and a refusal for each that it cannot read.
Adapter = Callable[[Path], Iterable[LegacyRecord | Refusal]]

# Documents are kept in the ledger; larger ones are no state of a week.
MAX_DOCUMENT = 32 * 1024 * 1024
_AFTER_WEEK = "-_.+ "
_SHOWN_PROBLEMS = 5


def read_weeks(folder: Path) -> Iterator[LegacyRecord | Refusal]:
    """Yield a record for every directory of `folder`, by name; files and hidden directories are no records."""
    with os.scandir(folder) as entries:
        # The entries only: a million of them still fit.
        ordered = sorted(entries, key=lambda entry: entry.name)
    for entry in ordered:
        if entry.name.startswith(".") or not entry.is_dir():
            continue
        if entry.is_symlink():
            reason = "it is a symbolic link; import the folder that it points into"
            yield Refusal(source=entry.name, verdict=Verdict.UNSAFE_PATH, reason=reason)
        else:
            yield read_week(Path(entry.path))


def read_week(directory: Path) -> LegacyRecord | Refusal:
    """Read the record of one directory."""
    source = directory.name
    try:
        documents = _documents(directory)
        record = LegacyRecord.from_json(source, documents[STATE].decode("utf-8"), documents)
    except ValidationError as error:
        return refusal_of(source, error)
    except ValueError as error:
        return Refusal(source=source, verdict=Verdict.UNREADABLE, reason=str(error))
    except OSError as error:
        name = Path(error.filename).name if error.filename else source
        return Refusal(source=source, verdict=Verdict.UNREADABLE, reason=f"{name}: {error.strerror}")
    week = record.state.week
    if source != week and not (source.startswith(week) and source[len(week)] in _AFTER_WEEK):
        reason = f"the directory is called {source!r}, its state says week {week!r}"
        return Refusal(source=source, verdict=Verdict.WRONG_WEEK, reason=reason)
    return record


def refusal_of(source: str, error: ValidationError) -> Refusal:
    """Tell what is wrong with a state, for adapters as well: a time without timezone is a verdict of its own."""
    problems = error.errors(include_url=False, include_input=False, include_context=False)
    naive = any(problem["type"] == "timezone_aware" for problem in problems)
    told = [
        f"{'/'.join(str(part) for part in problem['loc']) or 'the whole'}: {problem['msg']}"
        for problem in problems[:_SHOWN_PROBLEMS]
    ]
    verdict = Verdict.NAIVE_DATETIME if naive else Verdict.INVALID
    return Refusal(source=source, verdict=verdict, reason="; ".join(told))


def _documents(directory: Path) -> dict[str, bytes]:
    documents = {STATE: _read(directory / STATE)}
    if (directory / HISTORY).exists():
        documents[HISTORY] = _read(directory / HISTORY)
        try:
            history = json_text.parse(documents[HISTORY].decode("utf-8"))
        except ValueError as error:
            raise ValueError(f"{HISTORY}: {error}") from error
        if not isinstance(history, list):
            raise ValueError(f"{HISTORY} is no list of earlier states")
    return documents


def _read(path: Path) -> bytes:
    if path.is_symlink():
        raise ValueError(f"{path.name} is a symbolic link")
    with path.open("rb") as file:
        body = file.read(MAX_DOCUMENT + 1)
    if len(body) > MAX_DOCUMENT:
        raise ValueError(f"{path.name} is larger than {MAX_DOCUMENT // 1024**2} MiB")
    return body
