"""The media files of old records: hashed in blocks, moved by one rename."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from dagster_idempotent.domain.legacy import LegacyFile, LegacyRecord, Refusal, Verdict
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import ConfigurationError


def file_sizes(folder: Path, record: LegacyRecord) -> Mapping[str, int] | Refusal:
    """Hash every file that a record lists; return their sizes by path, or why the record is refused."""
    directory = folder / record.source
    sizes: dict[str, int] = {}
    for file in record.state.media:
        try:
            found = _checked(directory, file)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
            verdict = Verdict.MISSING_FILE if missing else Verdict.UNREADABLE
            return Refusal(source=record.label, verdict=verdict, reason=f"{file.path}: {error.strerror}")
        if isinstance(found, int):
            sizes[file.path] = found
        else:
            return Refusal(source=record.label, verdict=found[0], reason=found[1])
    return sizes


def is_below(root: Path, source: str) -> bool:
    """Whether a record's directory lies below `root`, which is resolved, links followed."""
    # As text: a path object costs more than the question, and every record asks it.
    found = os.path.realpath(os.path.join(root, source))  # noqa: PTH118 - see above
    return bool(source) and (found == str(root) or found.startswith(f"{str(root).rstrip(os.sep)}{os.sep}"))


def check_target(folder: Path, target: Path) -> None:
    """Make the folder that directories are moved to; raise ConfigurationError where a rename could not reach it."""
    source = folder.resolve()
    if target.resolve().is_relative_to(source):
        raise ConfigurationError(
            f"Records would be moved to {target}, a place among the records that are imported. Choose a folder beside "
            "them.",
            field="move_to",
        )
    target.mkdir(parents=True, exist_ok=True)
    if target.stat().st_dev != source.stat().st_dev:
        raise ConfigurationError(
            f"{target} is on another file system than {folder}: a directory cannot be moved there in one step. Choose "
            "a folder on the same one, or leave the records where they are.",
            field="move_to",
        )


def move(folder: Path, source: str, target: Path, task_id: TaskId) -> str | None:
    """Rename a record's directory to its task id; return why it was left where it is, None when it was moved."""
    place = target / task_id
    if place.exists():
        return f"left in place: {place.name} exists in the target"
    try:
        # Atomic: a kill leaves it here or there, and the next import finds it and goes on.
        (folder / source).rename(place)
    except OSError as error:
        return f"left in place: {error.strerror}"
    return None


def _checked(directory: Path, file: LegacyFile) -> int | tuple[Verdict, str]:
    path = directory / file.path
    if not path.resolve().is_relative_to(directory.resolve()):
        return Verdict.UNSAFE_PATH, f"{file.path} is a link that leaves the record's directory"
    with path.open("rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != file.sha256:
        return Verdict.HASH_MISMATCH, f"{file.path} has the hash {found}, the record says {file.sha256}"
    if file.size not in (None, size):
        return Verdict.HASH_MISMATCH, f"{file.path} has {size} bytes, the record says {file.size}"
    return size
