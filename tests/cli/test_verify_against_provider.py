from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "ticket 812")
MODULE = """
from datetime import timedelta
from dagster_idempotent.domain.money import Money
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
options = dict(base_url={url!r}, api_key_variable="METERED_PROVIDER_KEY", settle_delay=timedelta(0))
provider = ChatCompletionsProvider(look_up_path="/lookup", cost_of=lambda _: Money.parse("0.02 USD"), **options)
dearer = ChatCompletionsProvider(look_up_path="/lookup", cost_of=lambda _: Money.parse("0.03 USD"), **options)
blind = ChatCompletionsProvider(**options)
away = ChatCompletionsProvider(base_url="http://127.0.0.1:9/v1", look_up_path="/lookup",
    api_key_variable="METERED_PROVIDER_KEY")
other = ChatCompletionsProvider(base_url={url!r}, account="other", look_up_path="/lookup")
"""


@pytest.fixture
def compare(
    cli: Run, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Run:
    world.metered.configure(lookup=True)
    name = f"providers_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(url=world.metered.base_url))
    monkeypatch.chdir(tmp_path)

    def run(provider: str = "provider", *more: str) -> Any:
        return cli("verify", "--against-provider", "-m", f"{name}:{provider}", "--json", *more)

    return run


def rules(transcript: Any, kind: str = "findings") -> list[tuple[str, str]]:
    return [(row["rule"], row["subject"]) for row in transcript.json()[kind]]


def damage(world: Any, statement: str) -> None:
    """Change the ledger as a failover or a wrong restore does, behind the back of its triggers."""
    with world.ledger.transaction() as connection:
        connection.execute("SET LOCAL session_replication_role = 'replica'")
        connection.execute(statement.encode())


def test_what_was_paid_agrees_and_a_second_run_prints_the_same(compare: Run, world: Any) -> None:
    world.run(world.allocate("acme"))
    world.never_arrived("beta")
    world.allocate("gamma")
    first, second = compare(), compare()
    assert (first.code, first.out) == (0, second.out)
    # Two calls that were made, and the one of the task that has made none yet.
    assert first.json()["totals"]["look_ups"] == 3
    assert (rules(first), rules(first, "notices")) == ([], [])
    assert world.metered.charges == 1
    assert len(world.metered.requests()) == 2


def test_a_charge_whose_intent_was_lost_with_a_failover_is_found_by_the_key_it_must_have(
    compare: Run, world: Any
) -> None:
    world.run(world.allocate("acme"))
    lost = world.doubtful("beta")
    damage(world, "DELETE FROM dagster_idempotent.costs WHERE task_id = '2026-W32-1'")
    damage(world, "DELETE FROM dagster_idempotent.submissions WHERE task_id = '2026-W32-1'")
    done = compare()
    assert done.code == 1
    assert ("unrecorded_charges", f"weekly_digest/{lost} call summary") in rules(done)
    (found,) = [row["found"] for row in done.json()["findings"] if row["rule"] == "unrecorded_charges"]
    assert world.metered.bill().lines[1].request_id in found


def test_a_submission_that_counts_as_never_sent_and_was_charged_is_found(compare: Run, world: Any, cli: Run) -> None:
    task_id = world.settled_down(world.doubtful())
    words = ("--as", "not_sent", "--evidence", "not in the console")
    assert cli("calls", "resolve", task_id, "summary", *words, *WHO).code == 0
    done = compare()
    assert done.code == 1
    assert rules(done) == [("unrecorded_charges", f"weekly_digest/{task_id} call summary submission 1")]
    assert "not_sent in the ledger; the provider has it as" in done.json()["findings"][0]["found"]


def test_a_call_in_doubt_that_the_provider_has_is_no_contradiction(compare: Run, world: Any) -> None:
    task_id = world.doubtful()
    done = compare()
    assert (done.code, rules(done)) == (0, [])
    assert rules(done, "notices") == [("unsettled", f"weekly_digest/{task_id} call summary submission 1")]
    assert world.status(task_id) == "held"


def test_a_reference_that_the_provider_does_not_know_is_found(compare: Run, world: Any) -> None:
    task_id = world.allocate()
    world.run(task_id)
    subject = f"weekly_digest/{task_id} call summary submission 1"
    damage(world, "UPDATE dagster_idempotent.submissions SET remote_ref = 'req_of_somebody_else'")
    assert ("references", subject) in rules(compare())
    damage(world, "UPDATE dagster_idempotent.submissions SET idempotency_key = 'di-nobody-knows-it'")
    done = compare()
    assert (done.code, rules(done)) == (1, [("unknown_references", subject)])


def test_another_cost_than_the_provider_reports_is_found(compare: Run, world: Any) -> None:
    task_id = world.allocate()
    world.run(task_id)
    done = compare("dearer")
    assert (done.code, rules(done)) == (1, [("costs", f"weekly_digest/{task_id} call summary submission 1")])
    assert done.json()["findings"][0]["found"] == "0.02 USD in the ledger, 0.03 USD at the provider"


def test_whoever_cannot_be_asked_is_named_and_never_counts_as_agreeing(compare: Run, world: Any) -> None:
    world.run(world.allocate())
    for provider, why in (("blind", "it has no exact look-up"), ("other", "no adapter for it was given")):
        done = compare(provider)
        assert (done.code, done.json()["totals"]["look_ups"]) == (0, 0)
        assert why in done.json()["notices"][0]["found"]
    away = compare("away")
    assert away.code == 3
    assert "1 of 1 look-ups brought no answer" in away.err


def test_a_comparison_writes_nothing_and_may_be_narrowed(compare: Run, world: Any, cli: Run) -> None:
    world.run(world.allocate())
    with world.ledger.transaction() as connection:
        connection.execute("LOCK TABLE dagster_idempotent.submissions, dagster_idempotent.tasks IN EXCLUSIVE MODE")
        assert compare("provider", "--pipeline", "weekly_digest").code == 0
    assert compare("provider", "--pipeline", "nonsense").code == 1
    assert cli("verify", "--against-provider").code == 2
