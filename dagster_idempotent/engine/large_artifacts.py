"""Bytes that are too large for a table lie at a URI; their row keeps hash and size, and every read compares them."""

import re
from dataclasses import dataclass
from hashlib import sha256

from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.engine.files import folder_at, write_artifact
from dagster_idempotent.errors import ArtifactDamaged, ArtifactNotStored, ConfigurationError

THRESHOLD = 1024 * 1024
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+://.+")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]")
_LONGEST_NAME = 100


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

    def write(self, pipeline: str, task_id: TaskId, name: str, body: bytes) -> str:
        """Write a body whole or not at all; return its URI.

        The place is fixed by task, name and hash: writing twice is harmless, and another body never takes its place.
        """
        digest = sha256(body).hexdigest()
        file = _file_name(name, digest)
        try:
            write_artifact(self.base_uri, pipeline, task_id, file, body)
        except OSError as error:
            # A store that is away for a moment must not end a task for good.
            raise ArtifactNotStored(
                f"Artifact {name!r} of task {task_id} ({len(body):,} bytes) cannot be written below {self.base_uri}: "
                f"{error}. Nothing is lost: it is fetched or collected again. Let the workers write there.",
                path=self.base_uri,
            ) from error
        return "/".join((self.base_uri.rstrip("/"), pipeline, task_id, file))


def read_artifact(uri: str, *, sha256_of: str, size: int, what: str) -> bytes:
    """Read a body and compare it with its row; raises ArtifactDamaged where it is missing or another."""
    base, *parts = uri.rsplit("/", 3)
    place = folder_at(base)
    for name in parts:
        place = place / name
    try:
        body: bytes = place.read_bytes()
    except OSError as error:
        raise ArtifactDamaged(
            f"{what} lies at {uri} and cannot be read: {error}. It was paid for and is not made again: put the file "
            f"back ({size:,} bytes, SHA-256 {sha256_of}).",
            uri=uri,
            sha256=sha256_of,
        ) from error
    found = sha256(body).hexdigest()
    if found != sha256_of:
        raise ArtifactDamaged(
            f"{what} lies at {uri}, with {len(body):,} bytes and SHA-256 {found}; recorded are {size:,} bytes and "
            f"{sha256_of}. It was paid for and is not made again: put the right file back.",
            uri=uri,
            sha256=sha256_of,
        )
    return body


def _file_name(name: str, digest: str) -> str:
    """Return a name that any store takes; where two artifacts get the same one, their bytes are equal too."""
    return f"{_UNSAFE.sub('_', name)[:_LONGEST_NAME]}.{digest[:16]}"
