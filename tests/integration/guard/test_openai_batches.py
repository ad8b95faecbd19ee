"""A batch of OpenAI is one job: one charge, answers by name, found by its metadata."""

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.providers.openai_batches import Batch, OpenAIBatches
from dagster_idempotent.providers.outcome import NotFound
from dagster_idempotent.providers.send_window import SendWindow

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

QUICK = Backoff(base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20), jitter=0.0)


class TestBatches:
    def batches(self, bench: "Bench", **settings: Any) -> Any:
        class Quick(OpenAIBatches):
            pace = QUICK

        return Quick(base_url=bench.metered.base_url, api_key_variable="K", **settings)

    def batch(self) -> Batch:
        return Batch(requests={f"item-{n}": {"model": "m", "messages": []} for n in range(3)})

    def test_a_batch_is_one_charge_and_its_answers_come_by_name(self, bench: "Bench") -> None:
        first: Any = bench.call(self.batches(bench), self.batch())  # pyright: ignore[reportArgumentType]
        assert list(first.value.answers) == ["item-0", "item-1", "item-2"]
        assert first.value.errors == {}
        again: Any = bench.call(self.batches(bench), self.batch())  # pyright: ignore[reportArgumentType]
        assert (again.value, again.replayed, bench.charges) == (first.value, True, 1)

    def test_a_batch_whose_answer_was_lost_is_found_by_its_metadata(self, bench: "Bench") -> None:
        bench.metered.fault("accept_then_drop")
        result: Any = bench.call(self.batches(bench), self.batch())  # pyright: ignore[reportArgumentType]
        assert len(result.value.answers) == 3
        assert bench.charges == 1

    @pytest.mark.parametrize("page", ['{"data": []}', '{"data": [], "has_more": true}', '{"data": [{}]}'])
    def test_a_list_that_does_not_say_that_it_is_whole_proves_nothing(self, bench: "Bench", page: str) -> None:
        bench.metered.fault("status", status=200, body=page, path_contains="GET /v1/batches")
        assert self.batches(bench).find(["some-key"]) == NotFound(complete=False)
        assert self.batches(bench).find(["some-key"]) == NotFound(complete=True)

    def test_a_second_batch_under_one_key_is_named_beside_the_first(self, bench: "Bench") -> None:
        batches, key = self.batches(bench), IdempotencyKey("di-one-key")
        window = SendWindow(timedelta(seconds=30))
        made = [batches.submit(self.batch(), key=key, window=window).remote_ref for _ in range(2)]
        found = batches.find([key])
        assert {found.remote_ref, *found.also} == set(made)
        assert len(found.also) == 1

    def test_an_upload_that_fails_has_sent_nothing_that_costs(self, bench: "Bench") -> None:
        bench.metered.fault("status", status=500, path_contains="/v1/files")
        with pytest.raises(Exception, match="never left"):
            bench.call(self.batches(bench), self.batch())  # pyright: ignore[reportArgumentType]
        assert (bench.charges, bench.states()) == (0, ["not_sent"])
