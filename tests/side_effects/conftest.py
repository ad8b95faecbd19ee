import json
import multiprocessing
import runpy
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, LiteralString

import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Owner, Task
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.store import outbox
from dagster_idempotent.store.database import Database

FIRST_WEEK = datetime(2026, 1, 5, tzinfo=UTC)
SHORT = Backoff(base=timedelta(milliseconds=1), cap=timedelta(milliseconds=1))


class Digest(BaseModel):
    title: str


@dataclass(frozen=True, kw_only=True)
class House:
    """A ledger with one pipeline, and short ways to its tasks."""

    database: Database
    pipeline: Pipeline[BaseModel]
    heartbeat: Heartbeat

    def allocate(self, number: int = 0) -> Task:
        at = FIRST_WEEK + timedelta(weeks=number)
        return Allocator(self.database).allocate(
            self.pipeline,
            Identity(pipeline=self.pipeline.name, subject="", scheduled_at=at),
            launch={"partition_key": f"{at:%Y-%m-%d}"},
        )

    def claim(self, task: Task, owner: str = "run-1", *, finished: bool = False, backoff: bool = False) -> Work:
        return claim(
            self.database,
            self.heartbeat,
            self.pipeline,
            task.task_id,
            Owner(owner),
            is_finished=lambda _: finished,
            backoff=backoff,
        )

    def complete(self, number: int = 0, channels: Mapping[str, bool] | None = None) -> Task:
        work = self.claim(self.allocate(number))
        return stages.persist(work, Digest(title=f"week {number}"), dagster_run_id="run-1", channels=channels).task

    @property
    def upstream(self) -> str:
        """The server's socket, for a proxy in front of it."""
        with self.database.transaction() as connection:
            return f"{connection.info.host}/.s.PGSQL.{connection.info.port}"

    def messages(self, task: Task) -> Mapping[str, Message]:
        found = self.database.run(lambda c: outbox.list_messages(c, task.pipeline, task.task_id))
        return {message.channel: message for message in found}

    def query(self, statement: LiteralString, *parameters: object) -> list[dict[str, Any]]:
        return self.database.run(lambda c: c.execute(statement, parameters or None).fetchall())

    def change(self, statement: LiteralString, *parameters: object) -> None:
        self.database.run(lambda c: c.execute(statement, parameters or None) and None)


@pytest.fixture
def make_house(ledger: Database) -> Callable[..., House]:
    def make(**settings: object) -> House:
        pipeline = Pipeline("weekly_digest", output=Digest, **{"backoff": SHORT, **settings})
        Allocator(ledger).register(pipeline)
        return House(database=ledger, pipeline=pipeline, heartbeat=Heartbeat(ledger))

    return make


@pytest.fixture
def house(make_house: Callable[..., House]) -> House:
    return make_house()


@dataclass
class Receiver:
    """A webhook that counts what arrived by key, and answers as it is told."""

    url: str = ""
    arrived: Counter[str] = field(default_factory=Counter)
    bodies: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Mapping[str, str]] = field(default_factory=dict)
    status: int = 200
    # Called with the key once the message counts, before the answer; returns False to drop the connection instead.
    on_arrival: Callable[[str], bool] = lambda _: True
    changed: threading.Condition = field(default_factory=threading.Condition)

    def note(self, key: str, body: bytes, headers: Mapping[str, str]) -> None:
        with self.changed:
            self.arrived[key] += 1
            self.bodies[key] = json.loads(body)
            self.headers[key] = headers
            self.changed.notify_all()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    state = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            key = f"{self.path}|{self.headers['Idempotency-Key']}"
            state.note(key, body, dict(self.headers))
            if not state.on_arrival(key):
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.close_connection = True
                return
            try:
                self.send_response(state.status)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:
                self.close_connection = True  # the sender was killed

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's signature
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # a sender that was killed resets its connection

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="session")
def start_worker() -> Callable[..., BaseProcess]:
    """Start functions of workers.py in processes of their own, forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)

    def start(job: str, *arguments: object) -> BaseProcess:
        process = context.Process(
            target=runpy.run_path,
            args=(str(Path(__file__).with_name("workers.py")),),
            kwargs={"init_globals": {"JOB": job, "ARGUMENTS": arguments}, "run_name": "__worker__"},
        )
        process.start()
        return process

    return start


PRELOADED = [
    "dagster_idempotent.definitions.asset_channel",
    "dagster_idempotent.definitions.resources",
    "dagster_idempotent.domain.pipeline",
    "dagster_idempotent.engine.channels.http",
    "dagster_idempotent.engine.effects",
    "dagster_idempotent.engine.relay",
    "dagster_idempotent.engine.sweeping",
    "dagster_idempotent.providers.chat_completions",
    # What a Dagster instance loads when it is opened.
    "alembic.command",
    "fsspec.registry",
    "httpcore",
    "runpy",
]
