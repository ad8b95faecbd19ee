"""A freeze returns once every intent that had not seen it has committed; later ones are refused."""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest

from dagster_idempotent.engine import freezing, stages
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.errors import DecisionRefused
from dagster_idempotent.store import decisions

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

WHO = Who(actor="ada", reason="failover")
INTEND = """
SELECT verdict FROM dagster_idempotent.intend_v1(jsonb_build_object('pipeline', 'weekly_digest',
    'task_id', %s::text, 'submission', 1, 'sender', gen_random_uuid(), 'owner', 'run-1', 'fencing_token', 1,
    'provider', 'p', 'call_key', %s::text, 'fingerprint', 'f', 'fingerprint_version', 1, 'fingerprint_fields', '{}',
    'idempotency_key', 'k', 'key_no', 0, 'lookup', 'none', 'settle_delay', '1 s'), interval '1 s', NULL, NULL)
"""


def test_a_task_that_was_claimed_while_the_freeze_was_under_way_is_waited_for_too(bench: "Bench") -> None:
    url = bench.database.url
    task_id = bench.allocate()
    with psycopg.connect(url) as freezer, psycopg.connect(url) as other, ThreadPoolExecutor() as pool:
        freezer.execute("SELECT dagster_idempotent.freeze_v1('weekly_digest', 'failover', 'ada', 'failover')")
        bench.claim(task_id)
        assert other.execute(INTEND, [task_id, "one"]).fetchone() == ("intended",)
        freezer.commit()
        waits = pool.submit(bench.database.run, lambda c: decisions.wait_for_intents(c, "weekly_digest"))
        with pytest.raises(TimeoutError):
            waits.result(timeout=0.3)
        other.commit()
        waits.result(timeout=30)
        assert other.execute(INTEND, [task_id, "two"]).fetchone() == ("frozen",)


def test_a_freeze_waits_for_the_paid_delivery_under_way(bench: "Bench") -> None:
    work = bench.claim(bench.allocate())
    stages.persist(work, {"title": "t", "highlights": []}, dagster_run_id="run-1", channels={"bill": True})
    bench.sql.execute(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', attempts = 1, sender = gen_random_uuid(), "
        "sender_expires_at = clock_timestamp() + interval '1 h'"
    )
    with ThreadPoolExecutor(1) as pool:
        with bench.sql.transaction():
            # As the intent of a delivery holds its message until it commits.
            bench.sql.execute("SELECT FROM dagster_idempotent.outbox FOR SHARE")
            frozen = pool.submit(freezing.freeze, bench.database, "weekly_digest", who=WHO)
            with pytest.raises(TimeoutError):
                frozen.result(timeout=0.3)
        frozen.result(timeout=30)


def test_a_freeze_that_was_cut_off_is_waited_for_by_whoever_repeats_it(bench: "Bench") -> None:
    task_id = bench.claim(bench.allocate()).task.task_id
    with psycopg.connect(bench.database.url) as other, ThreadPoolExecutor() as pool:
        assert other.execute(INTEND, [task_id, "one"]).fetchone() == ("intended",)
        bench.sql.execute("SELECT dagster_idempotent.freeze_v1('weekly_digest', 'failover', 'ada', 'failover')")
        again = pool.submit(freezing.freeze, bench.database, "weekly_digest", who=WHO)
        with pytest.raises(TimeoutError):
            again.result(timeout=0.3)
        other.commit()
        with pytest.raises(DecisionRefused, match="frozen already"):
            again.result(timeout=30)
