"""Kills at each stage of a first start, and of each of the processes; the next start puts it right."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path

import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded import account as accounts, binaries, locks, place as places
from dagster_idempotent.errors import EmbeddedPostgresError
from tests.integration.embedded.conftest import IMPORTS, is_alive, remember, remembered

START = """
import sys
from pathlib import Path
from dagster_idempotent import embedded
embedded.start(Path(sys.argv[1]), durable=False)
"""
PR_SET_CHILD_SUBREAPER = 36

# What shows in the data's location, in the asked folder or among the sockets as a first start goes on.
MOMENTS = {
    "the folder is there": "start.lock",
    "the place is settled": "socket",
    "the draft is there": "initdb-*",
    "initdb writes": "initdb-*/PG_VERSION",
    "initdb has a cluster": "initdb-*/global/pg_control",
    "initdb bootstraps": "initdb-*/base/1/1259",
    "initdb copies": "initdb-*/base/5",
    "the data have their name": "data-*",
    "the postmaster begins": "data-*/postmaster.pid",
    "the postmaster listens": "socket/.s.PGSQL.5432",
    "the postmaster is up": "data-*/global/pg_internal.init",
    "the database is there": "data-*/base/1638*",
}


class Victim(Enum):
    """Who is killed."""

    STARTER = "the starter alone"
    GROUP = "the starter and its initdb"
    WATCHDOG = "the starter, its initdb and the watchdog"
    ALL = "all of them and the postmaster"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "postgres"
    yield path
    embedded.remove(path)


def poll(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, "the awaited condition did not come true"
        pause.wait(0.0005)


def begin(folder: Path) -> subprocess.Popen[bytes]:
    variables = {**os.environ, "PYTHONPATH": IMPORTS}
    return subprocess.Popen([sys.executable, "-c", START, str(folder)], env=variables, start_new_session=True)


def shows(folder: Path, pattern: str) -> bool:
    if not folder.exists():
        return False
    place = places.find(folder)
    top, _, rest = pattern.partition("/")
    if top == "socket":  # elsewhere, where the path of the folder is too long for one
        return (place.sockets / rest).exists()
    return any(next(top.glob(pattern), None) is not None for top in (folder, place.location) if top.exists())


def first_number(path: Path) -> int:
    text = path.read_text().partition("\n")[0].strip() if path.exists() else ""
    return int(text) if text.isdigit() else 0


def watchdog_of(folder: Path) -> int:
    return first_number(places.find(folder).watch_lock)


def data_of(folder: Path) -> Path:
    (data,) = places.find(folder).location.glob("data-*")
    return data


def kill(pid: int) -> None:
    if pid and is_alive(pid):
        os.kill(pid, signal.SIGKILL)


def strike(folder: Path, starter: subprocess.Popen[bytes], victim: Victim) -> None:
    if victim is Victim.STARTER:
        starter.kill()
    else:
        with contextlib.suppress(ProcessLookupError):  # the last moments may be its last, too
            os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()
    if victim in {Victim.WATCHDOG, Victim.ALL}:
        kill(watchdog_of(folder))
    if victim is Victim.ALL:
        for data in places.find(folder).location.glob("data-*"):
            kill(first_number(data / "postmaster.pid"))


def kills() -> list[object]:
    """Give each moment with each victim; where watchdog and postmaster have not begun, two repeat the second."""
    unbegun = list(MOMENTS).index("the data have their name")
    return [
        pytest.param(
            moment,
            victim,
            id=f"{moment}-{victim.value}",
            marks=[pytest.mark.explore] if number < unbegun and victim in {Victim.WATCHDOG, Victim.ALL} else [],
        )
        for number, moment in enumerate(MOMENTS)
        for victim in Victim
    ]


@pytest.mark.parametrize(("moment", "victim"), kills())
def test_a_killed_first_start_is_put_right_by_the_next(folder: Path, moment: str, victim: Victim) -> None:
    starter = begin(folder)
    poll(lambda: shows(folder, MOMENTS[moment]) or bool(starter.poll()))
    strike(folder, starter, victim)
    server = embedded.start(folder, durable=False)
    remember(server.url)
    assert not list(places.find(folder).location.glob("initdb-*"))
    assert not locks.is_free(places.find(folder).watch_lock)
    assert is_alive(watchdog_of(folder))
    assert embedded.start(folder) == server


def test_two_kills_in_a_row_are_put_right_too(folder: Path) -> None:
    for moment in ("initdb-*/PG_VERSION", "data-*/postmaster.pid"):
        starter = begin(folder)
        poll(lambda pattern=moment: shows(folder, pattern))
        strike(folder, starter, Victim.ALL)
    remember(embedded.start(folder, durable=False).url)


def test_a_killed_postmaster_is_started_again_with_its_data(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    remember(server.url)
    os.kill(server.pid, signal.SIGKILL)
    again = embedded.start(used_folder, durable=False)
    assert again.pid != server.pid
    assert again.url == server.url
    assert remembered(again.url) == 1


def test_a_killed_watchdog_is_replaced_by_the_next_start(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    first = watchdog_of(used_folder)
    os.kill(first, signal.SIGKILL)
    poll(lambda: locks.is_free(places.find(used_folder).watch_lock))
    assert embedded.start(used_folder, durable=False) == server
    assert is_alive(watchdog_of(used_folder))
    assert watchdog_of(used_folder) != first


def test_a_replaced_watchdog_stops_an_idle_server(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    os.kill(watchdog_of(used_folder), signal.SIGKILL)
    poll(lambda: locks.is_free(places.find(used_folder).watch_lock))
    embedded.start(used_folder, durable=False, idle_timeout=0.4)
    poll(lambda: locks.is_free(places.find(used_folder).watch_lock))
    assert not is_running(server.pid)


def test_a_watchdog_that_is_asked_to_end_stops_its_server(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    os.kill(watchdog_of(used_folder), signal.SIGTERM)
    poll(lambda: locks.is_free(places.find(used_folder).watch_lock))
    assert not is_running(server.pid)


def is_running(pid: int) -> bool:
    """Say whether a process lives; one whose parent never asks for its end is a zombie, and does not."""
    listing = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], check=False, capture_output=True, text=True)
    return listing.stdout.strip()[:1] not in {"", "Z"}


def test_a_zombie_postmaster_does_not_count_as_running(used_folder: Path) -> None:
    # Where nobody reaps orphans, as in many containers, the killed postmaster stays a zombie.
    adopts = sys.platform == "linux"
    if adopts:
        assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1) == 0
    orphans: list[int] = []
    try:
        server = embedded.start(used_folder, durable=False)
        remember(server.url)
        orphans = [watchdog_of(used_folder), server.pid]
        for pid in orphans:
            os.kill(pid, signal.SIGKILL)
        poll(lambda: not is_running(server.pid))
        # Its own processes notice a moment later, and hold the lock until then.
        poll(lambda: locks.is_free(places.find(used_folder).server_lock))
        assert is_alive(server.pid) or not adopts
        assert embedded.status(used_folder) is None
        assert not embedded.stop(used_folder)
        again = embedded.start(used_folder, durable=False)
        assert remembered(again.url) == 1
        orphans += [again.pid, watchdog_of(used_folder)]
    finally:
        embedded.stop(used_folder)
        if adopts:
            ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)
            reap()


def reap() -> None:
    """Take the ends of the orphans that this process adopted."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def test_a_stale_pid_file_whose_pid_is_another_program_is_no_obstacle(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    remember(server.url)
    os.kill(server.pid, signal.SIGKILL)
    poll(lambda: locks.is_free(places.find(used_folder).watch_lock))
    pid_file = data_of(used_folder) / "postmaster.pid"
    lines = pid_file.read_text().splitlines()
    pid_file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n")
    assert embedded.status(used_folder) is None
    assert remembered(embedded.start(used_folder, durable=False).url) == 1


