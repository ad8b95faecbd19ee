"""Killed at any message and started again, an import ends where one that nobody killed ends (R34)."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from dagster_idempotent.domain.legacy import Verdict
from dagster_idempotent.engine.legacy_check import check_import
from dagster_idempotent.testing.fault_proxy import FaultProxy, When

if TYPE_CHECKING:
    from tests.legacy.conftest import Folder, Legacy

Sql = psycopg.Connection[dict[str, Any]]
IMPORTER = Path(__file__).parents[1] / "workers" / "importer.py"
# Messages of a run, from its first to the commit of a later record.
KILLS = (4, 9, 15, 23, 31, 38, 44, 52, 61, 77, 90, 111)
# Kilobytes: what the work on ten thousand records may take beyond that on a few.
FLAT = 24 * 1024


class Importer:
    """A process that imports in children which may be killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(IMPORTER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.peak = 0

    def start(self, **order: str | None) -> int:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self._line()["pid"]

    def ended(self) -> dict[str, int] | None:
        """Wait for the end of the child; return its verdicts, None when it was killed."""
        verdicts = None
        while "status" not in (line := self._line()):
            verdicts = line["verdicts"]
        assert line["status"] in (0, signal.SIGKILL), line
        self.peak = line["peak"]
        return verdicts if line["status"] == 0 else None

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())


@pytest.fixture
def importer() -> Iterator[Importer]:
    importer = Importer()
    yield importer
    importer.close()


@pytest.fixture
def proxy(ledger_url: str) -> Iterator[FaultProxy]:
    parts = conninfo_to_dict(ledger_url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    upstream = Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)
    with FaultProxy(upstream, protocol="postgres") as proxy:
        yield proxy


@pytest.fixture
def untouched(postgres_url: str, ledger_template: str) -> Iterator[str]:
    """Give a second ledger, for an import that nobody kills."""
    name = f"untouched_{os.getpid()}"
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        copy = psql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(copy.format(psql.Identifier(name), psql.Identifier(ledger_template)))
        yield make_conninfo("", **(conninfo_to_dict(postgres_url) | {"dbname": name}))
        admin.execute(psql.SQL("DROP DATABASE {} WITH (FORCE)").format(psql.Identifier(name)))


def write(folder: "Folder", kinds: list[Verdict], *, of_each: int, right: int) -> None:
    """Write records of every kind, the ambiguous ones among the right ones, two of some weeks."""
    number = 0
    for kind in kinds:
        for _ in range(of_each):
            folder.broken(kind, number)
            number += 1
    for following in range(number, number + right // 2):
        first = folder.record(following)
        folder.record(following, name=f"{first.name}-b", subject="acme")


def kill_at(proxy: FaultProxy, message: int, when: When, pid: "SimpleQueue[int]") -> None:
    """Kill the next child at a message of its own; `pid` is told when it is known."""

    def strike() -> None:
        with suppress(ProcessLookupError):  # it may have been done before the message that would have killed it
            os.kill(pid.get(timeout=30), signal.SIGKILL)
        proxy.cut_all()

    proxy.at(proxy.counts.to_upstream + message, action=strike, when=when)


@dataclass(frozen=True, slots=True, kw_only=True)
class Siege:
    """An import that can be killed, and a second ledger for one that nobody kills."""

    legacy: "Legacy"
    importer: Importer
    proxy: FaultProxy
    url: str
    untouched: str

    def run(self, *, message: int, when: When, **order: str | None) -> bool:
        """Import through the proxy; return whether the child was killed."""
        pid: SimpleQueue[int] = SimpleQueue()
        kill_at(self.proxy, message, when, pid)
        pid.put(self.importer.start(url=self.proxy.url_for(self.url), folder=self.folder, **order))
        killed = self.importer.ended() is None
        assert self.proxy.wait_idle()
        return killed

    def finish(self, **order: str | None) -> dict[str, int]:
        self.importer.start(url=self.url, folder=self.folder, **order)
        verdicts = self.importer.ended()
        assert verdicts is not None
        return verdicts

    def expected(self) -> dict[str, list[str]]:
        """Import without a kill into the second ledger; return what is in it."""
        self.importer.start(url=self.untouched, folder=self.folder)
        assert self.importer.ended() is not None
        with psycopg.connect(self.untouched, autocommit=True, row_factory=dict_row) as sql:
            return self.legacy.state_in(sql)

    @property
    def folder(self) -> str:
        return str(self.legacy.folder.path)


@pytest.fixture
def siege(legacy: "Legacy", importer: Importer, proxy: FaultProxy, ledger_url: str, untouched: str) -> Siege:
    return Siege(legacy=legacy, importer=importer, proxy=proxy, url=ledger_url, untouched=untouched)


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("target", [None, "imported"])
def test_an_import_killed_again_and_again_ends_as_one_that_nobody_killed(
    siege: Siege, ambiguous: list[Verdict], tmp_path: Path, when: When, target: str | None
) -> None:
    write(siege.legacy.folder, ambiguous, of_each=1, right=12)
    expected = siege.expected()
    move_to = None if target is None else tmp_path / target
    order = {"move_to": None if move_to is None else str(move_to)}
    assert sum(siege.run(message=message, when=when, **order) for message in KILLS) > 3
    siege.finish(**order)
    assert siege.legacy.state() == expected
    if move_to is not None:
        tasks = siege.legacy.sql.execute("SELECT task_id FROM dagster_idempotent.tasks").fetchall()
        assert {path.name for path in move_to.iterdir()} == {row["task_id"] for row in tasks}
    assert check_import(siege.legacy.ledger, siege.legacy.what(move_to=move_to)).equal


@pytest.mark.explore
def test_ten_thousand_records_survive_fifty_kills_in_flat_memory(
    siege: Siege, ambiguous: list[Verdict], tmp_path: Path, folder_of: Callable[[Path], "Folder"]
) -> None:
    small = folder_of(tmp_path / "small")
    write(small, ambiguous, of_each=1, right=50)
    siege.importer.start(url=siege.untouched, folder=str(small.path))
    assert siege.importer.ended() is not None
    peak = siege.importer.peak
    empty(siege.untouched)
    right = 10_000 - 200 * (len(ambiguous) + 2)  # two kinds come in pairs
    write(siege.legacy.folder, ambiguous, of_each=200, right=right)
    assert len(list(siege.legacy.folder.path.iterdir())) == 10_000
    chance = random.Random(6)  # noqa: S311 - a repeatable choice of moments
    # Some four messages a record: fifty such stretches reach about as far as there are right ones.
    for _ in range(50):
        assert siege.run(message=chance.randrange(5, 8 * right // 50), when=chance.choice(list(When)))
    verdicts = siege.finish()
    assert sum(verdicts.values()) == 10_000
    assert all(verdicts[kind] == 200 * (2 if kind in ("one_key", "same_content") else 1) for kind in ambiguous)
    assert siege.importer.peak - peak < FLAT
    check = check_import(siege.legacy.ledger, siege.legacy.what())
    assert check.equal
    assert check.ledger.tasks == right
    assert siege.legacy.state() == siege.expected()


def empty(url: str) -> None:
    """Empty a ledger, as only a test may."""
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("SET session_replication_role = replica")
        for table in ("audit", "outbox", "approvals", "budgets", "costs", "submissions", "artifacts", "tasks"):
            sql.execute(psql.SQL("DELETE FROM dagster_idempotent.{}").format(psql.Identifier(table)))
