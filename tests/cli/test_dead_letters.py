from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "the prompt is mended")


def test_a_dead_letter_is_listed_shown_redriven_and_completed(cli: Run, world: Any) -> None:
    world.max_attempts = 2
    assert cli("dead-letters", "list").err == "There are no dead letters.\n"
    task_id = world.dead()
    table = cli("dead-letters", "list")
    assert "weekly_digest" in table.out.splitlines()[1]
    shown = cli("dead-letters", "show", task_id, "--json").json()
    assert (shown["attempts"], shown["paid"], shown["submissions"]) == (2, [], 2)
    assert "422" in shown["error"]
    assert shown["last_owner"] in table.out
    assert cli("explain", shown["last_owner"]).code == cli("explain", task_id).code
    (artifact,) = shown["artifacts"]
    assert (artifact["name"], len(artifact["sha256"])) == ("raw", 64)
    assert cli("dead-letters", "redrive", task_id, "--dry-run", *WHO).err == "Dry run: nothing was changed.\n"
    assert world.status(task_id) == "dead"
    done = cli("dead-letters", "redrive", task_id, "--json", *WHO).json()
    assert (done["before"]["attempts"], done["after"]["attempts"], done["after"]["status"]) == (2, 0, "pending")
    assert done["after"]["fencing_token"] == done["before"]["fencing_token"] + 1
    assert world.run(task_id) == "completed"
    assert world.metered.charges == 1
    closed = cli("dead-letters", "show", task_id)
    assert (closed.code, "is completed" in closed.err) == (1, True)


def test_a_discarded_task_never_runs_again(cli: Run, world: Any) -> None:
    world.max_attempts = 1
    task_id = world.dead()
    assert cli("dead-letters", "discard", task_id, *WHO).code == 0
    assert world.run(task_id) == "discarded"
    for verb in ("redrive", "discard"):
        done = cli("dead-letters", verb, task_id, *WHO)
        assert (done.code, "the task is discarded" in done.err) == (1, True)
    assert cli("verify").code == 0


def test_a_task_in_doubt_is_not_discarded_since_that_would_hide_a_charge(cli: Run, world: Any) -> None:
    task_id = world.settled_down(world.doubtful())
    done = cli("dead-letters", "discard", task_id, *WHO)
    assert (done.code, "the outcome of ['summary'] is not known" in done.err) == (1, True)
    assert cli("calls", "abandon", task_id, "summary", *WHO).code == 0
    # Abandoning released it to pending: it has to be held or dead before it is given up.
    refused = cli("dead-letters", "discard", task_id, *WHO)
    assert (refused.code, "only a dead or held one" in refused.err) == (1, True)


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_only_what_is_dead_is_a_dead_letter(cli: Run, world: Any, verb: str) -> None:
    task_id = world.allocate()
    done = cli("dead-letters", verb, task_id, *WHO)
    assert (done.code, done.out) == (1, "")
    assert "the task is pending" in done.err
    assert done.err.endswith("Nothing was written.\n")