@pytest.mark.parametrize("content", ["", "\n", "nonsense", "0\n", "-1\n", "99999999999999\n"])
def test_a_damaged_pid_file_is_no_obstacle(used_folder: Path, content: str) -> None:
    remember(embedded.start(used_folder, durable=False).url)
    embedded.stop(used_folder)
    (data_of(used_folder) / "postmaster.pid").write_text(content)
    assert remembered(embedded.start(used_folder, durable=False).url) == 1


def test_a_postmaster_of_somebody_else_on_the_same_data_is_left_alone(used_folder: Path) -> None:
    embedded.start(used_folder, durable=False)
    embedded.stop(used_folder)
    place, data = places.find(used_folder), data_of(used_folder)
    switch = place.account.is_other()
    foreign = subprocess.Popen(
        [binaries.choose(place.account, []).folder / "postgres", "-D", data, "-k", place.sockets, "-h", ""],
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=place.account.uid if switch else None,
        group=place.account.gid if switch else None,
        extra_groups=() if switch else None,
    )
    try:
        poll((data / "postmaster.pid").exists)
        (place.sockets / ".s.PGSQL.5432").unlink(missing_ok=True)
        with pytest.raises(EmbeddedPostgresError, match="started by something else"):
            embedded.start(used_folder, durable=False)
        assert foreign.poll() is None
    finally:
        foreign.send_signal(signal.SIGINT)
        foreign.wait(60)
    embedded.start(used_folder, durable=False)


def test_a_start_waits_for_an_initdb_that_lost_its_parent(folder: Path) -> None:
    starter = begin(folder)
    poll(lambda: shows(folder, "initdb-*/PG_VERSION"))
    starter.kill()
    starter.wait()
    draft = next(iter(places.find(folder).location.glob("initdb-*")))
    embedded.start(folder, durable=False)
    assert not draft.exists()


def test_a_kill_never_leaves_the_account_of_the_data_unclear(folder: Path) -> None:
    starter = begin(folder)
    poll(lambda: shows(folder, "data-*"))
    strike(folder, starter, Victim.ALL)
    owner = data_of(folder).stat().st_uid
    assert places.find(folder).account.uid == owner == accounts.account_for(folder).uid
