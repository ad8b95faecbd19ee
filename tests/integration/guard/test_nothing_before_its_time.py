"""No credential, connection or request before it is due (R11, R18, R20)."""

import os
import select
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.money import Budget, Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import ConfigurationError, CredentialMissing, PipelineFrozen, TaskHeld, TaskNotFound
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class Recording(dict[str, str]):
    """An environment that remembers what was asked of it."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.asked: list[object] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> str:
        self.asked.append(key)
        return super().__getitem__(key)


class TestNothingBeforeItsTime:
    def test_a_missing_task_stops_before_any_credential_or_connection(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment = Recording(os.environ)
        monkeypatch.setattr(os, "environ", environment)
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            host, port = listener.getsockname()
            provider = ChatCompletionsProvider(
                base_url=f"http://{host}:{port}/v1", api_key_variable="K", look_up_path="/lookup"
            )
            with pytest.raises(TaskNotFound, match="2026-W32-7"):
                bench.claim(TaskId("2026-W32-7"), [provider])
            assert select.select([listener], [], [], 0)[0] == []
        assert "K" not in environment.asked

    def test_a_credential_is_read_only_when_a_request_leaves(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environment = Recording(os.environ)
        monkeypatch.setattr(os, "environ", environment)
        provider = bench.provider()
        work = bench.claim(bench.allocate(), [provider])
        guard = Guard(work, provider)
        assert "K" not in environment.asked
        guard.call(CallKey("summary"), bench.request)
        assert "K" in environment.asked

    @pytest.mark.parametrize("value", [None, "", "  ", "two\nlines", "ключ"])
    def test_a_credential_that_is_missing_sends_nothing_and_costs_nothing(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch, value: str | None
    ) -> None:
        monkeypatch.delenv("K") if value is None else monkeypatch.setenv("K", value)
        with pytest.raises(CredentialMissing, match="variable K"):
            bench.call(bench.provider(upper_bound=Money.parse("1 USD")))
        assert bench.states() == ["not_sent"]
        monkeypatch.setenv("K", bench.secret)
        bench.call(bench.provider(upper_bound=Money.parse("1 USD")))
        assert bench.states() == ["not_sent", "succeeded"]
        assert len(bench.posts) == bench.charges == 1

    def test_a_frozen_pipeline_sends_nothing_until_it_is_thawed(self, bench: "Bench") -> None:
        work = bench.claim(bench.allocate())
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = 'failover of the database'")
        with pytest.raises(PipelineFrozen, match="failover of the database"):
            bench.call(bench.provider(), work=work)
        assert bench.rows() == []
        bench.sql.execute("UPDATE dagster_idempotent.pipelines SET frozen_reason = NULL")
        bench.call(bench.provider(), work=work)
        assert len(bench.posts) == 1

    def test_a_closed_spend_gate_holds_the_task_until_somebody_approves(self, bench: "Bench") -> None:
        bench.declare(approval="spend")
        for _ in range(2):
            with pytest.raises(TaskHeld) as caught:
                bench.call(bench.provider())
            assert caught.value.facts["held_for"] == "gate"
        assert (bench.posts, bench.task()["attempts"]) == ([], 0)
        bench.sql.execute(
            "INSERT INTO dagster_idempotent.approvals (pipeline, task_id, gate, actor, reason, shown_sha256) "
            "SELECT pipeline, task_id, 'spend', 'ada', 'looks right', repeat('0', 64) FROM dagster_idempotent.tasks"
        )
        bench.call(bench.provider())
        assert len(bench.posts) == 1

    def test_a_missing_upper_bound_is_refused_where_there_is_a_budget(self, bench: "Bench") -> None:
        bench.declare(budget=Budget.per_task("1 USD"))
        with pytest.raises(ConfigurationError, match="upper bound"):
            bench.call(bench.provider())
        with pytest.raises(ConfigurationError, match="in USD"):
            bench.call(bench.provider(upper_bound=Money.parse("1 EUR")))
        assert bench.posts == []
