"""What one worker process can be told to do."""

import os
import signal
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from orders import Digest, Order, job_provider, pipeline_of, request_of

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.task import HeldFor
from dagster_idempotent.engine import relay, stages
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.channels.file import FileChannel
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.large_artifacts import LargeArtifacts
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import CallNotSent, IdempotentError
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store import leases
from dagster_idempotent.store.database import Database


class Worker:
    """What one worker process has open."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._databases: dict[str, Database] = {}
        self._work: Work | None = None

    def database(self, order: Order) -> Database:
        url = order["url"]
        if url not in self._databases:
            self._databases[url] = Database(url)
        return self._databases[url]

    def provider(self, order: Order) -> Any:
        options = dict(order["provider"])
        if "job_api" in options:
            return job_provider(options)
        for name in ("settle_delay", "key_window", "read_timeout"):
            if name in options:
                options[name] = timedelta(seconds=options[name])
        if "upper_bound" in options:
            options["upper_bound"] = Money.parse(options["upper_bound"])
        return ChatCompletionsProvider(**options)

    def set_clock(self, order: Order) -> object:
        """Put the wall clock of this process wrong by so many seconds, as everything in it sees it."""
        off, right, right_ns, real = order["seconds"], time.time, time.time_ns, datetime

        class Shifted(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> Self:
                return cls.fromtimestamp(right() + off, tz)

        time.time, time.time_ns = lambda: right() + off, lambda: right_ns() + off * 10**9
        for module in list(sys.modules.values()):
            if getattr(module, "datetime", None) is real:
                module.datetime = Shifted  # pyright: ignore[reportAttributeAccessIssue]
        return datetime.now(UTC).timestamp() - right()

    def connect(self, order: Order) -> object:
        self.database(order).run(lambda c: c.execute("SELECT 1").fetchone())
        return None

    def allocate(self, order: Order) -> object:
        pipeline = pipeline_of(order)
        identity = Identity(
            pipeline=pipeline.name,
            subject=order.get("subject", ""),
            scheduled_at=datetime.fromisoformat(order.get("scheduled_at", "2026-08-03T00:00:00+00:00")),
        )
        return Allocator(self.database(order)).allocate(pipeline, identity).task_id

    def claim(self, order: Order) -> object:
        database, pipeline = self.database(order), pipeline_of(order)
        finished = set(order.get("finished", []))
        providers = [self.provider(order)] if "provider" in order else []
        self._work = claim(
            database,
            Heartbeat(database),
            pipeline,
            order["task_id"],
            order["owner"],
            is_finished=lambda owner: owner in finished or "*" in finished,
            providers=providers,
        )
        return {"token": self._work.lease.token, "attempt": self._work.attempt}

    def renew(self, order: Order) -> object:
        return self.database(order).run(lambda c: leases.renew(c, self.work.lease)) is not None

    def fail(self, order: Order) -> object:
        return self.work.fail(order.get("error", "it broke"))

    def hold(self, _: Order) -> object:
        self.work.hold(HeldFor.IN_DOUBT, "in doubt")
        return None

    def persist(self, order: Order) -> object:
        persisted = stages.persist(
            self.work,
            {"title": order["title"], "highlights": []},
            dagster_run_id=self.work.lease.owner,
            channels={"file": True},
        )
        return {"accepted_now": persisted.accepted_now, "output": persisted.output.model_dump()}

    def call(self, order: Order) -> object:
        """One paid call inside the renewed lease."""
        with self.work.renewed():
            calls = Calls(self.work, self.provider(order))
            calls.call(order.get("call", "summary"), request_of(order))
            result = calls.work.results[-1]
        return {"replayed": result.replayed, "settled_by": result.settled_by, "submission": result.submission}

    def map(self, order: Order) -> object:
        """Many paid calls inside the renewed lease; SIGTERM is an interrupt, as it is in a Dagster step."""
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if "log" in order:
            self.work.log = lambda line: Path(order["log"]).write_text(line)
        with self.work.renewed():
            calls = Calls(self.work, self.provider(order))
            answers = calls.map(
                range(order["items"]),
                key=lambda number: f"item-{number}",
                # The task stands in it, so that each request at the provider is told apart.
                request=lambda number: request_of({**order, "content": f"item {number} of {order.get('task_id', '')}"}),
                concurrency=order.get("concurrency", 16),
            )
        return {"answers": len(answers), "paid": sum(not result.replayed for result in calls.work.results)}

    def call_in_fork_too(self, order: Order) -> object:
        """One paid call whose process forks between the intent and the request; the child goes on as well."""
        database, kind, seen = self.database(order), ChatCompletionsProvider, {}

        class Forking(kind):
            def submit(self, request: Any, *, key: Any, window: Any) -> Any:
                child = os.fork()
                if child:
                    seen["child"] = os.waitpid(child, 0)[1]
                    row = database.run(
                        lambda c: c.execute("SELECT state FROM dagster_idempotent.submissions").fetchone()
                    )
                    seen["state_after_child"] = None if row is None else row["state"]
                else:
                    seen["in_child"] = True
                return super().submit(request, key=key, window=window)

        provider = Forking(**order["provider"])
        try:
            with self.work.renewed():
                calls = Calls(self.work, provider)
                calls.call("summary", request_of(order))
        except CallNotSent:
            if seen.get("in_child"):
                os._exit(7)
            raise
        if seen.get("in_child"):
            os._exit(8)
        child = "CallNotSent" if os.waitstatus_to_exitcode(seen["child"]) == 7 else seen["child"]
        return {
            "child": child,
            "state_after_child": seen["state_after_child"],
            "replayed": calls.work.results[-1].replayed,
        }

    def renew_in_child_too(self, order: Order) -> object:
        """Fork inside a renewed lease; the child claims a task of its own and renews that, until it is killed."""
        database, pipeline, heartbeat = self.database(order), pipeline_of(order), self.work.heartbeat
        with self.work.renewed():
            child = os.fork()
            if child == 0:
                own = claim(database, heartbeat, pipeline, order["task_id"], order["own"], is_finished=lambda _: False)
                with own.renewed():
                    signal.pause()
                os._exit(0)
            while database.run(
                lambda c: c.execute(
                    "SELECT owner FROM dagster_idempotent.tasks WHERE task_id = %s", [order["task_id"]]
                ).fetchone()
            ) != {"owner": order["own"]}:
                os.sched_yield()
        return child

    def query_in_fork_too(self, order: Order) -> object:
        """Ask for the backend's pid before a fork, in the child, and in the parent after the child has ended."""
        database = self.database(order)

        def backend() -> int:
            row = database.run(lambda c: c.execute("SELECT pg_backend_pid() AS pid").fetchone())
            assert row is not None
            return row["pid"]

        before = backend()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(write, str(backend()).encode())
            database.close()
            os._exit(0)
        os.waitpid(child, 0)
        return {"before": before, "child": int(os.read(read, 20)), "after": backend()}

    def whole_task(self, order: Order) -> object:
        """Allocate, claim, collect, call, persist and deliver, as the ops of one run do it."""
        order["task_id"] = self.allocate(order)
        database, pipeline = self.database(order), pipeline_of(order)
        channels = {"file": FileChannel(order["folder"])}
        try:
            self.claim(order)
        except IdempotentError as error:
            if getattr(error, "status", None) != "completed":
                raise
        else:
            with self.work.renewed():
                raw, _ = stages.collect(self.work, lambda: "what was collected")
                calls = Calls(self.work, self.provider(order))
                if "job_api" in order["provider"]:
                    self.work.large = LargeArtifacts(base_uri=order["artifacts"], threshold=100)
                    made = calls.call("summary", {"prompt": order["subject"], "bytes": 1000})
                    digest = Digest(title=sha256(made.body).hexdigest(), highlights=[])
                else:
                    digest = calls.ask("summary", {**request_of(order), "input": raw.text()}, accept=Digest)
                stages.persist(self.work, digest, dagster_run_id=order["owner"], channels={"file": True})
        deliveries = relay.deliver_task(database, pipeline.name, order["task_id"], channels)
        return {"task_id": order["task_id"], "messages": [delivery.message.state for delivery in deliveries]}

    @property
    def work(self) -> Work:
        if self._work is None:
            raise AssertionError("claim first")
        return self._work
