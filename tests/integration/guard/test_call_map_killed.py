"""A killed or terminated map goes on where it was, and each call is charged once."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from tests.conftest import Crew


Until = Callable[..., object]
Sql = psycopg.Connection[dict[str, Any]]


class TestKilled:
    def settings(self, provider: MeteredProvider) -> dict[str, Any]:
        return {
            "pipeline": {"lease": "10s", "sender_lease": "1s", "send_window": "900ms", "max_attempts": 50},
            "environment": {"K": "k"},
            "provider": {
                "base_url": provider.base_url,
                "api_key_variable": "K",
                "look_up_path": "/lookup",
                "settle_delay": 0.2,
            },
        }

    def until_done(
        self, crew: "Crew", url: str, provider: MeteredProvider, task_id: str, until: Until
    ) -> dict[str, Any]:
        """Start Dagster runs, one after the other, until one has every answer."""
        worker = crew.worker(url=url, **self.settings(provider))
        found: list[dict[str, Any]] = []

        def done() -> bool:
            worker.tell("claim", task_id=task_id, owner=f"again-{len(found)}", finished=["*"])
            answer = worker.answer()
            if "error" not in answer:
                worker.tell("map", items=60)
                answer = worker.answer()
            found.append(answer)
            if "error" in answer:
                assert answer["error"] in {"LeaseBusy", "CallsUnfinished", "TaskHeld"}, answer
            return "value" in answer

        until(done)
        return found[-1]["value"]

    def test_a_map_killed_in_the_middle_goes_on_and_every_call_is_charged_once(
        self, crew: "Crew", ledger_url: str, sql: Sql, metered_provider: MeteredProvider, until: Until
    ) -> None:
        (worker,) = crew.connected(1, url=ledger_url, **self.settings(metered_provider))
        task_id = worker.ask("allocate")
        worker.ask("claim", task_id=task_id, owner="killed")
        metered_provider.fault("hold", times=None, body_contains="item 2")
        worker.tell("map", items=60, concurrency=8)
        metered_provider.wait_held(4)
        worker.kill()
        metered_provider.clear_faults()
        metered_provider.release()
        charged = metered_provider.charges
        assert 0 < charged < 60
        value = self.until_done(crew, ledger_url, metered_provider, task_id, until)
        assert value["answers"] == 60
        assert metered_provider.charges == 60
        references = [line.client_reference for line in metered_provider.bill().lines]
        assert len(set(references)) == 60
        states = sql.execute("SELECT state, count(*) AS n FROM dagster_idempotent.submissions GROUP BY 1").fetchall()
        assert {row["state"]: row["n"] for row in states}["succeeded"] == 60

    def test_sigterm_ends_it_once_the_calls_under_way_have_answered(  # noqa: PLR0917 - fixtures
        self, crew: "Crew", ledger_url: str, sql: Sql, metered_provider: MeteredProvider, until: Until, tmp_path: Path
    ) -> None:
        log = tmp_path / "log"
        log.touch()
        (worker,) = crew.connected(1, url=ledger_url, **self.settings(metered_provider))
        task_id = worker.ask("allocate")
        worker.ask("claim", task_id=task_id, owner="terminated")
        metered_provider.fault("hold", times=None)
        worker.tell("map", items=60, concurrency=5, log=str(log))
        metered_provider.wait_held(5)
        os.kill(worker.pid, signal.SIGTERM)
        until(lambda: "nothing more starts" in log.read_text())
        metered_provider.release()
        assert worker.answer()["error"] == "KeyboardInterrupt"
        rows = sql.execute("SELECT state FROM dagster_idempotent.submissions").fetchall()
        assert [row["state"] for row in rows] == ["succeeded"] * 5
        assert metered_provider.charges == 5
        metered_provider.clear_faults()
        value = self.until_done(crew, ledger_url, metered_provider, task_id, until)
        assert (value["answers"], metered_provider.charges) == (60, 60)
