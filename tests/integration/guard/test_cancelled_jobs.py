"""Cancelling a remote job, and a person's word about one that the provider has forgotten."""

from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent.domain.money import Money
from dagster_idempotent.engine import remote_jobs, resolutions
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.errors import DecisionRefused, RemoteJobFailed

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

PROMPT: dict[str, object] = {"prompt": "a forest"}
ADA = Who(actor="ada", reason="told so")
PNG = b"\x89PNG\r\n\x1a\n"


class TestCancel:
    def cancel(self, bench: "Bench", provider: Any, **options: bool) -> Any:
        return remote_jobs.cancel(bench.database, bench.ref(), "summary", [provider], who=ADA, **options)

    def test_the_providers_word_ends_the_job_and_is_kept_with_who_asked(self, bench: "Bench") -> None:
        job = bench.unfinished()
        planned = self.cancel(bench, bench.studio(), dry_run=True)
        assert (planned.dry_run, bench.metered.jobs()[-1].status, bench.states()) == (True, "queued", ["accepted"])
        decision = self.cancel(bench, bench.studio())
        assert (decision.action, bench.metered.jobs()[-1].status) == ("cancelled", "cancelled")
        assert bench.states() == ["failed"]
        audit = bench.sql.execute("SELECT * FROM dagster_idempotent.audit WHERE action = 'cancel'").fetchall()
        assert [(row["actor"], row["before"]["state"], row["after"]["remote_ref"]) for row in audit] == [
            ("ada", "accepted", job)
        ]
        with pytest.raises(DecisionRefused, match="is failed"):
            self.cancel(bench, bench.studio())
        assert bench.charges == 1

    def test_a_job_that_ended_well_meanwhile_keeps_its_result(self, bench: "Bench") -> None:
        bench.unfinished()
        bench.driven("succeeded")
        assert self.cancel(bench, bench.studio()).action == "asked"
        assert bench.states() == ["accepted"]
        assert bench.call(bench.studio(), PROMPT).value.body.startswith(PNG)

    def test_a_cancellation_that_failed_is_no_job_that_failed(self, bench: "Bench") -> None:
        bench.unfinished()
        bench.driven("succeeded")
        refused = '{"status": "failed", "error": "it has ended"}'
        bench.metered.fault("status", status=200, body=refused, path_contains="/cancel")
        assert self.cancel(bench, bench.studio()).action == "asked"
        assert bench.call(bench.studio(), PROMPT).value.body.startswith(PNG)
        assert bench.charges == 1

    def test_no_answer_to_the_cancellation_ends_nothing(self, bench: "Bench") -> None:
        bench.unfinished()
        bench.metered.fault("status", status=500, path_contains="/cancel")
        bench.metered.fault("drop_before_accepting", path_contains="GET /v1/jobs/")
        decision = self.cancel(bench, bench.studio())
        assert (decision.action, bench.states()) == ("asked", ["accepted"])
        assert "RemoteProtocolError" in decision.after["provider_said"]

    def test_an_operator_brings_the_end_of_a_job_that_the_provider_forgot(self, bench: "Bench") -> None:
        bench.unfinished()
        said = Evidence(proof=Proof.NOT_SENT, told="gone")
        with pytest.raises(DecisionRefused):
            resolutions.resolve(bench.database, bench.ref(), "summary", said, who=ADA)
        over = Evidence(proof=Proof.FAILED, told="support ticket 7", cost=Money.parse("0.02 USD"))
        resolutions.resolve(bench.database, bench.ref(), "summary", over, who=ADA)
        assert (bench.states(), bench.rows()[0]["error"]) == (["failed"], "support ticket 7")

    def test_an_operator_brings_the_result_by_hand(self, bench: "Bench") -> None:
        bench.unfinished()
        brought = Evidence(proof=Proof.SUCCEEDED, told="downloaded", answer=b"the bytes")
        resolutions.resolve(bench.database, bench.ref(), "summary", brought, who=ADA)
        assert bench.call(bench.studio(), PROMPT).value.body == b"the bytes"
        assert bench.charges == 1


REFUNDED = '{"id": "%s", "status": "failed", "cost": {"amount": -0.02, "currency": "USD"}}'


@pytest.mark.parametrize("cancelled", [True, False])
def test_a_refund_in_place_of_a_cost_does_not_keep_a_job_from_its_end(bench: "Bench", cancelled: bool) -> None:
    job = bench.unfinished()
    path = "/cancel" if cancelled else "GET /v1/jobs/"
    bench.metered.fault("status", status=200, body=REFUNDED % job, path_contains=path)
    if cancelled:
        remote_jobs.cancel(bench.database, bench.ref(), "summary", [bench.studio()], who=ADA)
    else:
        with pytest.raises(RemoteJobFailed):
            bench.call(bench.studio(), PROMPT)
    assert [(row["state"], row["cost"]) for row in bench.rows()] == [("failed", None)]
