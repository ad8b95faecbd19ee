import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.outbox import DeliveryPolicy, Message, MessageState
from dagster_idempotent.engine import messages
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.relay import deliver_due, deliver_task
from dagster_idempotent.errors import ConfigurationError, DeliveryNotSent
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.store.outbox import SQL
from tests.side_effects.conftest import House

PATIENT = DeliveryPolicy(max_attempts=3, backoff=Backoff(base=timedelta(hours=1), cap=timedelta(hours=1)))
HASTY = DeliveryPolicy(max_attempts=3, backoff=Backoff(base=timedelta(microseconds=1), cap=timedelta(microseconds=1)))
BOTH = {"web": True, "email": False}


@dataclass
class Recorder:
    """A channel that remembers what it was given and raises what it is told to."""

    deduplicates: bool = True
    raises: Callable[[Message], Exception | None] = lambda _: None
    delivered: list[str] = field(default_factory=list)
    windows: list[timedelta] = field(default_factory=list)

    def deliver(self, message: Message, *, window: timedelta) -> str:
        self.windows.append(window)
        error = self.raises(message)
        if error is not None:
            raise error
        self.delivered.append(message.key)
        return f"receipt {len(self.delivered)}"


def test_a_delivered_message_carries_its_receipt_and_never_goes_again(house: House) -> None:
    task, web = house.complete(0, {"web": True}), Recorder()
    first = deliver_due(house.database, "weekly_digest", {"web": web})
    second = deliver_due(house.database, "weekly_digest", {"web": web})
    third = deliver_task(house.database, "weekly_digest", task.task_id, {"web": web})
    assert [d.delivered_now for d in first] == [True]
    assert second == []
    assert [d.delivered_now for d in third] == [False]
    assert web.delivered == ["weekly_digest:2026-W02-0:web"]
    message = house.messages(task)["web"]
    assert (message.state, message.receipt, message.attempts) == (MessageState.DELIVERED, "receipt 1", 1)


def test_two_pipelines_never_share_a_deduplication_key(house: House) -> None:
    message = house.messages(house.complete(0, {"web": True}))["web"]
    assert message.key == "weekly_digest:2026-W02-0:web"


def test_an_error_of_a_deduplicating_channel_makes_the_message_wait_for_its_backoff(house: House) -> None:
    task, web = house.complete(0, {"web": True}), Recorder(raises=lambda _: TimeoutError("no answer"))
    (tried,) = deliver_due(house.database, "weekly_digest", {"web": web}, policy=PATIENT)
    assert (tried.delivered_now, tried.message.state) == (False, MessageState.READY)
    assert deliver_due(house.database, "weekly_digest", {"web": Recorder()}, policy=PATIENT) == []
    (row,) = house.query("SELECT next_attempt_at - clock_timestamp() AS left, error FROM dagster_idempotent.outbox")
    assert timedelta(minutes=29) < row["left"] <= timedelta(hours=1)
    assert row["error"] == "TimeoutError: no answer"
    assert house.messages(task)["web"].state is MessageState.READY


def test_a_person_who_asks_for_one_task_does_not_wait_for_the_backoff(house: House) -> None:
    task, web = house.complete(0, {"web": True}), Recorder(raises=lambda _: TimeoutError())
    deliver_due(house.database, "weekly_digest", {"web": web}, policy=PATIENT)
    (done,) = deliver_task(house.database, "weekly_digest", task.task_id, {"web": Recorder()}, policy=PATIENT)
    assert done.delivered_now


def test_a_message_out_of_attempts_is_dead_and_keeps_its_payload_and_error(house: House) -> None:
    task, web = house.complete(0, {"web": True}), Recorder(raises=lambda _: TimeoutError("no answer"))
    tried = deliver_due(house.database, "weekly_digest", {"web": web}, policy=HASTY)
    assert [d.message.state for d in tried] == [MessageState.READY, MessageState.READY, MessageState.DEAD]
    assert deliver_due(house.database, "weekly_digest", {"web": Recorder()}, policy=HASTY) == []
    message = house.messages(task)["web"]
    assert (message.state, message.attempts, message.error) == (MessageState.DEAD, 3, "TimeoutError: no answer")
    assert message.payload == '{"title":"week 0"}'


@pytest.mark.parametrize("first_state", [MessageState.DEAD, MessageState.IN_DOUBT])
def test_a_message_that_a_person_sends_again_has_all_its_attempts_again(
    house: House, first_state: MessageState
) -> None:
    task = house.complete(0, {"web": first_state is MessageState.DEAD})
    ref = TaskRef(pipeline=task.pipeline, task_id=task.task_id)
    lost = {"web": Recorder(raises=lambda _: TimeoutError("no answer"))}
    deliver_due(house.database, "weekly_digest", lost, policy=HASTY)
    while house.messages(task)["web"].state is MessageState.READY:
        deliver_due(house.database, "weekly_digest", lost, policy=HASTY)
    assert house.messages(task)["web"].state is first_state
    who = Who(actor="ada", reason="ticket 812")
    messages.resolve(house.database, ref, "web", messages.Found.NOT_DELIVERED, evidence="the inbox is empty", who=who)
    message = house.messages(task)["web"]
    assert (message.state, message.attempts) == (MessageState.READY, 0)
    (done,) = deliver_due(house.database, "weekly_digest", {"web": Recorder()}, policy=HASTY)
    assert (done.delivered_now, done.message.attempts) == (True, 1)


