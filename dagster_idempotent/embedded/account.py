"""Who runs the server: PostgreSQL refuses root, so root needs another account and places it can reach."""

import contextlib
import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from dagster_idempotent.errors import EmbeddedPostgresError

_NAMES = ("postgres", "nobody")
_HOMES = (
    Path("/var/lib/dagster-idempotent"),
    Path("/var/tmp/dagster-idempotent"),  # noqa: S108 - its owner and mode are checked before use
    Path("/tmp/dagster-idempotent"),  # noqa: S108 - its owner and mode are checked before use
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user that the server's processes run as."""

    uid: int
    gid: int

    def is_other(self) -> bool:
        """Say whether processes have to switch to this account."""
        return self.uid != os.geteuid()

    def own(self, path: Path) -> None:
        """Give `path` to this account."""
        if self.is_other():
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def reaches(self, path: Path) -> bool:
        """Say whether this account may enter the folder `path` and each folder above it."""
        return all(self._enters(folder) for folder in (path, *path.parents))

    def _enters(self, folder: Path) -> bool:
        found = folder.stat()
        if found.st_uid == self.uid:
            return bool(found.st_mode & stat.S_IXUSR)
        if found.st_gid == self.gid:
            return bool(found.st_mode & stat.S_IXGRP)
        return bool(found.st_mode & stat.S_IXOTH)


def account_for(*folders: Path) -> Account:
    """Choose the account: ourselves; as root, the owner of the first existing folder that is not root's."""
    if os.geteuid() != 0:
        return Account(uid=os.geteuid(), gid=os.getegid())
    for folder in folders:
        if folder.exists() and (found := folder.stat()).st_uid != 0:
            return Account(uid=found.st_uid, gid=found.st_gid)
    for name in _NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(uid=entry.pw_uid, gid=entry.pw_gid)
    raise EmbeddedPostgresError(
        "Found this process running as root and neither a user `postgres` nor a user `nobody`; "
        "PostgreSQL refuses to run as root. Run as an ordinary user, or create one of these users.",
        expected=_NAMES,
    )


def root_home(account: Account) -> Path:
    """Return a folder of root's that `account` can reach, for what cannot stay where it is."""
    for home in _HOMES:
        try:
            home.mkdir(mode=0o755)
            home.chmod(0o755)  # whatever the umask is
        except FileExistsError:
            pass
        except OSError:
            continue
        found = home.lstat()
        private = stat.S_ISDIR(found.st_mode) and found.st_uid == 0 and not found.st_mode & 0o022
        if private and account.reaches(home):
            return home
    raise EmbeddedPostgresError(
        f"Found none of {', '.join(map(str, _HOMES))} usable for the server of root; expected one that "
        "root owns and others may enter. Make one of them so, or name a folder that other users may enter.",
        expected=_HOMES,
    )


def make_private(folder: Path, account: Account) -> None:
    """Make `folder` unless it exists, and refuse it unless it is the account's alone."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    require_private(folder, account)
    account.own(folder)  # also what a killed start of root's left to root


def require_private(folder: Path, account: Account) -> None:
    """Refuse a folder that another user could have made or may enter."""
    found = folder.lstat()
    owned = found.st_uid in {account.uid, os.geteuid()}
    if not (owned and stat.S_ISDIR(found.st_mode)) or found.st_mode & 0o077:
        raise EmbeddedPostgresError(
            f"Found {folder} owned by user {found.st_uid} with mode {stat.filemode(found.st_mode)}; "
            f"expected one that only user {account.uid} may enter (drwx------). Remove it.",
            path=folder,
        )
