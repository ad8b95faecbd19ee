"""A same-key resend against a takeover, a freeze and a gate that close while its claim waits for its task."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import psycopg
import pytest

from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine import freezing
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.errors import LeaseLost, PipelineFrozen, TaskHeld
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.store import submissions
from dagster_idempotent.store.submissions import Call

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

Until = Callable[..., object]
WHO = Who(actor="ada", reason="failover")
WAITING = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%claim_resend_v1%%'"
TAKE_OVER = "SELECT verdict FROM dagster_idempotent.claim_v1('weekly_digest', %s, 'another run', %s, %s, false)"
CLOSE_GATE = "UPDATE dagster_idempotent.pipelines SET gate = 'spend'"
FREEZE = "UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover'"


@pytest.fixture
def provider(bench: "Bench") -> ChatCompletionsProvider:
    bench.metered.configure(deduplicate=True)
    provider = bench.without_look_up(key_window=timedelta(hours=1), settle_delay=timedelta(seconds=1))
    bench.doubt(provider)
    return provider


@contextmanager
def waiting_resend(bench: "Bench", provider: ChatCompletionsProvider, until: Until) -> Iterator["Held"]:
    """Resend in a thread, up to where its claim waits for the task row, which the block has locked."""
    work = bench.claim(bench.allocate(), [provider])
    with ThreadPoolExecutor() as pool, psycopg.connect(bench.database.url) as lock:
        lock.execute("SELECT FROM dagster_idempotent.tasks FOR NO KEY UPDATE")
        calling = pool.submit(lambda: bench.call(provider, work=work))
        until(lambda: bench.sql.execute(WAITING).rowcount)
        yield Held(lock, calling)


class Held:
    def __init__(self, lock: psycopg.Connection[Any], calling: "Future[Any]") -> None:
        self.lock, self.calling = lock, calling

    def commit(self) -> BaseException | None:
        self.lock.commit()
        return self.calling.exception(timeout=30)


@pytest.mark.parametrize(
    ("closes", "error"), [(FREEZE, PipelineFrozen), (CLOSE_GATE, TaskHeld)], ids=["a freeze", "a gate"]
)
def test_what_closed_while_the_claim_waited_stops_the_resend(
    bench: "Bench", provider: ChatCompletionsProvider, until: Until, closes: str, error: type[Exception]
) -> None:
    with waiting_resend(bench, provider, until) as held:
        held.lock.execute(closes)  # pyright: ignore[reportArgumentType]
        assert isinstance(held.commit(), error)
    assert len(bench.posts) == 1
    assert [row["sends"] for row in bench.rows()] == [1]


def test_a_takeover_that_the_claim_waited_for_stops_the_resend(
    bench: "Bench", provider: ChatCompletionsProvider, until: Until
) -> None:
    with waiting_resend(bench, provider, until) as held:
        task = bench.task()
        taken = held.lock.execute(TAKE_OVER, [task["task_id"], task["owner"], task["fencing_token"]]).fetchone()
        assert taken == ("claimed",)
        assert isinstance(held.commit(), LeaseLost)
    assert len(bench.posts) == 1


def test_a_freeze_waits_for_the_claim_under_way(bench: "Bench", provider: ChatCompletionsProvider) -> None:
    work = bench.claim(bench.allocate(), [provider])
    call = Call(pipeline="weekly_digest", task_id=work.task.task_id, call_key=CallKey("summary"))
    state = bench.database.run(lambda c: submissions.read_call(c, call))
    assert state is not None
    with ThreadPoolExecutor() as pool:
        with bench.database.transaction() as connection:
            claimed = submissions.claim_resend(connection, call, work.lease, state.submissions[0], sender=uuid4())
            assert claimed == "claimed"
            freeze = pool.submit(freezing.freeze, bench.database, "weekly_digest", who=WHO)
            with pytest.raises(TimeoutError):
                freeze.result(timeout=0.3)
        freeze.result(timeout=30)
    refused = bench.database.run(
        lambda c: submissions.claim_resend(c, call, work.lease, state.submissions[0], sender=uuid4())
    )
    assert refused == "frozen"


@pytest.mark.parametrize("shown", ["another owner", "another token"])
def test_only_the_holder_of_the_lease_claims_a_resend(
    bench: "Bench", provider: ChatCompletionsProvider, shown: str
) -> None:
    stale = bench.claim(bench.allocate(), [provider])
    bench.claim(stale.task.task_id, [provider]) if shown == "another owner" else bench.sql.execute(
        "UPDATE dagster_idempotent.tasks SET fencing_token = fencing_token + 1"
    )
    with pytest.raises(LeaseLost):
        bench.call(provider, work=stale)
    assert len(bench.posts) == 1