def test_an_error_of_a_channel_without_deduplication_is_in_doubt_and_never_goes_again(house: House) -> None:
    task, email = house.complete(0, {"email": False}), Recorder(deduplicates=False, raises=lambda _: TimeoutError())
    deliver_due(house.database, "weekly_digest", {"email": email}, policy=HASTY)
    assert deliver_due(house.database, "weekly_digest", {"email": email}, policy=HASTY) == []
    assert house.messages(task)["email"].state is MessageState.IN_DOUBT
    assert len(email.windows) == 1


def test_a_proof_that_nothing_was_delivered_lets_any_message_go_again(house: House) -> None:
    task = house.complete(0, {"email": False})
    errors = iter([DeliveryNotSent("refused"), DeliveryNotSent("refused"), None])
    email = Recorder(deduplicates=False, raises=lambda _: next(errors))
    tried = deliver_due(house.database, "weekly_digest", {"email": email}, policy=HASTY)
    assert [d.delivered_now for d in tried] == [False, False, True]
    assert house.messages(task)["email"].attempts == 3


def test_a_failing_channel_and_a_failing_message_delay_no_other(house: House) -> None:
    for number in range(10):
        house.complete(number, BOTH)
    poison = "weekly_digest:2026-W02-0:web"
    web = Recorder(raises=lambda message: OSError() if message.key == poison else None)
    email = Recorder(deduplicates=False)
    deliver_due(house.database, "weekly_digest", {"web": web, "email": email}, policy=PATIENT)
    assert len(web.delivered) == 9
    assert len(email.delivered) == 9  # the tenth waits for the earlier message of its own task


def test_the_messages_of_a_task_go_in_the_order_in_which_its_channels_were_declared(house: House) -> None:
    order: list[str] = []
    channels = {
        name: Recorder(raises=lambda message: order.append(message.channel)) for name in ("zeta", "alpha", "mid")
    }
    task = house.complete(0, {"zeta": True, "alpha": True, "mid": True})
    deliver_due(house.database, "weekly_digest", dict(reversed(channels.items())))
    assert order == ["zeta", "alpha", "mid"]
    assert list(house.messages(task)) == ["zeta", "alpha", "mid"]


def test_a_later_message_waits_for_an_earlier_one_that_is_retried_and_not_for_one_in_doubt(house: House) -> None:
    house.complete(0, {"first": True, "second": True})
    house.complete(1, {"first": False, "second": True})
    first, second = Recorder(raises=lambda _: TimeoutError()), Recorder()
    deliver_due(house.database, "weekly_digest", {"first": first, "second": second}, policy=PATIENT)
    assert second.delivered == ["weekly_digest:2026-W03-0:second"]


def test_an_error_reaches_whoever_asked_for_one_task(house: House) -> None:
    task, web = house.complete(0, {"web": True}), Recorder(raises=lambda _: TimeoutError("no answer"))
    with pytest.raises(TimeoutError, match="no answer"):
        deliver_task(house.database, "weekly_digest", task.task_id, {"web": web})
    assert house.messages(task)["web"].error == "TimeoutError: no answer"


def test_a_channel_gets_no_longer_window_than_the_pipeline_allows(make_house: Callable[..., House]) -> None:
    house, web = make_house(send_window="7s"), Recorder()
    house.complete(0, {"web": True})
    deliver_due(house.database, "weekly_digest", {"web": web})
    assert timedelta(seconds=5) < web.windows[0] <= timedelta(seconds=7)


def test_nothing_is_handed_to_a_channel_once_the_window_is_over(make_house: Callable[..., House]) -> None:
    house, web = make_house(send_window="1ms", sender_lease="1h"), Recorder(deduplicates=False)
    task = house.complete(0, {"web": False})
    lock = house.database.connect()
    try:
        with lock.transaction():
            lock.execute("LOCK TABLE dagster_idempotent.pipelines IN ACCESS EXCLUSIVE MODE")
            relay = threading.Thread(
                target=deliver_due, args=(house.database, "weekly_digest", {"web": web}), kwargs={"limit": 1}
            )
            relay.start()
            wait_for_lock_waiter(house)
    finally:
        lock.close()
    relay.join(30)
    assert web.windows == []
    message = house.messages(task)["web"]
    assert (message.state, message.attempts) == (MessageState.READY, 0)


