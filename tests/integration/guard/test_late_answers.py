"""An answer after a look-up said no: the documented limit."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import CallResult, Guard
from dagster_idempotent.errors import CallInDoubt, PayloadMismatch, TaskHeld
from dagster_idempotent.providers.chat_completions import ChatCompletion

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class TestLateAnswers:
    """An answer after a look-up said no: the documented limit. It is kept and shown, never dropped."""

    @contextmanager
    def _overtaken(self, bench: "Bench") -> Iterator[Callable[[], CallResult[ChatCompletion]]]:
        """Void the submission of a request that is still on its way; yield what waits for its answer."""
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            yield sending.result

    def _void(self, bench: "Bench", submission: int) -> None:
        """As a look-up does that finds nothing."""
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'not_sent', settled_by = 'look_up', settled_at = now() "
            "WHERE submission = %s",
            [submission],
        )

    def test_it_is_adopted_where_nothing_else_is_live(self, bench: "Bench") -> None:
        with self._overtaken(bench) as result:
            bench.metered.release()
            assert result().submission == 1
        assert bench.states() == ["succeeded"]
        assert bench.charges == 1

    def test_it_is_kept_as_late_beside_a_live_submission_and_its_cost_is_booked(self, bench: "Bench") -> None:
        price = Money.parse("0.02 USD")
        settings = {"cost_of": lambda _: price, "upper_bound": Money.parse("1 USD")}
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.provider(**settings), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            second = Guard(work, bench.provider(**settings)).call(CallKey("summary"), bench.request)
            bench.metered.release()
            # The sender of the late answer goes on with the answer that was accepted first.
            assert sending.result().value == second.value
        late, live = bench.rows()
        assert (late["state"], late["late"], late["cost"]) == ("not_sent", True, price.amount)
        assert (live["state"], live["late"]) == ("succeeded", False)
        assert bench.charges == 2
        budget = bench.sql.execute(
            "SELECT reserved, settled FROM dagster_idempotent.budgets WHERE scope = 'pipeline'"
        ).fetchone()
        assert budget == {"reserved": 0, "settled": 2 * price.amount}

    def test_it_is_adopted_later_instead_of_a_new_send(self, bench: "Bench") -> None:
        bench.metered.fault("hold_before_accepting")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            sending = pool.submit(bench.call, bench.without_look_up(), work=work)
            bench.metered.wait_held(1)
            self._void(bench, 1)
            bench.metered.fault("drop_before_accepting")
            with pytest.raises(CallInDoubt):
                Guard(work, bench.without_look_up()).call(CallKey("summary"), bench.request)
            bench.metered.release()
            with pytest.raises((CallInDoubt, TaskHeld)):
                sending.result()
        assert [(row["state"], row["late"]) for row in bench.rows()] == [("not_sent", True), ("in_doubt", False)]
        bench.sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'abandoned', settled_by = 'operator', "
            "settled_at = now() WHERE submission = 2"
        )
        posts = len(bench.posts)
        result = bench.call(bench.without_look_up())
        assert (result.submission, result.replayed) == (1, True)
        assert [(row["state"], row["late"]) for row in bench.rows()] == [("succeeded", False), ("abandoned", False)]
        assert len(bench.posts) == posts
        with pytest.raises(PayloadMismatch):
            bench.call(bench.without_look_up(), bench.changed)
