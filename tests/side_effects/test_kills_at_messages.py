"""SIGKILL before and after each message of a side effect: to the ledger, and to whoever gets the effect."""

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dagster as dg
import pytest

from dagster_idempotent import AssetChannel, DeliveryPolicy, LedgerResource, PaidChannel
from dagster_idempotent.domain.outbox import MessageState
from dagster_idempotent.domain.task import Task
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.testing.fault_proxy import FaultProxy
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.side_effects.conftest import SHORT, House

Start = Callable[..., BaseProcess]
POLICY = DeliveryPolicy(max_attempts=1000, backoff=SHORT)
UNDELIVERED = "SELECT FROM dagster_idempotent.outbox WHERE state IN ('ready', 'sending')"
DELIVERED = "SELECT FROM dagster_idempotent.outbox WHERE state = 'delivered'"
BILL = {"model": "m", "messages": [{"role": "user", "content": "bill for one week"}]}


def kills(
    proxy: FaultProxy,
    start: Callable[[], BaseProcess],
    *,
    every: int = 1,
    last: int = 0,
    direction: str = "to_upstream",
) -> Iterator[tuple[int, str]]:
    """Let a process run unharmed, then start and kill it around each (or each so many) of its (last) messages.

    Gives the message and the moment after each death, and (0, "unharmed") after the first run.
    """
    before = getattr(proxy.counts, direction)
    process = start()
    process.join(60)
    assert process.exitcode == 0
    assert proxy.wait_idle()
    messages = getattr(proxy.counts, direction) - before
    yield 0, "unharmed"
    for n, when in itertools.product(
        range(max(1, messages + 1 - last) if last else 1, messages + 1, every), ("before", "after")
    ):
        assert proxy.wait_idle()
        victim: list[BaseProcess] = []
        started = threading.Event()

        def strike(victim: list[BaseProcess] = victim, started: threading.Event = started) -> None:
            assert started.wait(30)
            # One that says goodbye may have ended; its exit code is looked at below.
            with suppress(ProcessLookupError):
                os.kill(victim[0].pid or 0, signal.SIGKILL)
            proxy.cut_all()

        proxy.at(getattr(proxy.counts, direction) + n, action=strike, when=when, direction=direction)
        victim.append(start())
        started.set()
        victim[0].join(60)
        # The last message may be the goodbye of a process that was done, and does not wait for a reply.
        assert victim[0].exitcode in ((-signal.SIGKILL, 0) if n == messages else (-signal.SIGKILL,))
        yield n, when


def settle(house: House, channels: dict[str, Any]) -> set[MessageState]:
    """Deliver until every message has an outcome; return the outcomes."""
    while house.query(UNDELIVERED):
        deliver_due(house.database, house.pipeline.name, channels, policy=POLICY)
    return {MessageState(row["state"]) for row in house.query("SELECT state FROM dagster_idempotent.outbox")}


def test_killed_at_every_message_and_run_again_ten_of_twenty_move_once(house: House, start_worker: Start) -> None:
    house.change("CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))")
    house.change("INSERT INTO accounts VALUES ('A', 20), ('B', 0)")
    ledger = LedgerResource(url=house.database.url)
    tasks: list[Task] = []

    def start() -> BaseProcess:
        house.change("UPDATE accounts SET balance = CASE name WHEN 'A' THEN 20 ELSE 0 END")
        tasks.append(house.allocate(len(tasks)))
        return start_worker("send", proxy.url_for(house.database.url), tasks[-1].task_id)

    with FaultProxy(house.upstream, protocol="postgres") as proxy:
        for n, when in kills(proxy, start):
            request = {"from": "A", "to": "B", "amount": 10}
            with ledger.transaction("send", task=tasks[-1], request=request) as tx:
                if tx.is_first:
                    tx.execute("UPDATE accounts SET balance = balance - 10 WHERE name = 'A'")
                    tx.execute("UPDATE accounts SET balance = balance + 10 WHERE name = 'B'")
                    tx.result = "sent"
            assert tx.result == "sent"
            balances = {row["name"]: row["balance"] for row in house.query("SELECT * FROM accounts")}
            assert balances == {"A": 10, "B": 10}, (n, when)
    assert len(tasks) > 40


