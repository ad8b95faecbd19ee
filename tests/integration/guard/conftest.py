"""A bench for the guard: one task, one call, one provider with its own bill."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import psycopg
import pytest
from pydantic import BaseModel

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.guard import CallResult, Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.errors import CallInDoubt, RemoteJobUnfinished
from dagster_idempotent.providers.chat_completions import ChatCompletion, ChatCompletionsProvider
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef
from dagster_idempotent.testing.metered_provider import MeteredProvider

SECRET = "sk-a-key-that-must-not-be-seen"  # noqa: S105 - the test looks for it everywhere
REQUEST = {"model": "m", "messages": [{"role": "user", "content": "summarise"}]}
CHANGED = {"model": "m", "messages": [{"role": "user", "content": "translate"}]}
Sql = psycopg.Connection[dict[str, Any]]


class Digest(BaseModel):
    title: str
    highlights: list[str]


@dataclass(kw_only=True)
class Bench:
    """A ledger, a provider, and Dagster runs numbered from 1."""

    database: Database
    sql: Sql
    metered: MeteredProvider
    pipeline: Pipeline[Digest] = field(default_factory=lambda: Pipeline("weekly_digest", output=Digest))
    runs: int = 0
    charges_before: int = 0
    requests_before: int = 0
    request: Mapping[str, object] = field(default_factory=lambda: REQUEST)
    changed: Mapping[str, object] = field(default_factory=lambda: CHANGED)
    secret: str = SECRET

    def __post_init__(self) -> None:
        self.charges_before = self.metered.charges
        self.requests_before = len(self.metered.requests())

    def provider(self, kind: type[ChatCompletionsProvider] = ChatCompletionsProvider, **options: Any) -> Any:
        """Make a provider that can look up unless told otherwise."""
        settings: dict[str, Any] = {
            "look_up_path": "/lookup",
            "settle_delay": timedelta(minutes=1),
            "read_timeout": timedelta(seconds=30),
            **options,
        }
        return kind(base_url=self.metered.base_url, api_key_variable="K", **settings)

    def without_look_up(self, **options: Any) -> ChatCompletionsProvider:
        return cast("ChatCompletionsProvider", self.provider(look_up_path=None, **options))

    def studio(self, *, upper_bound: Money | None = None, **settings: Any) -> Any:
        """Make a provider of remote jobs that can be looked up and cancelled unless told otherwise."""
        api = JobApi(
            **{
                "result_path": "/jobs/{id}/result",
                "cancel_path": "/jobs/{id}/cancel",
                "look_up_path": "/jobs?key={key}",
                "look_up_complete_at": "complete",
                "progress_at": "progress",
                "cost_at": "cost.amount",
                "currency_at": "cost.currency",
                "settle_delay": timedelta(minutes=1),
                "pace": Backoff(base=timedelta(milliseconds=5), cap=timedelta(milliseconds=20), jitter=0.0),
                "poll_budget": timedelta(seconds=30),
                **settings,
            }
        )
        base = self.metered.base_url
        return JsonJobApi(api, name="studio", base_url=base, api_key_variable="K", upper_bound=upper_bound)

    def driven(self, status: str, **facts: object) -> str:
        """Drive the newest job, which the next polls then find so."""
        job = self.metered.jobs()[-1].id
        self.metered.drive(job, status, **facts)
        return job

    def unfinished(self, **settings: Any) -> str:
        """Submit a job that stays queued, by a run that soon stops to wait; return its reference."""
        self.metered.fault("hold", path_contains="GET /v1/jobs/")

        def queue_up() -> None:
            self.metered.wait_held()
            self.driven("queued")
            self.metered.release()

        queueing = threading.Thread(target=queue_up)
        queueing.start()
        with pytest.raises(RemoteJobUnfinished) as caught:
            self.call(self.studio(poll_budget=timedelta(0), **settings), {"prompt": "a forest"})
        queueing.join(timeout=30)
        return str(caught.value.facts["remote_ref"])

    def ref(self) -> TaskRef:
        """Name the one task as operators do."""
        return TaskRef(pipeline=self.pipeline.name, task_id=TaskId(self.task()["task_id"]))

    def allocate(self, subject: str = "") -> TaskId:
        instant = datetime(2026, 8, 3, tzinfo=UTC)
        identity = Identity(pipeline=self.pipeline.name, subject=subject, scheduled_at=instant)
        return Allocator(self.database).allocate(self.pipeline, identity).task_id

    def claim(self, task_id: TaskId, providers: Sequence[ChatCompletionsProvider] = ()) -> Work:
        """Claim for a new Dagster run; every earlier one is over."""
        self.runs += 1
        owner = Owner(f"run-{self.runs}")
        return claim(
            self.database,
            Heartbeat(self.database),
            self.pipeline,
            task_id,
            owner,
            is_finished=lambda _: True,
            providers=providers,
        )

    def call(
        self, provider: ChatCompletionsProvider, request: Mapping[str, object] = REQUEST, *, work: Work | None = None
    ) -> CallResult[ChatCompletion]:
        """Make the call `summary` of the one task, in a new run unless `work` is given."""
        if work is None:
            work = self.claim(self.allocate(), [provider])
        with work.renewed():
            return Guard(work, provider).call(CallKey("summary"), request)

    def declare(self, **settings: Any) -> None:
        """Declare the pipeline with other settings."""
        self.pipeline = Pipeline("weekly_digest", output=Digest, **settings)

    def doubt(self, provider: ChatCompletionsProvider, fault: str = "accept_then_drop") -> CallInDoubt:
        """Make the call and lose its answer."""
        self.metered.fault(fault)
        with pytest.raises(CallInDoubt) as caught:
            self.call(provider)
        return caught.value

    def expire(self, *, seconds: float = 0.0) -> None:
        """Make every sender's lease be over since that many seconds."""
        self.sql.execute(
            "UPDATE dagster_idempotent.submissions "
            "SET sender_expires_at = clock_timestamp() - make_interval(secs => %s)",
            [seconds],
        )

    def rows(self) -> list[dict[str, Any]]:
        return self.sql.execute("SELECT * FROM dagster_idempotent.submissions ORDER BY call_key, submission").fetchall()

    def states(self) -> list[str]:
        return [row["state"] for row in self.rows()]

    def task(self) -> dict[str, Any]:
        row = self.sql.execute("SELECT * FROM dagster_idempotent.tasks").fetchone()
        assert row is not None
        return row

    @property
    def charges(self) -> int:
        """How often the provider charged since this test began."""
        return self.metered.charges - self.charges_before

    @property
    def posts(self) -> list[str | None]:
        """The keys of all requests that arrived, also of those that were not accepted."""
        return [r.client_reference for r in self.metered.requests()[self.requests_before :] if r.method == "POST"]


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    """Start one provider for the module; each test counts from where it began."""
    with MeteredProvider.start(tmp_path_factory.mktemp("metered")) as provider:
        yield provider


