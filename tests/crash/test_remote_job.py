"""A worker dies, or loses a message, anywhere in a remote job: one job, one charge, one result (R13).

The oracle is the provider's own bill and its own list of jobs.
"""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from dagster_idempotent.testing.fault_proxy import Direction, FaultProxy, When
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.crash.conftest import finish, ledger_and_provider, server_of

if TYPE_CHECKING:
    from tests.conftest import Crew, WorkerHandle

PIPELINE = {"name": "films", "lease": "10s", "sender_lease": "1s", "send_window": "900ms", "max_attempts": 50}
JOB_API = {
    "result_path": "/jobs/{id}/result",
    "look_up_path": "/jobs?key={key}",
    "look_up_complete_at": "complete",
    "cost_at": "cost.amount",
    "currency_at": "cost.currency",
    "settle_delay": 0.5,
    "poll_budget": 20,
}
ATTEMPTS = 200
# More messages than a whole job has in one direction, to the database and to the provider.
DATABASE, PROVIDER = 170, 12
WAITS = {"LeaseBusy", "CallInDoubt", "CallInProgress", "CallNotSent", "RemoteJobUnfinished"}


@dataclass(kw_only=True)
class Studio:
    """One ledger and one provider for all tests of this module; each job in it is a subject of its own."""

    crew: "Crew"
    provider: MeteredProvider
    url: str
    sql: Any
    folder: Path
    proxies: list[FaultProxy] = field(default_factory=list[FaultProxy])

    def worker(self, *, url: str | None = None, base_url: str | None = None, **job_api: object) -> "WorkerHandle":
        return self.crew.worker(
            url=url or self.url,
            pipeline=PIPELINE,
            provider={
                "base_url": base_url or self.provider.base_url,
                "api_key_variable": "K",
                "job_api": {**JOB_API, **job_api},
            },
            environment={"K": "k"},
            folder=str(self.folder / "delivered"),
            artifacts=str(self.folder / "artifacts"),
        )

    def before_database(self) -> FaultProxy:
        return self._started(FaultProxy(server_of(self.url), protocol="postgres"))

    def before_provider(self) -> FaultProxy:
        return self._started(FaultProxy(urlsplit(self.provider.base_url).netloc))

    def _started(self, proxy: FaultProxy) -> FaultProxy:
        proxy.start()
        self.proxies.append(proxy)
        return proxy

    def finish(self, subject: str, **job_api: object) -> str:
        """Start Dagster runs, one after the other, until one has done the task; return its id."""
        return finish(self.worker(**job_api), subject, attempts=ATTEMPTS, waits=WAITS)

    def check(self, task_id: str, jobs_before: int) -> None:
        """One job, one charge, one result, in the file that its row describes."""
        assert self.provider.charges == len(self.provider.jobs()) == jobs_before + 1
        rows = self.sql.execute(
            "SELECT s.state, s.remote_ref, s.cost, a.uri, a.sha256, t.status, t.output ->> 'title' AS title "
            "FROM dagster_idempotent.submissions s JOIN dagster_idempotent.tasks t USING (pipeline, task_id) "
            "LEFT JOIN dagster_idempotent.artifacts a ON (a.pipeline, a.task_id, a.name) "
            "= (s.pipeline, s.task_id, s.response_artifact) WHERE s.task_id = %s ORDER BY submission",
            [task_id],
        ).fetchall()
        assert [row["state"] for row in rows] == ["not_sent"] * (len(rows) - 1) + ["succeeded"]
        last = rows[-1]
        assert (last["status"], last["remote_ref"]) == ("completed", self.provider.jobs()[-1].id)
        assert last["title"] == last["sha256"] == sha256(Path(last["uri"]).read_bytes()).hexdigest()
        assert str(last["cost"]) == "0.02"


