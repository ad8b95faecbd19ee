import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from commands import ALL

from dagster_idempotent.cli import main
from dagster_idempotent.cli.reference import page

Run = Callable[..., Any]
DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = DOCS / "reference" / "cli.md"
CHANGES = {
    "tasks release",
    "pipelines freeze",
    "pipelines unfreeze",
    "dead-letters redrive",
    "dead-letters discard",
    "approvals approve",
    "approvals revoke",
    "budgets set",
    "budgets release",
    "calls resolve",
    "calls abandon",
    "calls acknowledge",
    "calls cancel",
    "calls resend",
    "outbox resolve",
    "prune",
    "legacy import",
    "legacy map",
}
CHANGES_WITHOUT_A_DECISION = {"schema upgrade", "postgres start", "postgres stop", "calls reconcile", "outbox deliver"}


@pytest.mark.parametrize("path", ALL)
def test_the_help_of_every_command_teaches_with_an_example_of_its_own(path: str) -> None:
    result = CliRunner().invoke(main, [*path.split(), "--help"], prog_name="dagster-idempotent", terminal_width=120)
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.strip() in ("Example:", "Examples:"))
    assert f"dagster-idempotent {path}" in lines[start + 1]


@pytest.mark.parametrize("path", ALL)
def test_every_option_has_an_environment_twin_and_a_help_text(path: str) -> None:
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name
            assert parameter.allow_from_autoenv or parameter.envvar


@pytest.mark.parametrize("path", sorted(CHANGES | CHANGES_WITHOUT_A_DECISION))
def test_every_change_has_a_dry_run(path: str) -> None:
    assert "dry_run" in {parameter.name for parameter in ALL[path].params}


@pytest.mark.parametrize("path", sorted(CHANGES))
def test_every_decision_asks_who_and_why(path: str) -> None:
    required = {parameter.name for parameter in ALL[path].params if parameter.required}
    assert {"actor", "reason"} <= required


def test_reading_commands_have_json_and_no_actor() -> None:
    reading = set(ALL) - CHANGES - CHANGES_WITHOUT_A_DECISION - {"schema sql"}
    for path in reading:
        names = {parameter.name for parameter in ALL[path].params}
        assert "as_json" in names
        assert "actor" not in names


def test_the_reference_page_is_made_from_the_help_texts() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == page()


def test_a_command_starts_without_loading_dagster_alembic_or_an_http_client() -> None:
    code = (
        "import sys\n"
        "from dagster_idempotent.cli import main\n"
        "from importlib import import_module\n"
        "for noun in ('tasks', 'calls', 'explain', 'dead_letters', 'verify', 'audit', 'doctor'):\n"
        "    import_module('dagster_idempotent.cli.' + noun)\n"
        "heavy = {'dagster', 'alembic', 'sqlalchemy', 'httpx', 'rich'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_environment_variable_stands_for_an_option(cli: Run) -> None:
    done = cli("tasks", "list", env={"DAGSTER_IDEMPOTENT_JSON": "1"})
    assert done.json() == []
    done = cli("tasks", "list", env={"DAGSTER_IDEMPOTENT_TASKS_LIST_STATUS": "nonsense"})
    assert (done.code, done.out) == (2, "")


@pytest.mark.parametrize(
    "words",
    [
        "nonsense",
        "tasks",
        "tasks nonsense",
        "tasks list --status nonsense",
        "tasks list --limit 0",
        "tasks show",
        "dead-letters redrive 2026-W32-0",
        "dead-letters redrive 2026-W32-0 --actor ada",
        "pipelines freeze weekly_digest --actor ada --reason",
        "calls list --min-cost much",
        "calls resolve 2026-W32-0 summary --as nonsense --actor a --reason b --evidence c",
        "calls resend 2026-W32-0 summary --actor a --reason b",
        "calls reconcile 2026-W32-0 -m nonsense",
        "budgets set p nonsense --actor a --reason b",
        "budgets set p none --actor a --reason b",
        "budgets set p 1.00USD --actor a --reason b",
        "budgets set p -1.00USD --actor a --reason b",
        "prune --actor a --reason b",
        "prune --older-than soon --actor a --reason b",
        "costs --csv --json",
        "explain",
    ],
)
def test_wrong_usage_says_so_and_exits_with_2(cli: Run, words: str) -> None:
    done = cli(*words.split())
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert "Error:" in done.err or "Usage:" in done.err


@pytest.mark.parametrize("option", ["--actor", "--reason"])
def test_nobody_decides_without_a_name_or_a_reason(cli: Run, option: str) -> None:
    words = {"--actor": "ada", "--reason": "because"} | {option: "  "}
    done = cli("pipelines", "freeze", "p", *(word for pair in words.items() for word in pair))
    assert (done.code, "audit trail" in done.err) == (2, True)


@pytest.mark.parametrize(
    "words",
    [
        "tasks show 2031-W01-0",
        "explain 2031-W01-0",
        "dead-letters show 2031-W01-0",
        "dead-letters redrive 2031-W01-0 --actor a --reason b",
        "calls show 2031-W01-0 summary",
        "calls abandon 2031-W01-0 summary --actor a --reason b",
        "pipelines freeze nonsense --actor a --reason b",
        "approvals revoke 4711 --actor a --reason b",
        "budgets set nonsense 1.00\u00a0USD --actor a --reason b",
        "outbox resolve 2031-W01-0 email --as delivered --evidence c --actor a --reason b",
        "tasks list --pipeline nonsense",
        "prune --older-than 1d --pipeline nonsense --actor a --reason b",
    ],
)
def test_an_unknown_name_exits_with_1_and_one_line(cli: Run, words: str) -> None:
    done = cli(*(word.replace("\u00a0", " ") for word in words.split(" ")))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("Error: ")
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_printed_for_every_shell_as_the_help_says(shell: str) -> None:
    code = "from dagster_idempotent.cli import main; main(prog_name='dagster-idempotent')"
    asked = os.environ | {"_DAGSTER_IDEMPOTENT_COMPLETE": f"{shell}_source"}
    script = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
    assert "dagster-idempotent" in script.stdout
    typed = {"COMP_WORDS": "dagster-idempotent dead-letters re", "COMP_CWORD": "re" if shell == "fish" else "2"}
    asked |= typed | {"_DAGSTER_IDEMPOTENT_COMPLETE": f"{shell}_complete"}
    completed = subprocess.run([sys.executable, "-c", code], env=asked, capture_output=True, text=True, check=True)
    assert "redrive" in completed.stdout
    help_text = CliRunner().invoke(main, ["--help"], prog_name="dagster-idempotent").stdout
    assert f"{shell}_source" in help_text


@pytest.mark.parametrize("page_", sorted(DOCS.rglob("*.md")), ids=lambda path: path.stem)
def test_every_command_that_a_page_names_exists(page_: Path) -> None:
    nouns = {path.split()[0] for path in ALL}
    for noun, verb in re.findall(r"dagster-idempotent ([a-z][a-z-]+)(?: ([a-z][a-z-]+))?", page_.read_text("utf-8")):
        assert noun in nouns, f"{noun} in {page_.name}"
        if verb and noun not in ALL:
            assert f"{noun} {verb}" in ALL, f"{noun} {verb} in {page_.name}"