@pytest.fixture
def bench(ledger: Database, sql: Sql, metered: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Give a bench; at the end the counters of all budgets must equal what the costs add up to."""
    monkeypatch.setenv("K", SECRET)
    # Copies of one template would share a ledger id, and with it the keys at the provider of this module.
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.ledger SET ledger_id = gen_random_uuid()")
    sql.execute("SET session_replication_role = origin")
    yield Bench(database=ledger, sql=sql, metered=metered)
    metered.clear_faults()
    metered.release()
    metered.configure(deduplicate=False, lookup=True)
    unbalanced = sql.execute(
        """WITH booked AS (
            SELECT c.pipeline, s.scope, c.currency,
                sum(CASE c.kind WHEN 'reserved' THEN amount WHEN 'released' THEN -amount ELSE 0 END) AS reserved,
                sum(CASE c.kind WHEN 'settled' THEN amount WHEN 'adjusted' THEN amount ELSE 0 END) AS settled
            FROM dagster_idempotent.costs c JOIN dagster_idempotent.tasks t USING (pipeline, task_id)
            CROSS JOIN LATERAL (VALUES ('pipeline'), ('period:' || t.period_id), ('task:' || t.task_id)) AS s (scope)
            GROUP BY 1, 2, 3)
        SELECT * FROM dagster_idempotent.budgets b FULL JOIN booked USING (pipeline, scope, currency)
        WHERE (coalesce(b.reserved, 0), coalesce(b.settled, 0))
            <> (coalesce(booked.reserved, 0), coalesce(booked.settled, 0))"""
    ).fetchall()
    assert unbalanced == []


def about(item: int) -> dict[str, object]:
    return {"model": "m", "messages": [{"role": "user", "content": f"item <{item}>"}]}


def name(item: int) -> str:
    return f"item-{item}"
