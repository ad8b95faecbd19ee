"""Killed at any message and started again, an import ends where one that nobody killed ends (R34)."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from dagster_idempotent.domain.legacy import Verdict
from dagster_idempotent.engine.legacy_check import check_import
from dagster_idempotent.store.database import Database
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


def kill(pid: int, proxy: FaultProxy) -> None:
    with suppress(ProcessLookupError):  # it may have been done before the message that would have killed it
        os.kill(pid, signal.SIGKILL)
    proxy.cut_all()


def imported_untouched(url: str, legacy: "Legacy", state_in: Callable[[Sql], dict[str, list[str]]]) -> Any:  # noqa: ANN401
    """Import without a kill into another ledger; return what is in it."""
    database = Database(url)
    type(legacy).run(legacy_in(legacy, database))
    database.close()
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as sql:
        return state_in(sql)


def legacy_in(legacy: "Legacy", database: Database) -> "Legacy":
    return type(legacy)(folder=legacy.folder, ledger=database, sql=legacy.sql, findings=legacy.findings)


@pytest.mark.parametrize("when", list(When))
@pytest.mark.parametrize("moved", [False, True], ids=["left", "moved"])
def test_an_import_killed_again_and_again_ends_as_one_that_nobody_killed(
    legacy: "Legacy",
    ambiguous: list[Verdict],
    state_in: Callable[[Sql], dict[str, list[str]]],
    importer: Importer,
    proxy: FaultProxy,
    untouched: str,
    ledger_url: str,
    tmp_path: Path,
    when: When,
    moved: bool,  # noqa: FBT001 - a parameter
) -> None:
    write(legacy.folder, ambiguous, of_each=1, right=12)
    expected = imported_untouched(untouched, legacy, state_in)
    order = {
        "url": proxy.url_for(ledger_url),
        "folder": str(legacy.folder.path),
        "move_to": str(tmp_path / "imported") if moved else None,
    }
    killed = 0
    for message in KILLS:
        pid: list[int] = []
        proxy.at(proxy.counts.to_upstream + message, action=lambda pid=pid: kill(pid[0], proxy), when=when)
        # The child connects only after its pid was told: it forks before it reads its order.
        pid.append(importer.start(**order))
        killed += importer.ended() is None
        assert proxy.wait_idle()
    assert killed > 3
    importer.start(**order)
    assert importer.ended() is not None
    assert legacy.state() == expected
    if moved:
        tasks = legacy.sql.execute("SELECT task_id FROM dagster_idempotent.tasks").fetchall()
        assert {path.name for path in (tmp_path / "imported").iterdir()} == {row["task_id"] for row in tasks}
    assert check_import(legacy.ledger, legacy.what(move_to=tmp_path / "imported" if moved else None)).equal


@pytest.mark.explore
def test_ten_thousand_records_survive_fifty_kills_in_flat_memory(
    legacy: "Legacy",
    ambiguous: list[Verdict],
    state_in: Callable[[Sql], dict[str, list[str]]],
    importer: Importer,
    proxy: FaultProxy,
    untouched: str,
    ledger_url: str,
    tmp_path: Path,
    folder_of: Callable[[Path], "Folder"],
) -> None:
    pairs = 2
    small = folder_of(tmp_path / "small")
    write(small, ambiguous, of_each=1, right=50)
    importer.start(url=untouched, folder=str(small.path), collection="small")
    assert importer.ended() is not None
    peak = importer.peak
    write(legacy.folder, ambiguous, of_each=200, right=10_000 - 200 * (len(ambiguous) + pairs))
    number = len(list(legacy.folder.path.iterdir()))
    assert number == 10_000
    order: dict[str, str | None] = {"url": proxy.url_for(ledger_url), "folder": str(legacy.folder.path)}
    chance = random.Random(6)  # noqa: S311 - a repeatable choice of moments
    for _ in range(50):
        pid: list[int] = []
        proxy.at(
            proxy.counts.to_upstream + chance.randrange(5, 12_000),
            action=lambda pid=pid: kill(pid[0], proxy),
            when=chance.choice(list(When)),
        )
        pid.append(importer.start(**order))
        importer.ended()
        assert proxy.wait_idle()
    importer.start(url=ledger_url, folder=order["folder"])
    verdicts = importer.ended()
    assert verdicts is not None
    assert sum(verdicts.values()) == number
    assert all(verdicts[kind] == 200 * (2 if kind in ("one_key", "same_content") else 1) for kind in ambiguous)
    assert importer.peak - peak < FLAT
    check = check_import(legacy.ledger, legacy.what())
    assert check.equal
    assert check.ledger.tasks == 10_000 - 200 * (len(ambiguous) + pairs)
    assert legacy.state() == imported_untouched(second_ledger(untouched), legacy, state_in)


def second_ledger(url: str) -> str:
    """Empty the ledger that the small import used."""
    with psycopg.connect(url, autocommit=True) as sql:
        sql.execute("SET session_replication_role = replica")
        for table in ("audit", "outbox", "approvals", "budgets", "costs", "submissions", "artifacts", "tasks"):
            sql.execute(psql.SQL("DELETE FROM dagster_idempotent.{}").format(psql.Identifier(table)))
    return url
