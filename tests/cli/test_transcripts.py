"""What every command prints: exit code, stdout, stderr and the shape of its JSON, kept in the folder `transcripts`.

A command without a transcript fails here. `WRITE_TRANSCRIPTS=1 python -m pytest tests/cli/test_transcripts.py` writes
them anew; read the difference before you keep it.
"""

import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from commands import ALL

from dagster_idempotent import embedded
from dagster_idempotent.domain.money import Budget
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.domain.task import Owner
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import claim
from dagster_idempotent.errors import RemoteJobUnfinished
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.remote_job import JsonJobApi
from dagster_idempotent.testing.metered_provider import MeteredProvider

Run = Callable[..., Any]
FOLDER = Path(__file__).with_name("transcripts")
WHO = ("--actor", "ada", "--reason", "ticket 812")
TASK = "2026-W32-0"
# What is another in every run, and how it is written here.
VARIES = (
    (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?", "TIME"),
    (r"\bdi-[0-9a-f]{45}\b", "KEY"),
    (r"\b[0-9a-f]{64}\b", "HASH"),
    (r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "UUID"),
    (r"\b(req|chatcmpl|resp|job)[_-][0-9A-Za-z-]+", "REFERENCE"),
    (r"http://127\.0\.0\.1:\d+", "http://PROVIDER"),
    (r"postgresql://[^ \"]+", "POSTGRES"),
    (r" {2,}", "  "),
)
KEY = "METERED_PROVIDER_KEY"
JOBS = JobApi(result_path="/jobs/{id}/result", poll_budget=timedelta(0))
PROVIDERS = """
from datetime import timedelta
from dagster_idempotent import JobApi, JsonJobApi
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
provider = ChatCompletionsProvider(base_url={url!r}, look_up_path="/lookup", settle_delay=timedelta(0),
    api_key_variable="METERED_PROVIDER_KEY")
studio = JsonJobApi(JobApi(result_path="/jobs/{{id}}/result", cancel_path="/jobs/{{id}}/cancel"), name="studio",
    base_url={url!r}, api_key_variable="METERED_PROVIDER_KEY")
"""
CHANNELS = """
from pathlib import Path
from dagster_idempotent import FileChannel
channels = {"email": FileChannel(Path(__file__).parent / "out")}
"""


# Each makes what its command speaks of, and returns the words that follow the command.


def nothing(_: "Stage") -> list[str]:
    return []


def done(stage: "Stage") -> list[str]:
    stage.world.run(stage.world.allocate(), channels={"email": True})
    return []


def done_task(stage: "Stage") -> list[str]:
    done(stage)
    return [TASK]


def in_doubt(stage: "Stage") -> list[str]:
    return [stage.world.settled_down(stage.world.doubtful())]


def call_in_doubt(stage: "Stage") -> list[str]:
    return [*in_doubt(stage), "summary"]


def dead(stage: "Stage") -> list[str]:
    stage.world.max_attempts = 1
    return [stage.world.dead()]


def failed(stage: "Stage") -> list[str]:
    task_id = stage.world.allocate()
    stage.world.metered.fault("status", status=422)
    stage.world.run(task_id)
    return [task_id]


def at_the_gate(stage: "Stage") -> list[str]:
    stage.world.gate = "spend"
    stage.world.run(stage.world.allocate())
    (row,) = stage.cli("approvals", "list", "--json").json()
    return [TASK, "--shown", row["shown_sha256"]]


def approved(stage: "Stage") -> list[str]:
    assert stage.cli("approvals", "approve", *at_the_gate(stage), *WHO).code == 0
    return [str(row["id"]) for row in stage.cli("approvals", "list", "--json").json()]


def over_budget(stage: "Stage") -> list[str]:
    stage.world.budget = Budget.per_task("0.01 USD")
    stage.world.run(stage.world.allocate())
    return [TASK]


def frozen(stage: "Stage") -> list[str]:
    stage.world.allocate()
    assert stage.cli("pipelines", "freeze", "weekly_digest", *WHO).code == 0
    return ["weekly_digest"]


def a_pipeline(stage: "Stage") -> list[str]:
    stage.world.allocate()
    return ["weekly_digest"]


def message_in_doubt(stage: "Stage") -> list[str]:
    done(stage)
    stage.world.query(
        "UPDATE dagster_idempotent.outbox SET state = 'sending', sender = gen_random_uuid(), "
        "sender_expires_at = clock_timestamp() RETURNING 1 AS x"
    )
    return [TASK, "email", "--as", "delivered", "--evidence", "the sent folder"]


def decided(stage: "Stage") -> list[str]:
    assert stage.cli("pipelines", "freeze", *a_pipeline(stage), *WHO).code == 0
    return []


def record(stage: "Stage") -> list[str]:
    directory = stage.folder / "records" / "2020-W02"
    directory.mkdir(parents=True)
    state = {"week": "2020-W02", "status": "completed", "completed_at": "2020-01-08T00:00:00Z", "unrelated": False}
    (directory / "state.json").write_text(json.dumps(state | {"key": "a"}))
    return [str(stage.folder / "records"), "--pipeline", "weekly_digest", "--timezone", "UTC"]


def imported(stage: "Stage") -> list[str]:
    words = record(stage)
    assert stage.cli("legacy", "import", *words, *WHO).code == 0
    return words[:3]


def unmapped(stage: "Stage") -> list[str]:
    words = record(stage)
    (stage.folder / "records" / "2020-W02" / "state.json").write_text(
        json.dumps({"week": "2020-W02", "status": "completed", "completed_at": "2020-01-08T00:00:00Z"})
    )
    assert stage.cli("legacy", "import", *words, "--without-identity", "import", *WHO).code == 0
    return ["2020-W02-0", "--key", "a", "--pipeline", "weekly_digest"]


def reconcilable(stage: "Stage") -> list[str]:
    found = in_doubt(stage)
    stage.world.metered.configure(lookup=True)
    return [*found, "-m", "my_providers:provider"]


def charged_twice(stage: "Stage") -> list[str]:
    done(stage)
    stage.world.query(
        "INSERT INTO dagster_idempotent.sightings "
        "(pipeline, task_id, call_key, submission, kind, remote_ref, described) VALUES "
        "('weekly_digest', %s, 'summary', 1, 'charged_again', 'req-2', 'beside req-1') RETURNING 1 AS x",
        TASK,
    )
    return [TASK, "summary"]


def accepted_job(stage: "Stage") -> list[str]:
    task_id = stage.world.allocate()
    provider = JsonJobApi(JOBS, name="studio", base_url=stage.world.metered.base_url, api_key_variable=KEY)
    work = claim(
        stage.world.ledger,
        Heartbeat(stage.world.ledger),
        stage.world.pipeline,
        task_id,
        Owner("run"),
        is_finished=lambda _: True,
    )
    with work.renewed(), pytest.raises(RemoteJobUnfinished):
        Guard(work, provider).call(CallKey("film"), {"prompt": "a forest"})
    return [task_id, "film", "-m", "my_providers:studio"]


CASES: dict[str, tuple[Callable[["Stage"], list[str]], list[str]]] = {
    "approvals approve": (at_the_gate, [*WHO]),
    "approvals list": (at_the_gate, []),
    "approvals revoke": (approved, [*WHO]),
    "audit": (decided, []),
    "budgets release": (over_budget, [*WHO]),
    "budgets set": (a_pipeline, ["5.00 USD", *WHO]),
    "budgets show": (over_budget, ["--all"]),
    "calls abandon": (call_in_doubt, [*WHO]),
    "calls acknowledge": (charged_twice, [*WHO]),
    "calls cancel": (accepted_job, [*WHO]),
    "calls list": (in_doubt, []),
    "calls reconcile": (reconcilable, []),
    "calls resend": (call_in_doubt, ["--may-charge-twice", *WHO]),
    "calls resolve": (call_in_doubt, ["--as", "not_sent", "--evidence", "no. 7", *WHO]),
    "calls show": (call_in_doubt, []),
    "costs": (done, []),
    "dead-letters discard": (dead, [*WHO]),
    "dead-letters list": (dead, []),
    "dead-letters redrive": (dead, [*WHO]),
    "dead-letters show": (dead, []),
    "doctor": (nothing, []),
    "explain": (in_doubt, []),
    "legacy check": (imported, []),
    "legacy import": (record, [*WHO]),
    "legacy map": (unmapped, [*WHO]),
    "outbox deliver": (done_task, ["-m", "my_channels:channels"]),
    "outbox list": (done, []),
    "outbox resolve": (message_in_doubt, [*WHO]),
    "pipelines freeze": (a_pipeline, [*WHO]),
    "pipelines list": (frozen, []),
    "pipelines unfreeze": (frozen, [*WHO]),
    "postgres start": (nothing, []),
    "postgres status": (nothing, []),
    "postgres stop": (nothing, ["--dry-run"]),
    "prune": (done, ["--older-than", "0s", *WHO]),
    "schema check": (nothing, []),
    "schema sql": (nothing, []),
    "schema upgrade": (nothing, []),
    "tasks list": (failed, []),
    "tasks release": (failed, [*WHO]),
    "tasks show": (done_task, []),
    "verify": (done, []),
}
# Arguments that do not only select: what they print is the server's, or too long to keep.
NO_TEXT = {"doctor", "schema sql", "postgres start", "postgres status"}
SELECTS = {
    "approvals list",
    "outbox list",
    "calls list",
    "tasks list",
    "dead-letters list",
    "pipelines list",
    "budgets show",
}


class Stage:
    """What a transcript needs around it."""

    def __init__(self, cli: Run, world: Any, folder: Path) -> None:
        self.cli, self.world, self.folder = cli, world, folder


@pytest.fixture(scope="module")
def metered_provider(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    """Start one provider for the module."""
    with MeteredProvider.start(tmp_path_factory.mktemp("metered")) as provider:
        yield provider


@pytest.fixture(scope="module")
def server_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start an embedded server of this module's own."""
    folder = tmp_path_factory.mktemp("embedded")
    embedded.start(folder, durable=False)
    yield folder
    embedded.remove(folder)


@pytest.fixture
def stage(cli: Run, world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sql: Any) -> Iterator[Stage]:
    # Copies of one template would share a ledger id, and with it the keys at the provider of this module.
    sql.execute("SET session_replication_role = replica")
    sql.execute("UPDATE dagster_idempotent.ledger SET ledger_id = gen_random_uuid()")
    (tmp_path / "my_providers.py").write_text(PROVIDERS.format(url=world.metered.base_url))
    (tmp_path / "my_channels.py").write_text(CHANNELS)
    monkeypatch.chdir(tmp_path)
    for module in ("my_providers", "my_channels"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    yield Stage(cli, world, tmp_path)
    world.metered.clear_faults()
    world.metered.configure(lookup=False)


def test_every_command_has_a_transcript_and_every_transcript_a_command() -> None:
    assert set(CASES) == set(ALL)
    assert {path.stem.replace("_", " ") for path in FOLDER.glob("*.txt")} == set(ALL)


@pytest.mark.parametrize("command", CASES)
def test_a_command_prints_what_its_transcript_says(command: str, stage: Stage, request: pytest.FixtureRequest) -> None:
    make, more = CASES[command]
    made = make(stage)
    words = [*command.split(), *([] if command in SELECTS else made), *more]
    if command.startswith("postgres"):
        words += ["--folder", str(request.getfixturevalue("server_folder"))]
    lines = [f"$ dagster-idempotent {' '.join(words)}"]
    names = {parameter.name for parameter in ALL[command].params}
    if "as_json" in names:
        dry = ["--dry-run"] if "dry_run" in names and "--dry-run" not in words else []
        as_json = stage.cli(*words, "--json", *dry)
        lines += [f"json, exit {as_json.code}", json.dumps(shape(as_json.json()), indent=1)]
    result = stage.cli(*words)
    lines += [f"exit {result.code}"]
    if command not in NO_TEXT:
        lines += ["stdout", result.out, "stderr", result.err]
    text = normal("\n".join(lines), stage, words)
    path = FOLDER / f"{command.replace(' ', '_')}.txt"
    if os.environ.get("WRITE_TRANSCRIPTS"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def shape(value: object) -> object:
    """Keep the names and the kinds of values of a document; of a list, its first element's."""
    match value:
        case dict():
            return {name: shape(part) for name, part in value.items()}
        case list():
            return [shape(part) for part in value[:1]]
        case None:
            return None
        case _:
            return type(value).__name__


def normal(text: str, stage: Stage, words: list[str]) -> str:
    """Write what varies from run to run by its name."""
    folders = [word for word in words if word.startswith("/")]
    for folder in (str(stage.folder), *sorted(folders, key=len, reverse=True)):
        text = text.replace(folder, "FOLDER")
    for pattern, name in VARIES:
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"
