"""What the processes of the crash tests do: `JOB(*ARGUMENTS)`, from whoever runs this file; killed at any moment."""

import json
import os
import select
import signal
from datetime import timedelta

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent import (
    AssetChannel,
    Backoff,
    DeliveryPolicy,
    FileChannel,
    HttpChannel,
    LedgerResource,
    Message,
    PaidChannel,
    Pipeline,
    SqlChannel,
)
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.relay import deliver_due, deliver_task
from dagster_idempotent.engine.sweeping import due_tasks
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import LeaseBusy, TaskClosed
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Connection, Database

SHORT = Backoff(base=timedelta(milliseconds=1), cap=timedelta(milliseconds=20))
UNDELIVERED = "SELECT count(*) AS n FROM dagster_idempotent.outbox WHERE state IN ('waiting', 'ready', 'sending')"


class Digest(BaseModel):
    title: str


def publish(connection: Connection, message: Message) -> str:
    connection.execute("UPDATE counters SET n = n + 1")  # relative: once too often would show
    connection.execute(
        "INSERT INTO published (key, title) VALUES (%s, %s)", (message.key, json.loads(message.payload)["title"])
    )
    return "committed"


def relay(url: str, hook: str, folder: str) -> None:
    """Deliver until every message has an outcome."""
    database = Database(url)
    channels = {
        "hook": HttpChannel(hook + "/hook", deduplicates=True),
        "plain": HttpChannel(hook + "/plain", deduplicates=False),
        "rows": SqlChannel(publish),
        "file": FileChannel(folder),
    }
    policy, heartbeat = DeliveryPolicy(max_attempts=1000, backoff=SHORT), Heartbeat(database)
    while database.run(lambda c: c.execute(UNDELIVERED).fetchone())["n"]:
        if not deliver_due(database, "weekly_digest", channels, policy=policy, heartbeat=heartbeat):
            select.select([], [], [], 0.05)  # what is left waits for its backoff or for a sender to expire


def work(url: str, poison: str) -> None:
    """Do every task that is due; one of them kills whoever collects it."""
    database = Database(url)
    heartbeat = Heartbeat(database)
    pipeline = Pipeline("weekly_digest", output=Digest, lease="1s", max_attempts=3, backoff=SHORT)
    while batch := due_tasks(database, pipeline.name, is_finished=_is_over).tasks:
        for due in batch:
            owner = Owner(f"run-{os.getpid()}")
            try:
                claimed = claim(database, heartbeat, pipeline, due.task_id, owner, is_finished=_is_over)
            except (TaskClosed, LeaseBusy):
                continue
            with claimed.renewed():
                if due.task_id == poison:
                    os.kill(os.getpid(), signal.SIGKILL)
                stages.collect(claimed, lambda: "raw")
                stages.persist(claimed, Digest(title="done"), dagster_run_id=owner)


def send(url: str, task_id: str) -> None:
    """Send 10 from A to B."""
    ledger = LedgerResource(url=url)
    task = ledger.get_task(Pipeline("weekly_digest", output=Digest), task_id)
    with ledger.transaction("send", task=task, request={"from": "A", "to": "B", "amount": 10}) as tx:
        if tx.is_first:
            tx.execute("UPDATE accounts SET balance = balance - 10 WHERE name = 'A'")
            tx.execute("UPDATE accounts SET balance = balance + 10 WHERE name = 'B'")
            tx.result = "sent"


def report(url: str, task_id: str, home: str) -> None:
    """Deliver one message to Dagster's asset catalogue."""
    with dg.DagsterInstance.from_config(home) as instance:
        deliver_task(Database(url), "weekly_digest", task_id, {"catalogue": AssetChannel("digest", instance=instance)})


def charge(url: str, task_id: str, provider: str) -> None:
    """Deliver one message by a paid call."""
    os.environ["KEY"] = "secret"
    adapter = ChatCompletionsProvider(
        base_url=provider, api_key_variable="KEY", look_up_path="/lookup", settle_delay=timedelta(milliseconds=1)
    )
    pipeline = Pipeline("weekly_digest", output=Digest, sender_lease="1s", send_window="900ms")
    bill = {"model": "m", "messages": [{"role": "user", "content": "bill for one week"}]}
    channel = PaidChannel(pipeline, adapter, lambda calls, _: calls.call("charge", bill).text)
    deliver_task(Database(url), "weekly_digest", task_id, {"bill": channel})


def _is_over(owner: Owner) -> bool:
    try:
        os.kill(int(owner.removeprefix("run-")), 0)
    except ProcessLookupError:
        return True
    return False


if __name__ == "__worker__":
    globals()[globals()["JOB"]](*globals()["ARGUMENTS"])
