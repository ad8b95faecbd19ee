"""Many calls of one task: each is paid once, none stops the others, and a killed map goes on where it was (R14-R18)."""

import tracemalloc
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.engine.call_map import FAILURES_IN_A_ROW
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.retry_policy import Verdict, rule_of
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import (
    CallInDoubt,
    CallsUnfinished,
    ConfigurationError,
    LeaseLost,
    PayloadMismatch,
    TaskHeld,
)
from dagster_idempotent.providers.chat_completions import ChatCompletion

if TYPE_CHECKING:
    pass
from tests.integration.guard.conftest import Bench, about, name


def text_of(answer: ChatCompletion) -> str:
    return answer.text


class TestMap:
    def map(self, bench: Bench, items: Iterable[int], work: Work | None = None, **options: Any) -> list[str]:
        """Map in a new run, unless a work is given."""
        provider = options.pop("provider", None) or bench.provider()
        work = work or bench.claim(bench.allocate(), [provider])
        with work.renewed():
            return Calls(work, provider).map(items, key=name, request=about, accept=text_of, **options)

    def unfinished(self, bench: Bench, items: Iterable[int], **options: Any) -> CallsUnfinished:
        with pytest.raises(CallsUnfinished) as caught:
            self.map(bench, items, **options)
        return caught.value

    def test_answers_come_in_the_order_of_the_items_and_are_replayed_for_nothing(self, bench: Bench) -> None:
        first = self.map(bench, range(40))
        again = self.map(bench, reversed(range(40)))
        assert len(set(first)) == 40
        assert again == first[::-1]
        assert len(bench.posts) == bench.charges == 40

    def test_no_items_is_no_request(self, bench: Bench) -> None:
        assert self.map(bench, []) == []
        assert bench.posts == []

    def test_four_of_ten_accepted_means_that_six_are_sent(self, bench: Bench) -> None:
        self.map(bench, range(4))
        assert len(self.map(bench, range(10))) == 10
        assert len(bench.posts) == bench.charges == 10

    def test_what_failed_is_sent_in_the_next_run_and_nothing_else(self, bench: Bench) -> None:
        for item in range(6):
            bench.metered.fault("status", status=400, body_contains=f"item <{item}>")
        error = self.unfinished(bench, range(10))
        assert (error.facts["answered"], error.facts["total"], error.facts["not_started"]) == (4, 10, 0)
        assert error.facts["failed"] == tuple(name(item) for item in range(6))
        assert bench.charges == 4
        assert rule_of(error).verdict is Verdict.AGAIN
        before = len(bench.posts)
        self.map(bench, range(10))
        assert len(bench.posts) - before == 6
        assert bench.charges == 10

    def test_one_in_doubt_does_not_stop_the_others_and_the_task_is_held_at_the_end(self, bench: Bench) -> None:
        provider = bench.without_look_up()
        bench.metered.fault("accept_then_drop", body_contains="item <3>")
        error = self.unfinished(bench, range(30), provider=provider, concurrency=4)
        assert error.in_doubt == ("item-3",)
        assert error.facts["answered"] == 29
        assert isinstance(error.leading, CallInDoubt)
        assert "item-3 (CallInDoubt)" in error.message
        assert "again" not in error.message
        assert rule_of(error).verdict is Verdict.LEAVE
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "in_doubt")
        with pytest.raises(TaskHeld):
            self.map(bench, range(30), provider=provider)
        assert len(bench.posts) == bench.charges == 30

    def test_a_lost_answer_is_looked_up_within_the_map(self, bench: Bench) -> None:
        bench.metered.fault("accept_then_drop", body_contains="item <3>")
        assert len(self.map(bench, range(10))) == 10
        assert len(bench.posts) == bench.charges == 10
        assert {row["settled_by"] for row in bench.rows()} == {"sender", "look_up"}

    def test_one_refused_for_another_payload_does_not_stop_the_others(self, bench: Bench) -> None:
        work = bench.claim(bench.allocate())
        with work.renewed():
            Calls(work, bench.provider()).call("item-1", bench.request)
        error = self.unfinished(bench, range(5))
        assert error.facts["failed"] == ("item-1",)
        assert isinstance(error.leading, PayloadMismatch)
        assert rule_of(error).verdict is Verdict.DEAD_LETTER
        assert bench.charges == 5

    def test_a_key_of_two_items_is_refused_before_anything_is_sent(self, bench: Bench) -> None:
        with pytest.raises(ConfigurationError, match="'item-2', 'item-3'") as caught:
            self.map(bench, [1, 2, 2, 3, 3, 3])
        assert caught.value.facts["keys"] == ("item-2", "item-3")
        assert bench.posts == []

    @pytest.mark.parametrize("concurrency", [0, -1, True])
    def test_a_concurrency_that_is_no_number_of_threads_is_refused(self, bench: Bench, concurrency: int) -> None:
        with pytest.raises(ConfigurationError, match="concurrency"):
            self.map(bench, range(3), concurrency=concurrency)
        assert bench.posts == []

    def test_never_more_than_so_many_are_under_way(self, bench: Bench) -> None:
        bench.metered.fault("hold", times=None)
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            mapping = pool.submit(self.map, bench, range(9), work, concurrency=3)
            for _ in range(3):
                assert len(bench.metered.wait_held(3)) == 3
                bench.metered.release()
            assert len(mapping.result()) == 9
        assert bench.charges == 9

    def test_threads_see_the_context_variables_of_the_caller(self, bench: Bench) -> None:
        tenant: ContextVar[str] = ContextVar("tenant")
        tenant.set("acme")
        provider, work = bench.provider(), bench.claim(bench.allocate())
        with work.renewed():
            seen = Calls(work, provider).map(range(8), key=name, request=about, accept=lambda _: tenant.get())
        assert seen == ["acme"] * 8

    def test_a_mistake_in_the_callers_own_function_stops_it_and_is_raised_as_it_is(self, bench: Bench) -> None:
        work = bench.claim(bench.allocate())

        def request(item: int) -> dict[str, object]:
            return about(item) if item < 5 else {}[item]

        with work.renewed(), pytest.raises(KeyError) as caught:
            Calls(work, bench.provider()).map(range(1000), key=name, request=request, concurrency=2)
        assert "5 of 1000 calls answered" in str(caught.value.__notes__)
        assert bench.charges == 5

    def test_a_provider_that_fails_all_the_time_is_not_asked_for_everything(self, bench: Bench) -> None:
        bench.metered.fault("status", times=None, status=503)
        error = self.unfinished(bench, range(500), provider=bench.without_look_up(), concurrency=4)
        assert FAILURES_IN_A_ROW <= len(bench.posts) < FAILURES_IN_A_ROW + 4
        assert error.facts["not_started"] == 500 - len(bench.posts)
        assert "too many failed one after the other" in error.message

    def test_a_lost_lease_stops_before_the_next_request(self, bench: Bench) -> None:
        bench.metered.fault("hold", body_contains="item <2>")
        work = bench.claim(bench.allocate())
        with ThreadPoolExecutor() as pool:
            mapping = pool.submit(self.map, bench, range(50), work, concurrency=1)
            bench.metered.wait_held(1)
            bench.sql.execute(
                "UPDATE dagster_idempotent.tasks SET owner = 'somebody', fencing_token = fencing_token + 1"
            )
            bench.metered.release()
            with pytest.raises(LeaseLost, match="somebody") as caught:
                mapping.result()
        assert "3 of 50 calls answered" in str(caught.value.__notes__)
        # The answer that came after the loss is kept: it is paid for.
        assert bench.states() == ["succeeded"] * 3
        assert len(bench.posts) == bench.charges == 3

    def test_progress_is_told(self, bench: Bench) -> None:
        lines: list[str] = []
        work = bench.claim(bench.allocate())
        work.log = lines.append
        self.map(bench, range(40), work)
        assert len(lines) >= 5
        assert "40 of 40 calls answered (40 paid now), 0 in doubt" in lines[-1]

    def test_an_unacceptable_answer_stays_paid_and_the_others_go_on(self, bench: Bench) -> None:
        work = bench.claim(bench.allocate())

        def accept(answer: ChatCompletion) -> str:
            if "<3>" in str(answer.raw):
                raise ValueError("not what was wanted")
            return answer.text

        bench.metered.fault("answer_with", times=2, content="<3>", body_contains="item <3>")
        with work.renewed(), pytest.raises(CallsUnfinished) as caught:
            Calls(work, bench.provider()).map(range(5), key=name, request=about, accept=accept, tries=2)
        assert caught.value.facts["failed"] == ("item-3",)
        assert "not what was wanted" in str(caught.value.facts["errors"]["item-3"])  # pyright: ignore[reportIndexIssue]
        assert bench.charges == 6


@pytest.mark.explore
def test_ten_thousand_items_fit_into_little_memory_and_replay_in_seconds(bench: Bench) -> None:
    work, provider = bench.claim(bench.allocate()), bench.provider()
    bench.metered.fault("answer_with", times=None, content="x" * 20_000)
    peaks: list[int] = []
    for _ in range(2):
        with work.renewed():
            tracemalloc.start()
            answers = Calls(work, provider).map(range(10_000), key=name, request=about, accept=lambda a: len(a.text))
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert answers == [20_000] * 10_000
    # The answers together have 200 MB; what is kept of each is its length and a line of metadata.
    assert max(peaks) < 60_000_000
    assert bench.charges == 10_000
