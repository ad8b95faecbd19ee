import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "ticket 812")


def test_list_filters_by_state_period_and_cost(cli: Run, world: Any) -> None:
    world.run(world.allocate("acme"))
    held = world.doubtful("beta")
    rows = cli("calls", "list", "--json").json()
    assert [row["state"] for row in rows] == ["succeeded", "in_doubt"]
    assert [row["task_id"] for row in cli("calls", "list", "--unsettled", "--json").json()] == [held]
    assert len(cli("calls", "list", "--min-cost", "0.02", "--json").json()) == 1
    assert cli("calls", "list", "--min-cost", "0.021", "--json").json() == []
    assert cli("calls", "list", "--period", "2026-W33").err == "No call fits.\n"
    assert cli("calls", "list", "--task", held).out.splitlines()[0].split()[:3] == ["pipeline", "task_id", "call_key"]


def test_show_names_the_key_at_the_provider(cli: Run, world: Any) -> None:
    task_id = world.doubtful()
    (row,) = cli("calls", "show", task_id, "summary", "--json").json()
    assert row["idempotency_key"] == world.metered.bill().lines[0].client_reference
    assert "fingerprint_fields" not in row
    unknown = cli("calls", "show", task_id, "sumary")
    assert (unknown.code, "it has summary" in unknown.err) == (1, True)


@pytest.mark.parametrize("told_cost", [True, False])
def test_a_resolved_answer_is_replayed_and_booked_once(cli: Run, world: Any, tmp_path: Path, told_cost: bool) -> None:
    task_id = world.settled_down(world.doubtful())
    record = world.console(world.metered.bill().lines[0].client_reference)[0]
    answer = tmp_path / "answer.json"
    answer.write_text(json.dumps(record["response"]))
    words = ("calls", "resolve", task_id, "summary", "--as", "succeeded", "--evidence", "console", *WHO, "--json")
    cost = ("--cost", "0.03 USD") if told_cost else ()
    dry = cli(*words, "--answer", str(answer), *cost, "--dry-run")
    assert (dry.code, dry.json()["after"]["state"]) == (0, "succeeded")
    assert world.status(task_id) == "held"
    done = cli(*words, "--answer", "-", *cost, given=answer.read_bytes())
    assert done.json()["after"]["settled_by"] == "operator"
    assert world.status(task_id) == "pending"
    assert world.run(task_id) == "completed"
    assert world.metered.charges == 1
    # A cost that nobody tells counts as the upper bound.
    (total,) = cli("costs", "--json").json()
    assert (total["settled"], total["reserved"]) == ("0.03" if told_cost else "0.05", "0.00")
    assert cli("verify").code == 0
    (audit,) = cli("audit", "--action", "resolve", "--json").json()
    assert (audit["before"]["state"], audit["after"]["state"]) == ("in_doubt", "succeeded")
    assert audit["after"]["evidence"] == "console"
    again = cli(*words, "--answer", str(answer))
    assert (again.code, "is succeeded" in again.err) == (1, True)


def test_evidence_has_to_fit_what_it_proves(cli: Run, world: Any, tmp_path: Path) -> None:
    task_id = world.settled_down(world.doubtful())
    answer = tmp_path / "answer.json"
    answer.write_text("{not json")
    words = ("calls", "resolve", task_id, "summary", "--evidence", "console", *WHO)
    for more in (
        ("--as", "succeeded"),
        ("--as", "accepted"),
        ("--as", "succeeded", "--answer", str(answer)),
        ("--as", "not_sent", "--cost", "0.02 USD"),
        ("--as", "succeeded", "--answer", str(tmp_path / "missing")),
    ):
        done = cli(*words, *more)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
    assert world.status(task_id) == "held"