@pytest.fixture(scope="module")
def shared(
    postgres_url: str, ledger_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("studio")
    with ledger_and_provider(postgres_url, ledger_template, "crash_jobs", folder) as given:
        yield given | {"folder": folder}


@pytest.fixture
def studio(crew: "Crew", shared: dict[str, Any]) -> Iterator[Studio]:
    studio = Studio(crew=crew, **shared)
    yield studio
    for proxy in studio.proxies:
        proxy.close()


def strike(worker: "WorkerHandle", proxy: FaultProxy, *, killed: bool) -> Callable[[], None]:
    def kill() -> None:
        os.kill(worker.pid, signal.SIGKILL)
        proxy.cut_all()

    return kill if killed else proxy.cut_all


def survive(
    studio: Studio, proxy: FaultProxy, worker: "WorkerHandle", subject: str, n: int, *, killed: bool, **at: Any
) -> None:
    before = len(studio.provider.jobs())
    proxy.at(n, action=strike(worker, proxy, killed=killed), **at)
    with suppress(Exception):
        worker.tell("whole_task", subject=subject, owner=f"{subject}-first")
        worker.answer()
    studio.check(studio.finish(subject), before)


def at_database(studio: Studio, n: int, direction: Direction, when: When, *, killed: bool) -> None:
    proxy = studio.before_database()
    worker = studio.worker(url=proxy.url_for(studio.url))
    subject = f"db-{n}-{direction}-{when}-{killed}"
    survive(studio, proxy, worker, subject, n, killed=killed, direction=direction, when=when)


def at_provider(studio: Studio, n: int, direction: Direction, when: When, *, killed: bool) -> None:
    proxy = studio.before_provider()
    host, port = proxy.address
    worker = studio.worker(base_url=f"http://{host}:{port}/v1")
    subject = f"provider-{n}-{direction}-{when}-{killed}"
    survive(studio, proxy, worker, subject, n, killed=killed, direction=direction, when=when)


faults = pytest.mark.parametrize("killed", [True, False], ids=["killed", "cut"])
everywhere = pytest.mark.parametrize("direction", Direction)


@faults
@pytest.mark.parametrize("n", range(40, DATABASE, 26))
def test_a_fault_at_a_message_of_the_database(studio: Studio, n: int, *, killed: bool) -> None:
    at_database(studio, n, Direction.TO_UPSTREAM, When.AFTER, killed=killed)


@faults
@pytest.mark.parametrize("n", [1, 3, 9])
def test_a_fault_at_a_message_of_the_provider(studio: Studio, n: int, *, killed: bool) -> None:
    at_provider(studio, n, Direction.TO_CLIENT, When.BEFORE, killed=killed)


def test_a_provider_killed_between_two_polls_still_knows_its_job(studio: Studio) -> None:
    before = len(studio.provider.jobs())
    studio.provider.fault("hold", path_contains="GET /v1/jobs/")
    worker = studio.worker()
    worker.tell("whole_task", subject="restart", owner="restart-first")
    studio.provider.wait_held()
    studio.provider.kill()
    studio.provider.restart()
    worker.answer()
    studio.check(studio.finish("restart"), before)


def test_an_interrupted_wait_ends_at_once_and_the_next_run_goes_on_with_the_job(
    studio: Studio, until: Callable[..., object]
) -> None:
    before = len(studio.provider.jobs())
    worker = studio.worker(pause=3600, poll_budget=86400)
    worker.tell("whole_task", subject="interrupted", owner="interrupted-first")
    until(lambda: [job for job in studio.provider.jobs()[before:] if job.polls == 1])
    os.kill(worker.pid, signal.SIGINT)
    assert worker.answer()["error"] == "KeyboardInterrupt"
    worker.kill()
    studio.check(studio.finish("interrupted"), before)


@pytest.mark.explore
@faults
@everywhere
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("n", range(1, DATABASE))
def test_a_fault_at_every_message_of_the_database(
    studio: Studio, n: int, direction: Direction, when: When, *, killed: bool
) -> None:
    at_database(studio, n, direction, when, killed=killed)


@pytest.mark.explore
@faults
@everywhere
@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("n", range(1, PROVIDER))
def test_a_fault_at_every_message_of_the_provider(
    studio: Studio, n: int, direction: Direction, when: When, *, killed: bool
) -> None:
    at_provider(studio, n, direction, when, killed=killed)


def test_a_whole_job_has_fewer_messages_than_are_explored(studio: Studio) -> None:
    database, provider = studio.before_database(), studio.before_provider()
    host, port = provider.address
    worker = studio.worker(url=database.url_for(studio.url), base_url=f"http://{host}:{port}/v1")
    # With leases so long that no heartbeat adds messages of its own.
    unhurried = {**PIPELINE, "sender_lease": "10m", "lease": "1h"}
    worker.ask("whole_task", subject="unhurried", owner="run", pipeline=unhurried)
    assert 80 < max(database.counts.to_upstream, database.counts.to_client) < DATABASE
    assert 3 < max(provider.counts.to_upstream, provider.counts.to_client) < PROVIDER
