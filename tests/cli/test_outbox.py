from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
WHO = ("--actor", "ada", "--reason", "ticket 812", "--evidence", "the sent folder")
FOUND = ("delivered", "not_delivered", "given_up")
CHANNELS = """
from pathlib import Path
from dagster_idempotent import FileChannel
from dagster_idempotent.errors import DeliveryNotSent

class Lost:
    deduplicates = False
    def deliver(self, message, *, window):
        raise OSError("the answer was lost")

folder = {"email": FileChannel(Path(__file__).parent / "out")}
lost = {"email": Lost()}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    name = f"channels_{request.node.name.replace('[', '_').replace(']', '')}"
    (tmp_path / f"{name}.py").write_text(CHANNELS)
    monkeypatch.chdir(tmp_path)
    return name


def test_a_message_is_listed_and_delivered_once(cli: Run, world: Any, module: str, tmp_path: Path) -> None:
    assert cli("outbox", "list").err == "No message fits.\n"
    task_id = world.allocate()
    world.run(task_id, channels={"email": True})
    assert cli("outbox", "list").out.splitlines()[1].split()[2:4] == ["email", "ready"]
    dry = cli("outbox", "deliver", task_id, "-m", f"{module}:folder", "--dry-run", "--json")
    assert (dry.json()[0]["state"], dry.json()[0]["delivered_now"]) == ("ready", False)
    first = cli("outbox", "deliver", task_id, "-m", f"{module}:folder", "--json")
    assert (first.code, first.json()[0]["delivered_now"]) == (0, True)
    second = cli("outbox", "deliver", task_id, "-m", f"{module}:folder", "--json")
    assert (second.json()[0]["state"], second.json()[0]["delivered_now"]) == ("delivered", False)
    assert len(list((tmp_path / "out").rglob("*.json"))) == 1
    assert cli("outbox", "list", "--json").json() == []
    assert len(cli("outbox", "list", "--all", "--json").json()) == 1


@pytest.mark.parametrize(("found", "state"), [*zip(FOUND, ("delivered", "ready", "dead"), strict=True)])
def test_a_message_in_doubt_goes_where_the_operator_says(
    cli: Run, world: Any, module: str, found: str, state: str
) -> None:
    task_id = world.allocate()
    world.run(task_id, channels={"email": False})
    failed = cli("outbox", "deliver", task_id, "-m", f"{module}:lost")
    assert (failed.code, "raised OSError: the answer was lost" in failed.err) == (1, True)
    stuck = cli("outbox", "deliver", task_id, "-m", f"{module}:lost", "--json")
    assert (stuck.code, stuck.json()[0]["state"]) == (3, "in_doubt")
    assert cli("explain", task_id).code == 3
    words = ("outbox", "resolve", task_id, "email", "--as", found, *WHO)
    assert cli(*words, "--dry-run").code == 0
    assert cli("outbox", "list", "--json").json()[0]["state"] == "in_doubt"
    done = cli(*words, "--json").json()
    assert (done["before"]["state"], done["after"]["state"]) == ("in_doubt", state)
    again = cli("outbox", "resolve", task_id, "email", "--as", "delivered", *WHO)
    assert (again.code, "nothing to resolve" in again.err) == (1, True)
    assert cli("verify").code == 0


def test_an_unknown_channel_names_those_there_are(cli: Run, world: Any, module: str) -> None:
    task_id = world.allocate()
    world.run(task_id, channels={"email": False})
    done = cli("outbox", "resolve", task_id, "fax", "--as", "delivered", *WHO)
    assert (done.code, "it has email" in done.err) == (1, True)
    assert cli("outbox", "deliver", task_id, "-m", f"{module}:Path").code == 2
