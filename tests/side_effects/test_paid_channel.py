from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from dagster_idempotent import DeliveryPolicy, Message, PaidChannel
from dagster_idempotent.domain.outbox import MessageState
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.side_effects.conftest import SHORT, House

BILL = {"model": "m", "messages": [{"role": "user", "content": "bill for one week"}]}
POLICY = DeliveryPolicy(max_attempts=1000, backoff=SHORT)
CALLS = "SELECT call_key, state, owner FROM dagster_idempotent.submissions ORDER BY task_id, submission"


@pytest.fixture
def shop(make_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("KEY", "secret")
    return make_house(sender_lease="1s", send_window="900ms")


def bill(house: House, provider: MeteredProvider, pay: Callable[[Calls, Message], object], **settings: object) -> dict:
    adapter = ChatCompletionsProvider(
        base_url=provider.base_url,
        api_key_variable="KEY",
        **{"look_up_path": "/lookup", "settle_delay": timedelta(milliseconds=1), **settings},
    )
    return {"bill": PaidChannel(house.pipeline, adapter, pay)}


def charge(calls: Calls, _: Message) -> str:
    return calls.call("charge", BILL).text


def settle(house: House, channels: dict, policy: DeliveryPolicy = POLICY) -> MessageState:
    undelivered = "SELECT FROM dagster_idempotent.outbox WHERE state IN ('ready', 'sending')"
    while house.query(undelivered):
        deliver_due(house.database, house.pipeline.name, channels, policy=policy)
    (state,) = {row["state"] for row in house.query("SELECT state FROM dagster_idempotent.outbox")}
    return MessageState(state)


def test_a_delivery_that_charges_goes_through_the_guard(shop: House, metered_provider: MeteredProvider) -> None:
    task = shop.complete(0, {"bill": True})
    (done,) = deliver_due(shop.database, shop.pipeline.name, bill(shop, metered_provider, charge))
    assert done.delivered_now
    assert metered_provider.charges == 1
    (call,) = shop.query(CALLS)
    assert (call["call_key"], call["state"]) == ("deliver/bill/charge", "succeeded")
    assert call["owner"].startswith("outbox:bill:")
    assert shop.messages(task)["bill"].receipt


def test_a_delivery_that_fails_after_its_charge_replays_it(shop: House, metered_provider: MeteredProvider) -> None:
    fails = iter([True, True, False])

    def charge_and_fail(calls: Calls, message: Message) -> None:
        charge(calls, message)
        if next(fails):
            raise ConnectionError("after the charge")

    shop.complete(0, {"bill": True})
    assert settle(shop, bill(shop, metered_provider, charge_and_fail)) is MessageState.DELIVERED
    assert metered_provider.charges == 1


def test_a_charge_whose_answer_was_lost_is_looked_up(shop: House, metered_provider: MeteredProvider) -> None:
    metered_provider.fault("accept_then_drop")
    shop.complete(0, {"bill": True})
    assert settle(shop, bill(shop, metered_provider, charge)) is MessageState.DELIVERED
    assert metered_provider.charges == 1


def test_a_charge_that_nobody_can_look_up_puts_the_message_in_doubt_for_good(
    shop: House, metered_provider: MeteredProvider
) -> None:
    metered_provider.fault("accept_then_drop")
    task = shop.complete(0, {"bill": True})
    channels = bill(shop, metered_provider, charge, look_up_path=None)
    assert settle(shop, channels) is MessageState.IN_DOUBT
    deliver_due(shop.database, shop.pipeline.name, channels, policy=POLICY)
    assert metered_provider.charges == 1
    assert "in doubt" in (shop.messages(task)["bill"].error or "")


@pytest.mark.parametrize("fault", [None, "accept_then_drop"], ids=["before it was sent", "while it is in doubt"])
def test_a_freeze_uses_no_attempt_of_a_charging_delivery(
    shop: House, metered_provider: MeteredProvider, fault: str | None
) -> None:
    metered_provider.configure(deduplicate=True)
    task = shop.complete(0, {"bill": True})
    channels = bill(shop, metered_provider, charge, look_up_path=None, key_window=timedelta(hours=1))
    policy = DeliveryPolicy(max_attempts=2, backoff=SHORT)
    if fault is not None:
        metered_provider.fault(fault)
        deliver_due(shop.database, shop.pipeline.name, channels, limit=1, policy=policy)
    attempts = shop.messages(task)["bill"].attempts
    shop.change("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover'")
    for _ in range(3):
        shop.change("UPDATE dagster_idempotent.outbox SET next_attempt_at = clock_timestamp()")
        (tried,) = deliver_due(shop.database, shop.pipeline.name, channels, limit=1, policy=policy)
        assert (tried.message.state, tried.delivered_now) == (MessageState.READY, False)
    assert (shop.messages(task)["bill"].attempts, metered_provider.charges) == (attempts, int(fault is not None))
    assert "is frozen" in (shop.messages(task)["bill"].error or "")
    shop.change("UPDATE dagster_idempotent.pipelines SET frozen_reason = NULL")
    assert settle(shop, channels, policy) is MessageState.DELIVERED
    assert metered_provider.charges == 1


def test_a_relay_that_lost_its_message_pays_nothing(shop: House, metered_provider: MeteredProvider) -> None:
    def overtaken(calls: Calls, message: Message) -> str:
        shop.change("UPDATE dagster_idempotent.outbox SET sender_expires_at = clock_timestamp() - interval '1s'")
        deliver_due(shop.database, shop.pipeline.name, {}, policy=POLICY)  # frees it
        return charge(calls, message)

    shop.complete(0, {"bill": True})
    (tried,) = deliver_due(shop.database, shop.pipeline.name, bill(shop, metered_provider, overtaken), limit=1)
    assert not tried.delivered_now
    assert metered_provider.charges == 0
    assert shop.query(CALLS) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_cut_off_at_any_message_a_charging_delivery_charges_once(
    shop: House, metered_provider: MeteredProvider, when: str
) -> None:
    with psycopg.connect(shop.database.url) as connection:
        upstream = f"{connection.info.host}/.s.PGSQL.{connection.info.port}"
    channels = bill(shop, metered_provider, charge)
    with FaultProxy(upstream, protocol="postgres") as proxy:
        number = 0
        while True:
            shop.complete(number, {"bill": True})
            assert proxy.wait_idle()
            start = proxy.counts.to_upstream
            proxy.at(start + number + 1, action=proxy.cut_all, when=when)
            database = Database(proxy.url_for(shop.database.url))
            deliver_due(database, shop.pipeline.name, channels, policy=POLICY, limit=1)
            database.close()
            number += 1
            if proxy.counts.to_upstream - start < number:
                break
    assert number > 30
    assert settle(shop, channels) is MessageState.DELIVERED
    assert metered_provider.charges == number
