"""Many processes allocate at once (R2, R3, R6)."""

from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from tests.conftest import Crew

ROUNDS = 10
PROCESSES = 32


def values(answers: list[Any]) -> list[Any]:
    assert [answer for answer in answers if "error" in answer] == []
    return [answer["value"] for answer in answers]


def test_32_first_time_callers_get_32_numbers_without_a_gap(crew: "Crew", ledger_url: str) -> None:
    workers = crew.connected(PROCESSES, url=ledger_url)
    for month in range(1, ROUNDS + 1):
        instant = f"2026-{month:02}-12T00:00:00+00:00"
        orders = [{"subject": f"tenant-{n}", "scheduled_at": instant} for n in range(PROCESSES)]
        found = values(crew.at_once(workers, "allocate", orders))
        assert sorted(int(task_id.rpartition("-")[2]) for task_id in found) == list(range(PROCESSES))
        assert len({task_id.rpartition("-")[0] for task_id in found}) == 1


def test_32_callers_with_one_key_get_one_task(
    crew: "Crew", ledger_url: str, sql: psycopg.Connection[dict[str, Any]]
) -> None:
    workers = crew.connected(PROCESSES, url=ledger_url)
    for month in range(1, ROUNDS + 1):
        instant = f"2026-{month:02}-12T00:00:00+00:00"
        found = values(crew.at_once(workers, "allocate", [{"scheduled_at": instant}] * PROCESSES))
        assert len(set(found)) == 1
    assert sql.execute("SELECT count(*) AS n FROM dagster_idempotent.tasks").fetchone() == {"n": ROUNDS}
