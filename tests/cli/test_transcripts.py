"""What every command prints: exit code, stdout, stderr and the shape of its JSON, kept in the folder `transcripts`.

A command without a transcript fails here. `WRITE_TRANSCRIPTS=1 python -m pytest tests/cli/test_transcripts.py` writes
them anew; read the difference before you keep it.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import ALL

from dagster_idempotent import embedded
from dagster_idempotent.testing.metered_provider import MeteredProvider
from tests.cli.transcript_cases import CASES, NO_TEXT, SELECTS, Run, Stage

FOLDER = Path(__file__).with_name("transcripts")
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
