"""The bill is true and outlives the process; a repeated key is charged as it was ordered."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.integration.metered_provider.conftest import ask


class TestBill:
    def test_each_accepted_request_is_charged_also_under_a_repeated_key(self, provider: MeteredProvider) -> None:
        for _ in range(3):
            ask(provider, Idempotency_Key="same")

        bill = provider.bill()
        assert (bill.charges, bill.total, bill.currency) == (3, Decimal("0.06"), "USD")
        assert {line.client_reference for line in bill.lines} == {"same"}

    def test_an_empty_bill_is_zero(self, provider: MeteredProvider) -> None:
        assert (provider.charges, provider.bill().total) == (0, Decimal(0))

    def test_price_and_currency_can_be_set(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, price="1.5", currency="EUR") as provider:
            ask(provider)
            assert (provider.bill().total, provider.bill().currency) == (Decimal("1.5"), "EUR")

    def test_the_charge_is_on_disk_before_the_answer(self, provider: MeteredProvider) -> None:
        provider.fault("hold")
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k")
            (held,) = provider.wait_held(1, timeout=30)
            provider.kill()
            with pytest.raises(ConnectionError):
                reply.result(30)

        provider.restart()

        assert held.accepted
        assert provider.charges == 1
        assert provider.bill().lines[0].client_reference == "k"
        assert not provider.bill().lines[0].finished

    def test_a_restart_continues_numbers_bill_and_port(self, provider: MeteredProvider) -> None:
        ask(provider)
        address = provider.base_url

        provider.kill()
        provider.restart()

        assert provider.base_url == address
        assert "answer 2" in ask(provider).content
        assert [line.number for line in provider.bill().lines] == [1, 2]
        assert [request.sequence for request in provider.requests()] == [1, 2]


class TestDeduplication:
    def test_a_repeated_key_replays_the_stored_answer_uncharged(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            first = ask(provider, Idempotency_Key="k")
            provider.restart()
            second = ask(provider, Idempotency_Key="k")

            assert second.body == first.body
            assert provider.charges == 1
            assert [request.outcome for request in provider.requests()] == ["accepted", "replayed"]

    def test_a_repeated_key_with_another_body_is_refused(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            ask(provider, "one", Idempotency_Key="k")
            assert ask(provider, "two", Idempotency_Key="k").status == 422
            assert provider.charges == 1

    def test_a_repeated_key_of_unfinished_work_is_refused(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider, ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            assert ask(provider, Idempotency_Key="k").status == 409
            provider.release()
            assert first.result(30).status == 200
            assert provider.charges == 1

    def test_one_request_may_choose_for_itself(self, provider: MeteredProvider) -> None:
        for _ in range(2):
            ask(provider, Idempotency_Key="k", X_Deduplicate="on")
        assert provider.charges == 1

        provider.configure(deduplicate=True)
        ask(provider, Idempotency_Key="k", X_Deduplicate="off")
        assert provider.charges == 2

    def test_requests_without_a_key_are_all_charged(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            ask(provider)
            ask(provider)
            assert provider.charges == 2
