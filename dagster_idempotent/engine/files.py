"""Files written whole or not at all, to a path fixed by task and name: writing twice is harmless (R33)."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import IO, Protocol
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.errors import ArtifactNotStored, ConfigurationError

_SAFE = re.compile(r"(?!\.)[^/\\\0]{1,200}")


class ObjectPath(Protocol):
    """A path on any file system of fsspec, as universal_pathlib gives them (`UPath("s3://bucket")`)."""

    @property
    def protocol(self) -> str:
        """Which file system: s3, gs, memory, file."""
        ...

    @property
    def path(self) -> str:
        """The path within that file system."""
        ...

    @property
    def parent(self) -> "ObjectPath":
        """The folder that it lies in."""
        ...

    def __truediv__(self, name: str, /) -> "ObjectPath": ...
    def mkdir(self, *, parents: bool, exist_ok: bool) -> object:
        """Make the folder, where the file system has such things."""
        ...

    def open(self, mode: str) -> IO[bytes]:
        """Open the object, to put it (wb) or to get it (rb)."""
        ...


class Pieces(Protocol):
    """A body that is too large to be held whole."""

    def pieces(self) -> Iterator[bytes]:
        """Give it from its beginning, piece by piece."""
        ...


Folder = Path | ObjectPath
Body = bytes | Pieces
PIECE = 1024 * 1024


def folder_at(place: Folder | str) -> Folder:
    """Return a folder given as a path, a URI such as `s3://bucket/digests`, or a UPath."""
    if isinstance(place, str):
        parts = urlsplit(place)
        if "://" not in place:
            return Path(place)
        return Path(unquote(parts.path)) if parts.scheme == "file" else folder_at(_remote(place))
    if isinstance(place, Path):
        return place
    return Path(place.path) if place.protocol in ("file", "local", "") else place


def write_artifact(folder: Folder | str, pipeline: str, task_id: TaskId, name: str, body: Body) -> str:
    """Write an artifact of a task to `folder/<pipeline>/<task_id>/<name>`; return its SHA-256.

    `folder` is a path, a URI or a UPath. On a disk the file is whole or absent (`write_file`); elsewhere it is read
    back and compared: raises ArtifactNotStored where it is not what was written. Writing twice is harmless.
    """
    return write_whole(folder_at(folder) / pipeline / task_id / safe_name(name), body)


def write_whole(path: Folder, body: Body) -> str:
    """Write a file of any file system; return its SHA-256."""
    return write_file(path, body) if isinstance(path, Path) else write_object(path, body)


def write_object(path: ObjectPath, body: Body) -> str:
    """Put an object and read it back; return its SHA-256. Raises ArtifactNotStored."""
    try:
        wanted = _put(path, body)
    except FileNotFoundError:  # a file system that has real folders
        path.parent.mkdir(parents=True, exist_ok=True)
        wanted = _put(path, body)
    read = sha256()
    for piece in pieces_at(path):
        read.update(piece)
    if (found := read.hexdigest()) != wanted:
        raise ArtifactNotStored(
            f"{path} was written and reads back with SHA-256 {found}, expected {wanted}. Another writer, or the store "
            "itself, changed it. Write it again.",
            path=str(path),
            sha256=found,
        )
    return wanted


def pieces_at(path: Folder) -> Iterator[bytes]:
    """Read a file of any file system piece by piece."""
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            yield piece


def write_file(path: Path, body: Body) -> str:
    """Write a file atomically and durably; return its SHA-256.

    Readers see the old bytes or the new ones. A kill leaves at most a hidden temporary file beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as file:
            written = _copy(body, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _sync_folder(path.parent)
    return written


def _put(path: ObjectPath, body: Body) -> str:
    with path.open("wb") as file:
        return _copy(body, file)


def _copy(body: Body, file: IO[bytes]) -> str:
    """Copy a body into an open file; return its SHA-256."""
    copied = sha256()
    for piece in (body,) if isinstance(body, bytes) else body.pieces():
        copied.update(piece)
        file.write(piece)
    return copied.hexdigest()


def safe_name(name: str) -> str:
    """Return a name that is one step of a path; raises ConfigurationError for any other."""
    if _SAFE.fullmatch(name) is None:
        raise ConfigurationError(
            f"The name {name!r} cannot be a file of a task. Expected 1 to 200 characters without a slash, and no dot "
            "in front. Rename it.",
            field="name",
        )
    return name


def _remote(uri: str) -> ObjectPath:
    # Dagster brings it; it takes long to load and is needed for object stores only.
    from upath import UPath  # noqa: PLC0415

    try:
        return UPath(uri)
    except (ImportError, ValueError) as error:
        raise ConfigurationError(
            f"{uri} cannot be opened: {error}. Install the fsspec package of this scheme, such as s3fs or gcsfs.",
            field="folder",
        ) from error


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, as fsync of a file alone does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