def wait_for_lock_waiter(house: House) -> None:
    waiting = (
        "SELECT count(*) AS n FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    watcher = house.database.connect()
    try:
        for _ in range(20_000):
            if watcher.execute(waiting).fetchone()["n"]:
                return
    finally:
        watcher.close()
    pytest.fail("nobody waits for the lock")


def test_a_delivery_eight_times_as_long_as_the_senders_lease_is_not_taken_over(
    make_house: Callable[..., House],
) -> None:
    house = make_house(sender_lease="300ms", send_window="100ms")
    task = house.complete(0, {"email": False})
    began, may_end = threading.Event(), threading.Event()

    class Slow(Recorder):
        def deliver(self, message: Message, *, window: timedelta) -> str:
            began.set()
            assert may_end.wait(30)
            return super().deliver(message, window=window)

    slow, second = Slow(deduplicates=False), Recorder(deduplicates=False)
    relay = threading.Thread(target=deliver_due, args=(house.database, "weekly_digest", {"email": slow}))
    relay.start()
    assert began.wait(30)
    first_expiry = house.query("SELECT sender_expires_at AS at FROM dagster_idempotent.outbox")[0]["at"]
    while house.query("SELECT clock_timestamp() AS at")[0]["at"] < first_expiry + timedelta(seconds=2.4):
        assert deliver_due(house.database, "weekly_digest", {"email": second}) == []
    may_end.set()
    relay.join(30)
    assert second.delivered == []
    assert house.messages(task)["email"].state is MessageState.DELIVERED


def test_what_a_dead_relay_left_is_in_doubt_or_goes_again_under_the_same_key(house: House) -> None:
    task = house.complete(0, BOTH)
    house.change(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', sender = gen_random_uuid(), attempts = 1, "
        "sender_expires_at = clock_timestamp() - interval '1s'"
    )
    web, email = Recorder(), Recorder(deduplicates=False)
    deliver_due(house.database, "weekly_digest", {"web": web, "email": email}, policy=HASTY)
    assert house.messages(task)["email"].state is MessageState.IN_DOUBT
    assert email.windows == []
    assert web.delivered == ["weekly_digest:2026-W02-0:web"]


def test_a_message_that_kills_its_relay_each_time_is_dead_in_the_end(house: House) -> None:
    task = house.complete(0, {"web": True})
    house.change(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', sender = gen_random_uuid(), attempts = 3, "
        "sender_expires_at = clock_timestamp() - interval '1s'"
    )
    assert deliver_due(house.database, "weekly_digest", {"web": Recorder()}, policy=HASTY) == []
    assert house.messages(task)["web"].state is MessageState.DEAD


def test_an_acknowledgement_that_comes_after_the_relay_was_thought_dead_still_counts(
    make_house: Callable[..., House],
) -> None:
    house = make_house(sender_lease="1h", send_window="1m")
    task = house.complete(0, {"email": False})

    def thought_dead(_: Message) -> None:
        house.change("UPDATE dagster_idempotent.outbox SET sender_expires_at = clock_timestamp() - interval '1s'")
        assert deliver_due(house.database, "weekly_digest", {"email": Recorder(deduplicates=False)}) == []
        assert house.messages(task)["email"].state is MessageState.IN_DOUBT

    deliver_due(house.database, "weekly_digest", {"email": Recorder(deduplicates=False, raises=thought_dead)})
    assert house.messages(task)["email"].state is MessageState.DELIVERED


def test_a_message_behind_a_publish_gate_goes_once_it_is_approved(make_house: Callable[..., House]) -> None:
    house, web = make_house(approval="publish"), Recorder()
    task = house.complete(0, {"web": True})
    assert deliver_due(house.database, "weekly_digest", {"web": web}) == []
    assert house.messages(task)["web"].state is MessageState.WAITING
    house.change(
        "INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, shown_sha256) "
        "VALUES ('weekly_digest', %s, 'publish', 'ann', 'read it', repeat('0', 64))",
        task.task_id,
    )
    assert [d.delivered_now for d in deliver_due(house.database, "weekly_digest", {"web": web})] == [True]


def test_a_policy_without_attempts_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected at least 1"):
        DeliveryPolicy(max_attempts=0)


def test_taking_a_message_reads_no_other_channels_and_no_delivered_messages(house: House) -> None:
    task = house.complete(0, {"web": True})
    house.change(
        "INSERT INTO dagster_idempotent.outbox "
        "(pipeline, task_id, channel, payload, state, deduplicates, delivered_at) "
        "SELECT pipeline, task_id, 'old' || n, payload, 'delivered', true, clock_timestamp() "
        "FROM dagster_idempotent.outbox, generate_series(1, 20000) n WHERE task_id = %s",
        task.task_id,
    )
    house.change("ANALYZE dagster_idempotent.outbox")
    parameters = {"pipeline": "weekly_digest", "channel": "web", "sender": "00000000-0000-0000-0000-000000000001"}
    plan = house.database.run(lambda c: c.execute("EXPLAIN " + SQL["take_due_message"], parameters).fetchall())
    text = "\n".join(row["QUERY PLAN"] for row in plan)
    assert "Seq Scan on outbox" not in text
    assert "outbox_due" in text
