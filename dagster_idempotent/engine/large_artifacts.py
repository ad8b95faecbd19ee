"""Bytes that are too large for a table lie at a URI; their row keeps hash and size, and every read compares them."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from types import TracebackType

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine.files import Folder, folder_at, pieces_at, write_artifact
from dagster_idempotent.engine.spool import Spool
from dagster_idempotent.errors import (
    ArtifactDamaged,
    ArtifactNotStored,
    ArtifactUnavailable,
    ConfigurationError,
    IdempotentError,
)

THRESHOLD = 1024 * 1024
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://.+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 100
# By which a file system says for certain that no such file is there.
_NOT_THERE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeArtifacts:
    """Where raw artifacts and answers of `threshold` bytes and more are written.

    `base_uri` is an absolute folder (file:///data/artifacts) or anything that fsspec knows (s3://bucket/artifacts);
    every process that works on the tasks has to reach it.
    """

    base_uri: str
    threshold: int = THRESHOLD

    def __post_init__(self) -> None:
        if not _SCHEME.fullmatch(self.base_uri) and not self.base_uri.startswith("/"):
            raise ConfigurationError(
                f"artifacts_uri is {self.base_uri!r}. Expected an absolute folder or a URI with its scheme, such as "
                '"file:///data/artifacts" or "s3://bucket/artifacts".',
                field="artifacts_uri",
            )
        if self.threshold < 1:
            raise ConfigurationError(
                f"artifacts_from_bytes is {self.threshold}. Expected 1 or more.", field="artifacts_from_bytes"
            )

    def takes(self, size: int) -> bool:
        """Whether a body of this size is written here."""
        return size >= self.threshold

    def write(self, pipeline: str, task_id: TaskId, name: str, body: bytes | Spool) -> str:
        """Write a body whole or not at all; return its URI.

        The place is fixed by task, name and hash: writing twice is harmless, and another body never takes its place.
        """
        digest, size = (body.sha256, body.size) if isinstance(body, Spool) else (sha256(body).hexdigest(), len(body))
        file = _file_name(name, digest)

        def not_stored(error: Exception) -> ArtifactNotStored:
            return ArtifactNotStored(
                f"Artifact {name!r} of task {task_id} ({size:,} bytes) cannot be written below {self.base_uri}: "
                f"{_told(error)}. Nothing is lost: it is fetched or collected again. Let the workers write there.",
                path=self.base_uri,
            )

        with _Touching(not_stored):
            write_artifact(self.base_uri, pipeline, task_id, file, body)
        return "/".join((self.base_uri.rstrip("/"), pipeline, task_id, file))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A body as its row describes it, at its URI; `what` it is, for people.

    Every read compares it with its row. Raises ArtifactDamaged where it is certainly missing or another,
    ArtifactUnavailable where it cannot be read now.
    """

    uri: str
    sha256: str
    size: int
    what: str

    def pieces(self) -> Iterator[bytes]:
        """Read it piece by piece; what is another is told at the end."""
        base, *parts = self.uri.rsplit("/", 3)
        pipeline, *rest = parts
        home = folder_at(base) / pipeline
        place = home
        for name in rest:
            place = place / name
        found, size = sha256(), 0
        with _Touching(lambda error: self._unread(error, base, home)):
            for piece in pieces_at(place):
                found.update(piece)
                size += len(piece)
                yield piece
        if found.hexdigest() != self.sha256:
            raise ArtifactDamaged(
                f"{self.what} lies at {self.uri}, with {size:,} bytes and SHA-256 {found.hexdigest()}; recorded are "
                f"{self.size:,} bytes and {self.sha256}. It was paid for and is not made again: put the right file "
                "back.",
                uri=self.uri,
                sha256=self.sha256,
            )

    def read(self) -> bytes:
        """Read it whole."""
        body = BytesIO()
        for piece in self.pieces():
            body.write(piece)
        return body.getvalue()

    def check(self) -> None:
        """Read it and keep nothing."""
        for _ in self.pieces():
            pass

    def _unread(self, error: Exception, base: str, home: Folder) -> ArtifactDamaged | ArtifactUnavailable:
        if isinstance(error, _NOT_THERE) and _is_reached(home):
            return ArtifactDamaged(
                f"{self.what} lies at {self.uri} and is not there: {_told(error)}. It was paid for and is not made "
                f"again: put the file back ({self.size:,} bytes, SHA-256 {self.sha256}), then redrive the task.",
                uri=self.uri,
                sha256=self.sha256,
            )
        return ArtifactUnavailable(
            f"{self.what} lies at {self.uri} and cannot be read now: {_told(error)}. Nothing shows that it is gone, "
            f"and it is not paid for again: the next attempt reads it again. See that the workers reach {base} and "
            "may read there.",
            uri=self.uri,
            sha256=self.sha256,
        )


def _is_reached(home: Folder) -> bool:
    """Whether the store answers for itself: below a folder that is not mounted every file seems to be gone."""
    return os.path.isdir(home) if isinstance(home, Path) else True  # noqa: PTH112 - which raises nothing


def _told(error: Exception) -> str:
    return str(error) or type(error).__name__


class _Touching:
    """Turns whatever a file system raises, of which each has errors of its own, into an error of ours."""

    def __init__(self, meant: Callable[[Exception], IdempotentError]) -> None:
        self._meant = meant

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if isinstance(error, Exception) and not isinstance(error, IdempotentError):
            raise self._meant(error) from error


def _file_name(name: str, digest: str) -> str:
    """Return a name that any store takes; where two artifacts get the same one, their bytes are equal too."""
    return f"{_UNSAFE.sub('_', name)[:_LONGEST_NAME]}.{digest[:16]}"