def test_an_accepted_call_is_fetched_and_never_submitted_again(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    reference = world.metered.bill().lines[0].request_id
    words = ("calls", "resolve", task_id, "summary", "--as", "accepted", "--evidence", "console", *WHO)
    assert cli(*words, "--remote-ref", reference).code == 0
    assert world.run(task_id) == "CallInProgress"
    assert cli("explain", task_id, "--json").json()["rerun"]["sends"] == []
    world.metered.configure(lookup=True)
    world.look_up = True
    world.query("SELECT 1 AS x")
    assert world.run(task_id) in ("completed", "LeaseBusy", "CallInProgress")
    assert world.metered.charges == 1


def test_a_late_answer_of_an_abandoned_call_corrects_what_was_booked(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    assert cli("calls", "abandon", task_id, "summary", *WHO).code == 0
    assert cli("costs", "--json").json()[0]["settled"] == "0.05"
    answer = {
        "pipeline": "weekly_digest", "task_id": task_id, "call_key": "summary", "submission": 1, "state": "succeeded",
        "settled_by": "sender", "response_sha256": "b" * 64, "cost": "0.02", "currency": "USD",
    }  # fmt: skip
    world.query("SELECT * FROM dagster_idempotent.record_answer_v1(%s::text::jsonb, 'x')", json.dumps(answer))
    (total,) = cli("costs", "--json").json()
    assert (total["settled"], total["adjusted"]) == ("0.02", "-0.03")
    findings = cli("verify", "--json").json()["findings"]
    assert [finding["rule"] for finding in findings] == ["answer_hashes"]  # the hash above is made up


def test_the_schema_itself_refuses_a_submission_after_an_abandoned_one(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    assert cli("calls", "abandon", task_id, "summary", *WHO).code == 0
    with pytest.raises(Exception, match="only an operator may allow another"):
        world.query(
            "INSERT INTO dagster_idempotent.submissions SELECT (jsonb_populate_record(s, "
            '\'{"submission": 2, "state": "intended", "settled_by": null, "settled_at": null}\')).* '
            "FROM dagster_idempotent.submissions s RETURNING 1 AS x"
        )
    assert world.metered.charges == 1


def test_a_changed_payload_does_not_go_out_under_a_resend(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    assert cli("calls", "resend", task_id, "summary", "--may-charge-twice", *WHO).code == 0
    again = cli("calls", "resend", task_id, "summary", "--may-charge-twice", *WHO)
    assert (again.code, "ada has allowed it already" in again.err) == (1, True)
    assert world.run(task_id, prompt="something else") == "PayloadMismatch"
    assert world.metered.charges == 1


def test_a_completed_task_has_nothing_to_send_again(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.run(task_id)
    for verb in (("abandon",), ("resend", "--may-charge-twice")):
        done = cli("calls", verb[0], task_id, "summary", *verb[1:], *WHO)
        assert done.code == 1
        assert "is succeeded" in done.err
    assert world.metered.charges == 1


def test_reconcile_without_proof_says_who_has_to_decide(
    cli: Run, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task_id = world.settled_down(world.doubtful())
    (tmp_path / "my_providers.py").write_text(
        "from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider\n"
        f"silent = ChatCompletionsProvider(base_url={world.metered.base_url!r})\n"
        "other = [ChatCompletionsProvider(base_url='http://127.0.0.1:1/v1', account='other')]\n"
        "wrong = [1, 2]\n"
    )
    monkeypatch.chdir(tmp_path)
    silent = cli("calls", "reconcile", task_id, "-m", "my_providers:silent")
    assert (silent.code, "has no look-up" in silent.err) == (3, True)
    other = cli("calls", "reconcile", task_id, "summary", "-m", "my_providers:other")
    assert (other.code, "given are 'chat_completions:other'" in other.err) == (3, True)
    for wrong in ("my_providers:wrong", "my_providers:missing", "no_such_module:x"):
        assert cli("calls", "reconcile", task_id, "-m", wrong).code == 2
    dry = cli("calls", "reconcile", task_id, "-m", "my_providers:silent", "--dry-run", "--json")
    assert (dry.code, dry.json()[0]["settled"]) == (0, False)