class TestPaidDelivery:
    @pytest.fixture
    def shop(self, make_house: Callable[..., House], monkeypatch: pytest.MonkeyPatch) -> House:
        monkeypatch.setenv("KEY", "secret")
        return make_house(sender_lease="1s", send_window="900ms")

    def charges_once(
        self,
        shop: House,
        start_worker: Start,
        metered: MeteredProvider,
        *,
        every: int = 1,
        at_provider: str | None = None,
    ) -> None:
        tasks: list[Task] = []
        upstream = urlsplit(metered.base_url).netloc if at_provider else shop.upstream
        with FaultProxy(upstream, protocol="http" if at_provider else "postgres") as proxy:
            url = shop.database.url if at_provider else proxy.url_for(shop.database.url)
            provider = "http://{}:{}/v1".format(*proxy.address) if at_provider else metered.base_url

            def start() -> BaseProcess:
                tasks.append(shop.complete(len(tasks), {"bill": True}))
                return start_worker("charge", url, tasks[-1].task_id, provider)

            for _ in kills(proxy, start, every=every, direction=at_provider or "to_upstream"):
                assert metered.charges <= len(tasks)
        adapter = ChatCompletionsProvider(
            base_url=metered.base_url,
            api_key_variable="KEY",
            look_up_path="/lookup",
            settle_delay=timedelta(milliseconds=1),
        )
        channel = PaidChannel(shop.pipeline, adapter, lambda calls, _: calls.call("charge", BILL).text)
        assert settle(shop, {"bill": channel}) == {MessageState.DELIVERED}
        # The provider's own bill is the oracle: one charge a task, never two under one key.
        assert metered.charges == len(tasks)
        assert len({line.client_reference for line in metered.bill().lines}) == len(tasks)

    def test_killed_at_messages_to_the_ledger_a_delivery_charges_once(
        self, shop: House, start_worker: Start, metered_provider: MeteredProvider
    ) -> None:
        self.charges_once(shop, start_worker, metered_provider, every=6)

    @pytest.mark.explore
    def test_killed_at_every_message_to_the_ledger_a_delivery_charges_once(
        self, shop: House, start_worker: Start, metered_provider: MeteredProvider
    ) -> None:
        self.charges_once(shop, start_worker, metered_provider)

    @pytest.mark.parametrize("direction", ["to_upstream", "to_client"])
    def test_killed_at_every_message_of_the_provider_a_delivery_charges_once(
        self, shop: House, start_worker: Start, metered_provider: MeteredProvider, direction: str
    ) -> None:
        self.charges_once(shop, start_worker, metered_provider, at_provider=direction)


class TestAssetCatalogue:
    def reports_once(
        self, house: House, start_worker: Start, home: Path, *, every: int, last: int = 0, dagsters: bool = False
    ) -> None:
        """Kill around the messages to the ledger, or to Dagster's own storage, which is then on the same server."""
        tasks: list[Task] = []
        home.mkdir()
        with FaultProxy(house.upstream, protocol="postgres") as proxy:
            settings = "telemetry: {enabled: false}\n"
            if dagsters:
                storage = proxy.url_for(house.database.url).replace("postgresql://", "postgresql+psycopg2://")
                settings += f"storage: {{postgres: {{postgres_url: '{storage}'}}}}\n"
            (home / "dagster.yaml").write_text(settings)
            url = house.database.url if dagsters else proxy.url_for(house.database.url)

            def start() -> BaseProcess:
                tasks.append(house.complete(len(tasks), {"catalogue": True}))
                return start_worker("report", url, tasks[-1].task_id, str(home))

            def reported() -> list[str]:
                with dg.DagsterInstance.from_config(str(home)) as instance:
                    found = instance.fetch_materializations(dg.AssetKey("digest"), limit=1000).records
                shown = [each.asset_materialization for each in found]
                return sorted(str(each.metadata["dagster-idempotent/task_id"].value) for each in shown)

            assert reported() == []
            unmarked = 0
            for _ in kills(proxy, start, every=every, last=last):
                unmarked += len(reported()) > len(house.query(DELIVERED))
                # As the time does; the leases are long, so that every run has as many messages.
                house.change("UPDATE dagster_idempotent.outbox SET sender_expires_at = now() WHERE state = 'sending'")
            with dg.DagsterInstance.from_config(str(home)) as instance:
                channels = {"catalogue": AssetChannel("digest", instance=instance)}
                assert settle(house, channels) == {MessageState.DELIVERED}
            assert unmarked
            assert reported() == sorted(task.task_id for task in tasks)

    def test_killed_between_report_and_mark_a_result_is_in_the_catalogue_once(
        self, house: House, start_worker: Start, tmp_path: Path
    ) -> None:
        self.reports_once(house, start_worker, tmp_path / "home", every=3, last=6)

    @pytest.mark.explore
    def test_killed_at_every_message_to_the_ledger_a_result_is_in_the_catalogue_once(
        self, house: House, start_worker: Start, tmp_path: Path
    ) -> None:
        self.reports_once(house, start_worker, tmp_path / "home", every=1)

    @pytest.mark.explore
    def test_killed_at_messages_to_dagsters_storage_a_result_is_in_the_catalogue_once(
        self, house: House, start_worker: Start, tmp_path: Path
    ) -> None:
        self.reports_once(house, start_worker, tmp_path / "home", every=1, last=30, dagsters=True)
