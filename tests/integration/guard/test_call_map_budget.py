"""A map stays within its budget (R17)."""

from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.retry_policy import Verdict, rule_of
from dagster_idempotent.errors import CallsUnfinished

if TYPE_CHECKING:
    pass
from tests.integration.guard.conftest import Bench, about, name


class TestBudget:
    def test_a_full_budget_starts_nothing_new_and_what_is_under_way_ends(self, bench: Bench) -> None:
        bench.declare(budget=Budget.per_task("10 USD"))
        bound, cost = Money.parse("1 USD"), Money.parse("1 USD")
        provider = bench.provider(upper_bound=bound, cost_of=lambda _: cost)
        work = bench.claim(bench.allocate())
        with work.renewed(), pytest.raises(CallsUnfinished) as caught:
            Calls(work, provider).map(range(64), key=name, request=about, concurrency=8)
        error = caught.value
        assert (error.facts["answered"], error.facts["not_started"]) == (10, 54)
        assert "budget of task:" in error.message
        assert rule_of(error).verdict is Verdict.LEAVE
        assert len(bench.posts) == bench.charges == 10
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "budget")

    def test_reservations_that_end_make_room_for_the_others(self, bench: Bench) -> None:
        # Ten times as much is reserved as is spent: only what is really spent counts in the end.
        bench.declare(budget=Budget.per_task("10 USD"))
        cost = Money.parse("0.10 USD")
        provider = bench.provider(upper_bound=Money.parse("2 USD"), cost_of=lambda _: cost)
        work = bench.claim(bench.allocate())
        with work.renewed():
            answers = Calls(work, provider).map(range(60), key=name, request=about, concurrency=16)
        assert len(answers) == bench.charges == 60
        assert bench.task()["status"] == "running"
