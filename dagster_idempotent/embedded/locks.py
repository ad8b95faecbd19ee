"""Locks that the kernel drops when their last holder dies, so that none can be left behind.

`flock` belongs to the open file and is shared with children that inherit the descriptor: a lock handed to
the postmaster stays taken while any of its processes lives, whatever a pid file says.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Generator
from pathlib import Path

from dagster_idempotent.errors import EmbeddedPostgresError

PAUSE_SECONDS = 0.02


def open_private(path: Path, flags: int) -> int:
    """Open a file, made if need be for the owner of its folder alone, even by root."""
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return os.open(path, flags | os.O_NOFOLLOW)
    if os.geteuid() == 0:
        owner = path.parent.stat()
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def try_lock(path: Path) -> int | None:
    """Take the lock and return its descriptor, or None while somebody else holds it."""
    descriptor = open_private(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The folder may have been removed and made again since the file was opened.
        same = os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        same = False
    except BaseException:
        os.close(descriptor)
        raise
    if not same:
        os.close(descriptor)
        return None
    return descriptor


def is_free(path: Path) -> bool:
    """Say whether nobody holds the lock now."""
    if not path.exists():
        return True
    descriptor = try_lock(path)
    if descriptor is None:
        return False
    os.close(descriptor)
    return True


@contextlib.contextmanager
def locked(path: Path, *, seconds: float) -> Generator[int, None, None]:
    """Hold the lock and give its descriptor; wait for it at most `seconds`."""
    descriptor = wait_lock(path, seconds=seconds)
    try:
        yield descriptor
    finally:
        # Closing, not unlocking: a child that inherited the descriptor keeps the lock.
        os.close(descriptor)


def wait_lock(path: Path, *, seconds: float) -> int:
    """Take the lock and return its descriptor; wait for it at most `seconds`."""
    deadline = time.monotonic() + seconds
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"Found {path} locked for {seconds:.0f} seconds; a start or a stop should take less. "
                f"See who holds it (`fuser {path}`) and the log beside it, end that process, try again.",
                path=path,
            )
        time.sleep(PAUSE_SECONDS)
    return descriptor
