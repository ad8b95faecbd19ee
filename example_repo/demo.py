"""The demonstration: this week's tick, workers killed in the middle of a paid call, a retry, a backfill, the bill.

Run it with `make demo`, or `python -m example_repo.demo --help`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg

from dagster_idempotent import embedded
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.store import schema, submissions
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider
from example_repo.demo_acts import PATIENCE, Acts, Story
from example_repo.local_dagster import WORKSPACE, Processes, Webserver, free_port, make_home, wait_for

PIPELINE = "weekly_digest"
_TASK_OF = "SELECT task_id FROM dagster_idempotent.tasks WHERE pipeline = %s AND subject_id = %s AND scheduled_at = %s"
_READ_BILL = (
    "import json, sys, urllib.request; print(json.load(urllib.request.urlopen(sys.argv[1] + '/bill'))['charges'])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What the demonstration counted; `charges` comes from the provider's own bill."""

    tasks: int
    dagster_runs: int
    charges: int
    replayed: int
    settled_by_look_up: int


class Demo:
    """One run of the demonstration, on a database, a Dagster home and a provider of its own."""

    def __init__(self, *, tasks: int, kills: int, say: Callable[[str], None]) -> None:
        self._tasks, self._kills = tasks, kills
        self._say = say
        self._started = time.monotonic()

    def run(self) -> tuple[Report, list[Story]]:
        """Tell the whole story; returns its counts and a row for each partition."""
        with ExitStack() as stack:
            home = Path(tempfile.mkdtemp(prefix="dagster-idempotent-demo-"))
            stack.callback(shutil.rmtree, home, ignore_errors=True)
            url = self._database(home, stack)
            provider = stack.enter_context(MeteredProvider.start(home / "metered_provider"))
            environment = make_home(home / "dagster_home", url) | {
                "EXAMPLE_HOME": str(home),
                "EXAMPLE_TENANTS": str(self._tasks),
                "OPENAI_BASE_URL": "",
                "OPENAI_API_KEY": "",
            }
            os.environ.update(environment)
            processes = stack.enter_context(Processes(environment, home / "logs"))
            port = free_port()
            processes.start("webserver", "dagster-webserver", "-w", str(WORKSPACE), "-p", str(port))
            processes.start("daemon", "dagster-daemon", "run", "-w", str(WORKSPACE))
            server = Webserver(port)
            self._say("Starting Dagster (webserver and daemon) on PostgreSQL …")
            wait_for("the webserver", server.is_ready, check=processes.check, seconds=PATIENCE)
            instance = stack.enter_context(dg.DagsterInstance.get())
            acts = Acts(server, instance, provider, processes, self._note)
            stories = acts.tick(kills=self._kills)
            acts.kill_and_reexecute(stories)
            replayed = acts.backfill(stories)
            database = Database(url)
            stack.callback(database.close)
            looked_up = _read_ledger(database, stories)
            return (
                Report(
                    tasks=len({story.task_id for story in stories}),
                    dagster_runs=instance.get_runs_count(),
                    charges=read_bill(provider.control_url),
                    replayed=replayed,
                    settled_by_look_up=looked_up,
                ),
                stories,
            )

    def _database(self, home: Path, stack: ExitStack) -> str:
        server = embedded.url_from_environment()
        if server is None:
            self._say("Starting an embedded PostgreSQL …")
            folder = home / "postgres"
            server = embedded.start(folder).url
            stack.callback(embedded.remove, folder)
            url = server
        else:
            name = f"dagster_idempotent_demo_{os.getpid()}"
            url = embedded.create_database(server, name)
            stack.callback(_drop_database, server, name)
        database = Database(url)
        schema.upgrade(database)
        database.close()
        return url

    def _note(self, text: str) -> None:
        self._say(f"[{time.monotonic() - self._started:5.1f} s] {text}")


def read_bill(control_url: str) -> int:
    """Read the provider's bill in a process that did nothing else."""
    command = [sys.executable, "-I", "-c", _READ_BILL, control_url]
    return int(subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout)  # noqa: S603 - this interpreter


def _read_ledger(database: Database, stories: list[Story]) -> int:
    """Fill in what the ledger says of each task; returns how many calls a look-up settled."""
    looked_up = 0
    for story in stories:
        tenant, _, week = story.partition.partition("|")
        at = datetime.fromisoformat(week).replace(tzinfo=UTC)
        row = database.run(lambda c, key=(PIPELINE, tenant, at): c.execute(_TASK_OF, key).fetchone())
        if row is None:
            continue
        task_id = TaskId(row["task_id"])
        story.task_id = task_id
        for call in database.run(lambda c, t=task_id: submissions.list_calls(c, PIPELINE, t)):
            story.settled_by, story.cost = str(call["settled_by"]), f"{call['cost']} {call['currency']}"
            looked_up += call["settled_by"] == "look_up"
    return looked_up


def _drop_database(server: str, name: str) -> None:
    import psycopg  # noqa: PLC0415 - needed only on a server of the user's own
    from psycopg import sql  # noqa: PLC0415

    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _table(stories: list[Story]) -> str:
    rows = [("partition", "task", "dagster runs", "worker killed", "answer known by", "cost")]
    rows += [(s.partition, s.task_id, str(s.runs), "yes" if s.killed else "no", s.settled_by, s.cost) for s in stories]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _at_least(lowest: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < lowest:
            raise argparse.ArgumentTypeError(f"{value} is less than {lowest}")
        return value

    return number


def main() -> int:
    """Run the demonstration; exit status 1 where charges and tasks differ."""
    parser = argparse.ArgumentParser(prog="python -m example_repo.demo", description=__doc__)
    parser.add_argument("--tasks", type=_at_least(1), default=2, help="how many tenants get a digest (default: 2)")
    parser.add_argument("--kills", type=_at_least(0), default=1, help="how many workers are killed (default: 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    if options.kills > options.tasks:
        parser.error(f"--kills {options.kills} is more than --tasks {options.tasks}")
    report, stories = Demo(tasks=options.tasks, kills=options.kills, say=_say).run()
    if options.json:
        print(json.dumps(asdict(report)))
    else:
        print(_table(stories))
        if options.kills:
            print(
                f"The provider's look-up settled {report.settled_by_look_up} call(s) whose worker was killed; "
                "against a provider without look-up each such task would be held for a person's decision, "
                "never paid again."
            )
        print(f"charges at the provider: {report.charges} (tasks: {report.tasks}, dagster runs: {report.dagster_runs})")
    return 0 if report.charges == report.tasks else 1


if __name__ == "__main__":
    sys.exit(main())
