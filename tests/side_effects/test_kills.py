import itertools
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic

import pytest

from dagster_idempotent import FileChannel, HttpChannel, SqlChannel
from dagster_idempotent.domain.outbox import DeliveryPolicy, Message, MessageState
from dagster_idempotent.domain.task import TaskStatus
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.engine.sweeping import sweep_pipeline
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from tests.side_effects.conftest import SHORT, House, Receiver

Start = Callable[..., BaseProcess]
CHANNELS = {"hook": True, "plain": False, "rows": True, "file": True}


def test_a_poison_input_that_kills_each_worker_is_a_dead_letter_while_a_hundred_other_tasks_finish(
    make_house: Callable[..., House], start_worker: Start
) -> None:
    house = make_house(lease="1s", max_attempts=3)
    poison, *others = [house.allocate(number).task_id for number in range(101)]
    exits: list[int | None] = []
    for _ in within(60):
        process = start_worker("work", house.database.url, poison)
        process.join(60)
        exits.append(process.exitcode)
        sweep_pipeline(house.database, house.pipeline.name, is_finished=lambda _: False)
        if get_task(house.database, house.pipeline.name, poison).status is TaskStatus.DEAD:
            break
        select.select([], [], [], 0.1)
    assert [code for code in exits if code] == [-signal.SIGKILL] * 3
    assert get_task(house.database, house.pipeline.name, poison).attempts == 3
    statuses = house.query("SELECT task_id, status, attempts FROM dagster_idempotent.tasks ORDER BY task_id")
    assert {row["status"] for row in statuses if row["task_id"] in others} == {"completed"}
    assert {row["attempts"] for row in statuses if row["task_id"] in others} == {1}


def test_two_relays_killed_over_and_over_deliver_sixty_messages_once(
    make_house: Callable[..., House], receiver: Receiver, start_worker: Start, tmp_path: Path
) -> None:
    deliver_under_fire(make_house, receiver, start_worker, tmp_path, tasks=15, kill_every=5)


@pytest.mark.explore
def test_two_relays_killed_over_and_over_deliver_a_thousand_messages_once(
    make_house: Callable[..., House], receiver: Receiver, start_worker: Start, tmp_path: Path
) -> None:
    deliver_under_fire(make_house, receiver, start_worker, tmp_path, tasks=250, kill_every=9)


def deliver_under_fire(
    make_house: Callable[..., House],
    receiver: Receiver,
    start_worker: Start,
    folder: Path,
    *,
    tasks: int,
    kill_every: int,
) -> None:
    """Two relays; of the requests that arrive, one in `kill_every` kills a relay, one in seven gets no answer."""
    house = make_house(sender_lease="700ms", send_window="300ms")
    house.change("CREATE TABLE published (key text PRIMARY KEY, title text)")
    house.change("CREATE TABLE counters (n integer)")
    house.change("INSERT INTO counters VALUES (0)")
    done = [house.complete(number, CHANNELS) for number in range(tasks)]
    relays: list[BaseProcess] = []
    arrivals, kills, lock = itertools.count(1), itertools.count(), threading.Lock()

    def strike(_: str) -> bool:
        with lock:
            arrival = next(arrivals)
            if arrival % kill_every == 0:
                os.kill(relays[next(kills) % 2].pid or 0, signal.SIGKILL)
            return arrival % 7 != 0

    receiver.on_arrival = strike
    arguments = (house.database.url, receiver.url, str(folder))
    relays.extend(start_worker("relay", *arguments) for _ in range(2))
    for _ in within(600):
        for number, process in enumerate(relays):
            process.join(0.05)
            if process.exitcode not in (None, 0):
                relays[number] = start_worker("relay", *arguments)
        if all(process.exitcode == 0 for process in relays):
            break
    assert next(kills) >= 3
    keys = {channel: {house.messages(task)[channel].key for task in done} for channel in CHANNELS}
    messages = [message for task in done for message in house.messages(task).values()]
    assert {message.state for message in messages if message.channel != "plain"} == {MessageState.DELIVERED}
    # Each deduplicating channel: every key arrived, and counts once whatever was repeated.
    assert {key.partition("|")[2] for key in receiver.arrived if key.startswith("/hook|")} == keys["hook"]
    assert {row["key"] for row in house.query("SELECT key FROM published")} == keys["rows"]
    assert house.query("SELECT n FROM counters") == [{"n": tasks}]
    assert len(list(folder.rglob("*.json"))) == tasks
    # The other: never twice; delivered means that it arrived; the rest is in doubt, and nothing is lost.
    plain = {message.key: message.state for message in messages if message.channel == "plain"}
    assert set(plain.values()) <= {MessageState.DELIVERED, MessageState.IN_DOUBT}
    for key, state in plain.items():
        arrived = receiver.arrived[f"/plain|{key}"]
        assert arrived <= 1, key
        assert state is MessageState.IN_DOUBT or arrived == 1, key


def run(process: BaseProcess) -> None:
    process.join(60)
    assert process.exitcode == 0


def within(seconds: float) -> Iterator[None]:
    """Go on until the deadline; a loop that runs into it fails."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        yield
    pytest.fail(f"not done within {seconds} s")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_relay_cut_off_at_any_message_delivers_each_message_once(
    make_house: Callable[..., House], receiver: Receiver, tmp_path: Path, when: str
) -> None:
    house = make_house(sender_lease="1s", send_window="900ms")
    house.change("CREATE TABLE published (key text PRIMARY KEY, title text)")
    house.change("CREATE TABLE counters (n integer)")
    house.change("INSERT INTO counters VALUES (0)")
    channels = {
        "plain": HttpChannel(receiver.url + "/plain", deduplicates=False),
        "rows": SqlChannel(publish),
        "file": FileChannel(tmp_path),
    }
    with FaultProxy(house.upstream, protocol="postgres") as proxy:
        tasks = []
        for number in itertools.count():
            tasks.append(house.complete(number, dict.fromkeys(channels, True) | {"plain": False}))
            assert proxy.wait_idle()
            start = proxy.counts.to_upstream
            proxy.at(start + number + 1, action=proxy.cut_all, when=when)
            database = Database(proxy.url_for(house.database.url))
            deliver_due(database, house.pipeline.name, channels, policy=DeliveryPolicy(backoff=SHORT), limit=3)
            database.close()
            if proxy.counts.to_upstream - start <= number:  # it took fewer messages than that
                break
    for _ in within(30):
        deliver_due(house.database, house.pipeline.name, channels, policy=DeliveryPolicy(backoff=SHORT))
        if not house.query("SELECT FROM dagster_idempotent.outbox WHERE state IN ('ready', 'sending')"):
            break
    assert len(tasks) > 40
    assert house.query("SELECT n FROM counters") == [{"n": len(tasks)}]
    assert len(list(tmp_path.rglob("*.json"))) == len(tasks)
    # The connection was cut and the relay lived: it knew what it had delivered, so nothing is in doubt.
    states = {message.state for task in tasks for message in house.messages(task).values()}
    assert states == {MessageState.DELIVERED}
    assert set(receiver.arrived.values()) == {1}
    assert len(receiver.arrived) == len(tasks)


def publish(connection: Connection, message: Message) -> None:
    connection.execute("UPDATE counters SET n = n + 1")
    connection.execute("INSERT INTO published (key) VALUES (%s)", (message.key,))
