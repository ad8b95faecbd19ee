"""Concurrent callers cannot overspend together; no secret is kept (R18)."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql as psql

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import BudgetExceeded, CallInDoubt, CallRejected, ConfigurationError, TaskHeld

if TYPE_CHECKING:
    from tests.conftest import Crew
    from tests.integration.guard.conftest import Bench


class TestBudgets:
    def test_of_64_threads_exactly_as_many_send_as_the_budget_allows(self, bench: "Bench") -> None:
        bench.declare(budget=Budget.per_task("10 USD"))
        work = bench.claim(bench.allocate())

        def call(number: int) -> type[Exception] | None:
            guard = Guard(work, bench.provider(upper_bound=Money.parse("1 USD")))
            try:
                guard.call(CallKey(f"call-{number}"), bench.request)
            except (BudgetExceeded, TaskHeld) as error:
                return type(error)
            return None

        with work.renewed(), ThreadPoolExecutor(64) as pool:
            results = list(pool.map(call, range(64)))
        assert results.count(None) == len(bench.posts) == bench.charges == 10
        assert results.count(BudgetExceeded) >= 1
        assert (bench.task()["status"], bench.task()["held_for"]) == ("held", "budget")

    def test_of_24_processes_exactly_as_many_send_as_the_pipelines_budget_allows(
        self, bench: "Bench", crew: "Crew"
    ) -> None:
        provider = {"base_url": bench.metered.base_url, "api_key_variable": "K", "upper_bound": "1 USD"}
        workers = crew.connected(
            24,
            url=bench.database.url,
            provider=provider,
            environment={"K": "k"},
            pipeline={"per_pipeline": "10 USD"},
        )
        for number, worker in enumerate(workers):
            task_id = worker.ask("allocate", subject=f"tenant-{number}")
            worker.ask("claim", task_id=task_id, owner=f"run-{number}")
        answers = crew.at_once(workers, "call", [{}] * len(workers))
        assert {answer["error"] for answer in answers if "error" in answer} == {"BudgetExceeded"}
        assert len([answer for answer in answers if "value" in answer]) == bench.charges == 10

    def test_a_call_that_may_cost_more_than_one_call_may_is_refused(self, bench: "Bench") -> None:
        bench.declare(budget=Budget(per_call="0.50 USD", per_task="10 USD"))
        with pytest.raises(ConfigurationError, match=r"allows 0\.50 USD for one call") as caught:
            bench.call(bench.provider(upper_bound=Money.parse("0.51 USD")))
        assert caught.value.facts["field"] == "per_call"
        assert bench.rows() == []
        bench.call(bench.provider(upper_bound=Money.parse("0.50 USD")))
        # What is stored is replayed, whatever the limits have become.
        bench.declare(budget=Budget.per_call("0.01 USD"))
        assert bench.call(bench.provider()).replayed is True
        assert len(bench.posts) == 1

    def test_a_refused_call_gives_its_reservation_back(self, bench: "Bench") -> None:
        bench.declare(budget=Budget.per_task("1 USD"))
        provider = bench.provider(upper_bound=Money.parse("1 USD"), cost_of=lambda _: Money.parse("0.02 USD"))
        for _ in range(3):
            bench.metered.fault("status", status=400)
            with pytest.raises(CallRejected):
                bench.call(provider)
        bench.call(provider)
        budget = bench.sql.execute(
            "SELECT reserved, settled FROM dagster_idempotent.budgets WHERE scope LIKE 'task:%'"
        ).fetchone()
        assert budget is not None
        assert (str(budget["reserved"]), str(budget["settled"])) == ("0.00", "0.02") or budget["reserved"] == 0

    def test_a_call_in_doubt_keeps_its_reservation(self, bench: "Bench") -> None:
        bench.declare(budget=Budget.per_period("1 USD"))
        bench.doubt(bench.without_look_up(upper_bound=Money.parse("1 USD")))
        work = bench.claim(bench.allocate("another tenant"))
        with pytest.raises(BudgetExceeded, match="period:2026-W32"):
            bench.call(bench.without_look_up(upper_bound=Money.parse("1 USD")), work=work)
        assert len(bench.posts) == 1


class TestSecrets:
    def test_the_credential_is_in_no_table_log_or_text(self, bench: "Bench", caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        texts: list[str] = []

        def fail(**fault: Any) -> None:
            bench.metered.fault(**fault)
            try:
                bench.call(bench.provider(settle_delay=timedelta(0)))
            except (CallRejected, CallInDoubt) as error:
                texts.append(f"{error!r} {error} {error.facts}")

        quoted = json.dumps({"error": {"message": f"Incorrect API key provided: {bench.secret}"}})
        fail(kind="status", status=401, body=quoted)
        fail(kind="status", status=400, body=quoted)
        fail(kind="status", status=500, body=quoted)
        bench.expire(seconds=1)
        bench.call(bench.provider(settle_delay=timedelta(0)))
        assert len(texts) == 3
        tables = [
            row["t"]
            for row in bench.sql.execute(
                "SELECT table_name::text AS t FROM information_schema.tables WHERE table_schema = 'dagster_idempotent'"
            )
        ]
        for table in tables:
            rows = bench.sql.execute(
                psql.SQL("SELECT t::text AS r FROM dagster_idempotent.{} t").format(psql.Identifier(table))
            )
            texts += [row["r"] for row in rows]
        bodies = bench.sql.execute(
            "SELECT convert_from(response_body, 'utf-8') AS b FROM dagster_idempotent.submissions"
        )
        texts += [str(row["b"]) for row in bodies]
        texts += [f"{record.getMessage()} {record.__dict__}" for record in caplog.records]
        assert len(tables) >= 10
        assert not [text for text in texts if bench.secret in text]
