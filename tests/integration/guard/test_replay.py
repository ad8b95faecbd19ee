"""A completed call is answered from the ledger, and a paid answer is never dropped (R16, R24)."""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.errors import CandidateInvalid
from dagster_idempotent.providers.chat_completions import ChatCompletion

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class Digest(BaseModel):
    title: str
    highlights: list[str]


class TestReplay:
    def test_a_completed_call_replays_the_same_value_and_type_without_a_request(self, bench: "Bench") -> None:
        first = bench.call(bench.provider(cost_of=lambda _: Money.parse("0.02 USD")))
        again = bench.call(bench.provider())
        assert (first.replayed, again.replayed) == (False, True)
        assert type(again.value) is type(first.value) is ChatCompletion
        assert again.value == first.value
        assert again.answer == first.answer
        assert again.cost == first.cost == Money.parse("0.02 USD")
        assert again.remote_ref == first.remote_ref
        assert len(bench.posts) == bench.charges == 1

    def test_a_replay_needs_no_credential(self, bench: "Bench", monkeypatch: pytest.MonkeyPatch) -> None:
        first = bench.call(bench.provider())
        monkeypatch.delenv("K")
        assert bench.call(bench.provider()).value == first.value

    def test_an_accepted_model_is_replayed_and_a_refused_answer_is_the_next_call(self, bench: "Bench") -> None:
        request = {**bench.request, "response_format": {"type": "json_object"}}
        bench.metered.fault("answer_with", content="not a digest")
        task_id = bench.allocate()
        found: list[Digest] = []
        for _ in range(3):
            work = bench.claim(task_id)
            with work.renewed():
                found.append(Calls(work, bench.provider()).ask("summary", request, accept=Digest, tries=2))
        assert found == [found[0]] * 3
        assert bench.charges == 2
        assert [row["call_key"] for row in bench.rows()] == ["summary", "summary#2"]

    def test_a_bad_answer_is_not_paid_for_again(self, bench: "Bench") -> None:
        bench.metered.fault("answer_with", times=None, content="not a digest")
        for _ in range(3):
            work = bench.claim(bench.allocate())
            with work.renewed(), pytest.raises(CandidateInvalid, match="stored and paid"):
                Calls(work, bench.provider()).ask("summary", bench.request, accept=Digest, tries=2)
        assert bench.charges == 2

    @pytest.mark.parametrize(
        "answer",
        [
            {"id": "a\0b", "choices": [{"message": {"content": "{}"}}]},
            {"id": "\ud800", "choices": [{"message": {"content": "{}"}}]},
            {"id": "", "choices": [{"message": {"content": "{}"}}]},
            {"choices": [{"message": {"content": None, "tool_calls": [{"id": "t"}]}}]},
            {"id": "x" * 10_000, "choices": [{"message": {"content": ""}}]},
        ],
        ids=["nul", "surrogate", "empty", "tool-call", "long"],
    )
    def test_an_odd_answer_is_kept_because_it_is_paid(self, bench: "Bench", answer: dict[str, object]) -> None:
        bench.metered.fault("garbage", body=json.dumps(answer))
        first = bench.call(bench.provider())
        assert json.loads(first.answer.body) == answer
        assert bench.call(bench.provider()).value == first.value
        assert bench.charges == 1

    @pytest.mark.parametrize("cost_of", [lambda raw: raw["no such key"], lambda _: Money.parse("-1 USD")])
    def test_an_answer_whose_cost_cannot_be_told_is_kept(self, bench: "Bench", cost_of: Callable[..., Money]) -> None:
        result = bench.call(bench.provider(cost_of=cost_of, upper_bound=Money.parse("0.50 USD")))
        assert result.cost is None
        settled = bench.sql.execute("SELECT kind, amount FROM dagster_idempotent.costs ORDER BY kind").fetchall()
        # It was not free: the upper bound stands in.
        assert [(row["kind"], str(row["amount"])) for row in settled] == [
            ("released", "0.50"),
            ("reserved", "0.50"),
            ("settled", "0.50"),
        ]
