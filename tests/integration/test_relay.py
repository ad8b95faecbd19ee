"""Delivery: at most once where a channel cannot deduplicate, acknowledged before it is called delivered (R32)."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.channels.file import FileChannel
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.relay import Channel, Delivery, deliver_task
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import DeliveryNotSent
from dagster_idempotent.store.database import Database

Sql = psycopg.Connection[dict[str, Any]]
IDENTITY = Identity(pipeline="weekly_digest", scheduled_at=datetime(2026, 8, 3, tzinfo=UTC))


class Digest(BaseModel):
    title: str


class Mailbox:
    """A channel with effects that can be counted; `then` runs after each."""

    def __init__(self, *, deduplicates: bool = False, then: Callable[[], None] = lambda: None) -> None:
        self.deduplicates = deduplicates
        self.received: list[str] = []
        self.windows: list[timedelta] = []
        self._then = then

    def deliver(self, message: Message, *, window: timedelta) -> str:
        self.received.append(message.key)
        self.windows.append(window)
        self._then()
        return f"receipt {len(self.received)}"


def fail(error: BaseException) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then


def finished(ledger: Database, channels: Mapping[str, bool], **settings: Any) -> TaskId:
    pipeline = Pipeline("weekly_digest", output=Digest, **settings)
    task = Allocator(ledger).allocate(pipeline, IDENTITY)
    work = claim(ledger, Heartbeat(ledger), pipeline, task.task_id, Owner("run"), is_finished=lambda _: False)
    stages.persist(work, {"title": "t"}, dagster_run_id="run", channels=channels)
    return task.task_id


def deliver(ledger: Database, task_id: TaskId, **channels: Channel) -> list[Delivery]:
    return deliver_task(ledger, "weekly_digest", task_id, channels)


def states(sql: Sql) -> dict[str, str]:
    rows = sql.execute("SELECT channel, state FROM dagster_idempotent.outbox ORDER BY channel")
    return {row["channel"]: row["state"] for row in rows}


def test_a_message_is_delivered_once_with_its_receipt(ledger: Database, sql: Sql) -> None:
    task_id = finished(ledger, {"mail": False})
    mailbox = Mailbox()
    found = [deliver(ledger, task_id, mail=mailbox)[0] for _ in range(3)]
    assert [delivery.delivered_now for delivery in found] == [True, False, False]
    assert [delivery.message.receipt for delivery in found] == ["receipt 1"] * 3
    assert mailbox.received == [f"{task_id}:mail"]
    assert states(sql) == {"mail": "delivered"}


def test_of_many_relays_at_once_one_delivers(ledger: Database) -> None:
    task_id = finished(ledger, {"mail": False})
    mailbox, everybody = Mailbox(), Barrier(4)

    def relay(_: int) -> bool:
        everybody.wait()
        return deliver(ledger, task_id, mail=mailbox)[0].delivered_now

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(relay, range(4))) == [False, False, False, True]
    assert len(mailbox.received) == 1


@pytest.mark.parametrize("error", [ValueError("timed out"), KeyboardInterrupt(), OSError("reset")])
def test_an_error_of_a_channel_leaves_the_message_in_doubt_and_it_never_goes_again(
    ledger: Database, sql: Sql, error: BaseException
) -> None:
    task_id = finished(ledger, {"mail": False})
    mailbox = Mailbox(then=fail(error))
    with pytest.raises(type(error)):
        deliver(ledger, task_id, mail=mailbox)
    for _ in range(3):
        assert deliver(ledger, task_id, mail=mailbox)[0].delivered_now is False
    assert states(sql) == {"mail": "in_doubt"}
    assert len(mailbox.received) == 1


def test_what_was_proved_undelivered_goes_again(ledger: Database, sql: Sql) -> None:
    task_id = finished(ledger, {"mail": False})
    with pytest.raises(DeliveryNotSent):
        deliver(ledger, task_id, mail=Mailbox(then=fail(DeliveryNotSent("no connection"))))
    assert states(sql) == {"mail": "ready"}
    assert deliver(ledger, task_id, mail=Mailbox())[0].delivered_now is True


@pytest.mark.parametrize(("deduplicates", "state", "sends"), [(False, "in_doubt", 1), (True, "delivered", 2)])
def test_a_relay_that_died_leaves_doubt_unless_the_channel_deduplicates(
    ledger: Database, sql: Sql, *, deduplicates: bool, state: str, sends: int
) -> None:
    task_id = finished(ledger, {"mail": deduplicates})
    sent: list[str] = []

    def die() -> None:
        # As if the process had been killed here: nothing is written, and in time its lease is over.
        sent.append("mail")
        with psycopg.connect(ledger.url) as other:
            other.execute("SET session_replication_role = replica")
            other.execute("UPDATE dagster_idempotent.outbox SET sender = gen_random_uuid(), sender_expires_at = now()")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        deliver(ledger, task_id, mail=Mailbox(deduplicates=deduplicates, then=die))
    assert states(sql) == {"mail": "sending"}
    deliver(ledger, task_id, mail=Mailbox(deduplicates=deduplicates, then=lambda: sent.append("mail")))
    assert states(sql) == {"mail": state}
    assert len(sent) == sends


@pytest.mark.parametrize("deduplicates", [True, False])
def test_attempts_that_are_spent_make_a_message_dead(ledger: Database, sql: Sql, *, deduplicates: bool) -> None:
    task_id = finished(ledger, {"mail": deduplicates}, max_attempts=3)
    mailbox = Mailbox(deduplicates=deduplicates, then=fail(DeliveryNotSent("no connection")))
    for number in (1, 2, 3):
        with pytest.raises(DeliveryNotSent):
            deliver(ledger, task_id, mail=mailbox)
        assert states(sql) == {"mail": "ready" if number < 3 else "dead"}
    deliver(ledger, task_id, mail=mailbox)
    assert len(mailbox.received) == 3


def test_one_channel_in_doubt_does_not_hold_up_another(ledger: Database, sql: Sql) -> None:
    task_id = finished(ledger, {"a_mail": False, "b_site": False})
    site = Mailbox()
    with pytest.raises(ValueError, match="broken"):
        deliver(ledger, task_id, a_mail=Mailbox(then=fail(ValueError("broken"))), b_site=site)
    deliver(ledger, task_id, a_mail=Mailbox(), b_site=site)
    assert states(sql) == {"a_mail": "in_doubt", "b_site": "delivered"}


def test_a_closed_publish_gate_keeps_messages_waiting(ledger: Database, sql: Sql) -> None:
    task_id = finished(ledger, {"mail": False}, approval="publish")
    mailbox = Mailbox()
    deliver(ledger, task_id, mail=mailbox)
    assert states(sql) == {"mail": "waiting"}
    assert mailbox.received == []


def test_a_channel_gets_what_is_left_of_the_window(ledger: Database) -> None:
    task_id = finished(ledger, {"mail": False}, send_window="10s")
    mailbox = Mailbox()
    deliver(ledger, task_id, mail=mailbox)
    assert timedelta(0) < mailbox.windows[0] < timedelta(seconds=10)


def test_a_relay_that_slept_past_its_window_delivers_nothing(
    ledger: Database, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = finished(ledger, {"mail": False})
    clock = iter([0.0, 11.0])
    monkeypatch.setattr("dagster_idempotent.engine.relay.boot_time", lambda: next(clock))
    mailbox = Mailbox()
    with pytest.raises(DeliveryNotSent, match="send window"):
        deliver(ledger, task_id, mail=mailbox)
    assert states(sql) == {"mail": "ready"}
    assert mailbox.received == []


def test_a_file_written_twice_is_one_file_with_the_output(ledger: Database, tmp_path: Path) -> None:
    task_id = finished(ledger, {"file": True})
    channel = FileChannel(tmp_path)
    (delivery,) = deliver(ledger, task_id, file=channel)
    for _ in range(2):
        channel.deliver(delivery.message, window=timedelta(seconds=1))
    (file,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert file == channel.path_of(delivery.message)
    assert file.read_text() == '{"title":"t"}'
