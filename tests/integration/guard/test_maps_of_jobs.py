"""Many remote jobs of one task: those that go on keep no other from being submitted."""

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.engine.call_map import FAILURES_IN_A_ROW
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.errors import CallsUnfinished

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

COUNT = FAILURES_IN_A_ROW + 10


def prompt(number: int) -> dict[str, object]:
    return {"prompt": str(number)}


def test_however_many_are_waited_for_all_are_submitted(bench: "Bench") -> None:
    impatient = bench.studio(poll_budget=timedelta(0))
    work = bench.claim(bench.allocate(), [impatient])
    with work.renewed(), pytest.raises(CallsUnfinished) as caught:
        Calls(work, impatient).map(range(COUNT), key=str, request=prompt, concurrency=4)
    assert caught.value.facts["not_started"] == 0
    assert caught.value.retry_after is not None
    assert bench.charges == COUNT
    assert set(bench.states()) == {"accepted"}
