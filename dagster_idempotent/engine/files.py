"""Files written whole or not at all, to a path fixed by task and name: writing twice is harmless (R33)."""

import os
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import ConfigurationError

_SAFE = re.compile(r"(?!\.)[^/\\\0]{1,200}")


class ObjectPath(Protocol):
    """A path of an object store, as universal_pathlib gives them: a put there is whole or absent by itself."""

    def __truediv__(self, name: str, /) -> "ObjectPath": ...
    def write_bytes(self, data: bytes, /) -> object:
        """Put the object."""
        ...


def artifact_path(folder: Path, pipeline: str, task_id: TaskId, name: str) -> Path:
    """Return where an artifact of a task lies: `folder/<pipeline>/<task_id>/<name>`."""
    return folder / pipeline / task_id / safe_name(name)


def write_artifact(folder: Path | ObjectPath, pipeline: str, task_id: TaskId, name: str, body: bytes) -> str:
    """Write an artifact of a task to its fixed place; return its SHA-256.

    On an object store (`UPath("s3://…")`) the put is atomic; on a disk see `write_file`.
    """
    if isinstance(folder, Path):
        return write_file(artifact_path(folder, pipeline, task_id, name), body)
    (folder / pipeline / task_id / safe_name(name)).write_bytes(body)
    return sha256(body).hexdigest()


def write_file(path: Path, body: bytes) -> str:
    """Write a file atomically and durably; return its SHA-256.

    Readers see the old bytes or the new ones. A kill leaves at most a hidden temporary file beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)
    return sha256(body).hexdigest()


def safe_name(name: str) -> str:
    """Return a name that is one step of a path; raises ConfigurationError for any other."""
    if _SAFE.fullmatch(name) is None:
        raise ConfigurationError(
            f"The name {name!r} cannot be a file of a task. Expected 1 to 200 characters without a slash, and no dot "
            "in front. Rename it.",
            field="name",
        )
    return name


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, as fsync of a file alone does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
