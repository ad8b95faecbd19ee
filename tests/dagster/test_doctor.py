"""`doctor` over definitions as users write them, in modules on disk."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dagster_idempotent.cli import main

pytestmark = pytest.mark.filterwarnings("ignore:Class `AnthropicResource` is currently in preview")
WITHOUT_A_LEDGER = {"DAGSTER_IDEMPOTENT_POSTGRES_URL": None, "DAGSTER_HOME": None}

STOCK = """
import dagster as dg
from dagster_anthropic import AnthropicResource
from dagster_openai import OpenAIResource

@dg.op(retry_policy=dg.RetryPolicy(max_retries=2))
def summarise(context: dg.OpExecutionContext, openai: OpenAIResource) -> None: ...

@dg.asset
def report(anthropic: AnthropicResource) -> None: ...

@dg.job
def weekly(): summarise()

defs = dg.Definitions(jobs=[weekly], assets=[report], resources={
    "openai": OpenAIResource(api_key="k"), "anthropic": AnthropicResource(api_key="k")})
"""
RAW = """
import anthropic, dagster as dg, openai, stripe

@dg.op(required_resource_keys={"ai", "pay", "quiet"})
def charge(context): ...

@dg.job(op_retry_policy=dg.RetryPolicy(max_retries=3))
def billing(): charge()

@dg.definitions
def defs():
    return dg.Definitions(jobs=[billing], resources={
        "ai": openai.OpenAI(api_key="k"), "pay": dg.ResourceDefinition.hardcoded_resource(stripe),
        "quiet": anthropic.Anthropic(api_key="k", max_retries=0)})
"""
BY_HAND = """
import dagster as dg
from openai import OpenAI
import stripe as pay

@dg.asset
def summary():
    OpenAI()

@dg.op
def charge():
    pay.Charge.create(amount=1)
    pay.StripeClient("k", max_network_retries=0)

@dg.graph
def inner(): charge.with_retry_policy(dg.RetryPolicy(max_retries=4))()

@dg.job
def outer(): inner()
"""
WEEKS = """
import dagster as dg

sunday = dg.WeeklyPartitionsDefinition("2026-01-04")
monday = dg.WeeklyPartitionsDefinition("2026-01-05", day_offset=1)
both = dg.MultiPartitionsDefinition({"week": sunday, "who": dg.StaticPartitionsDefinition(["a"])})

@dg.asset(partitions_def=sunday)
def on_sunday(): ...

@dg.asset(partitions_def=monday)
def on_monday(): ...

@dg.asset(partitions_def=both)
def by_tenant(): ...

@dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-04"))
def daily(): ...

defs = dg.Definitions(assets=[on_sunday, on_monday, by_tenant, daily], resources={"io_manager": dg.mem_io_manager})
"""
GUARDED = """
import dagster as dg
from pydantic import BaseModel
from dagster_idempotent import (GuardedOpenAIResource, LedgerResource, AllocatorResource, Pipeline, idempotent_job,
    iso_week_partitions)

class Digest(BaseModel):
    title: str

def collect(context): return b"raw"

def transform(context, openai: GuardedOpenAIResource):
    with openai.get_client(context, call="summary") as client:
        return {"title": str(client)}

digest = idempotent_job(Pipeline("digest", output=Digest), collect=collect, transform=transform,
    partitions_def=iso_week_partitions("2026-01-05"), op_retry_policy=dg.RetryPolicy(max_retries=3))
ledger = LedgerResource(url=dg.EnvVar("NOBODY_SETS_THIS"))
defs = dg.Definitions(jobs=[digest], resources={
    "ledger": ledger, "allocator": AllocatorResource(ledger=ledger), "openai": GuardedOpenAIResource()})
"""
Doctor = Callable[..., tuple[int, dict[str, list[dict[str, str]]]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    """Run `doctor` in a folder with these modules; return its exit code and the rows of each check."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, home: Path | None = None, **modules: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        more = () if home is None else ("--dagster-home", os.fspath(home))
        command = ["doctor", "--folder", os.fspath(tmp_path / "none"), "--json", *words, *more]
        result = CliRunner().invoke(main, command, env=WITHOUT_A_LEDGER)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        rows: dict[str, list[dict[str, str]]] = {}
        for row in json.loads(result.stdout or "[]"):
            rows.setdefault(row["check"], []).append(row)
            assert row["health"] == "ok" or row["do"], row
        return result.exit_code, rows

    return run


def found(rows: dict[str, list[dict[str, str]]], check: str, health: str) -> list[str]:
    return [row["found"] for row in rows[check] if row["health"] == health]


def test_stock_resources_are_unguarded_and_send_again_and_a_retry_policy_multiplies_that(doctor: Doctor) -> None:
    code, rows = doctor("-m", "stock_project", stock_project=STOCK)
    assert code == 1
    assert len(found(rows, "paid resources", "warning")) == 2
    assert "resource 'openai' of stock_project is dagster_openai.OpenAIResource" in " ".join(
        found(rows, "paid resources", "warning")
    )
    assert {"GuardedOpenAIResource", "GuardedAnthropicResource"} <= {
        word for row in rows["paid resources"] for word in row["do"].split()
    }
    assert all("sends again up to 2 more times by itself" in each for each in found(rows, "sdk retries", "failed"))
    (retried,) = found(rows, "op retries", "failed")
    assert retried.startswith("op 'summarise' of stock_project pays by the unguarded resource 'openai'")


def test_raw_clients_as_resources_are_found_with_their_own_retries(doctor: Doctor) -> None:
    code, rows = doctor("-f", "raw_project.py", raw_project=RAW)
    assert code == 1
    unguarded = " ".join(found(rows, "paid resources", "warning"))
    for what in ("'ai' of raw_project.py is a openai.OpenAI", "'pay'", "the module stripe", "'quiet'"):
        assert what in unguarded
    sends_again = " ".join(found(rows, "sdk retries", "failed"))
    assert "'ai'" in sends_again
    assert "'pay'" in sends_again
    assert "'quiet'" not in sends_again
    assert "runs it up to 3 more times" in found(rows, "op retries", "failed")[0]


def test_clients_made_by_hand_are_found_by_file_and_line(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "workspace.yaml").write_text("load_from:\n  - python_file: {relative_path: hand_made.py}\n")
    code, rows = doctor("-w", "workspace.yaml", hand_made=BY_HAND)
    assert code == 1
    unguarded = found(rows, "paid resources", "warning")
    line = BY_HAND.splitlines().index("    OpenAI()") + 1
    assert any(f"hand_made.py:{line} calls openai.OpenAI()" in each for each in unguarded)
    assert len(unguarded) == 3
    assert len(found(rows, "sdk retries", "failed")) == 2
    assert ["op 'charge' of hand_made.py pays by stripe.Charge.create()" in each for each in found(
        rows, "op retries", "failed")] == [True]  # fmt: skip


def test_weeks_that_lie_in_two_iso_weeks_and_memory_between_ops_are_found(doctor: Doctor) -> None:
    code, rows = doctor("-m", "weeks_project:defs", weeks_project=WEEKS)
    assert code == 0
    straddling = found(rows, "weekly partitions", "warning")
    assert [each.split(" of ")[0] for each in straddling] == ["asset 'on_sunday'", "asset 'by_tenant'"]
    assert all("starts on Sunday" in each for each in straddling)
    assert "keeps what ops hand on in memory" in found(rows, "io manager", "warning")[0]


def test_guarded_definitions_are_well_with_retries_and_without_a_ledger_or_a_key(
    doctor: Doctor, tmp_path: Path
) -> None:
    (tmp_path / "dagster.yaml").write_text("run_monitoring:\n  enabled: true\n")
    code, rows = doctor("-m", "guarded_project", home=tmp_path, guarded_project=GUARDED)
    assert code == 0
    assert {row["health"] for each in rows.values() for row in each} == {"ok"}
    assert "run monitoring" in rows


@pytest.mark.parametrize("text", [None, "", "run_monitoring:\n  enabled: false\n", "telemetry: {enabled: false}\n"])
def test_run_monitoring_is_off_unless_dagster_yaml_turns_it_on(
    doctor: Doctor, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "dagster.yaml").write_text(text)
    _, rows = doctor("-m", "monitored:defs", home=tmp_path, monitored="import dagster as dg\ndefs = dg.Definitions()\n")
    (row,) = rows["run monitoring"]
    assert (row["health"], "run_monitoring: {enabled: true}" in row["do"]) == ("warning", True)


def test_the_example_of_this_repository_is_well(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    code, rows = doctor("-w", "workspace.yaml")
    assert code == 0
    assert {row["health"] for kind, each in rows.items() if kind != "run monitoring" for row in each} == {"ok"}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("-m", "no_such_module"), 2, "cannot be imported"),
        (("-m", "broken_module"), 1, "raised ZeroDivisionError"),
        (("-m", "two_defs"), 2, "has 2 Definitions"),
        (("-m", "two_defs:nothing"), 2, "has no attribute 'nothing'"),
        (("-m", "two_defs:number"), 2, "is a int, expected Definitions"),
        (("-f", "no_such_file.py"), 2, "is no Python file"),
        (("-w", "empty.yaml"), 2, "has no list `load_from`"),
    ],
)
def test_what_cannot_be_loaded_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    two = "import dagster as dg\na = dg.Definitions()\nb = dg.Definitions()\nnumber = 3\n"
    (tmp_path / "two_defs.py").write_text(two)
    (tmp_path / "empty.yaml").write_text("{}\n")
    monkeypatch.delitem(sys.modules, "two_defs", raising=False)
    result = CliRunner().invoke(
        main, ["doctor", "--folder", os.fspath(tmp_path / "none"), *words], env=WITHOUT_A_LEDGER
    )
    assert (result.exit_code, result.stdout) == (code, "")
    assert says in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_grpc_location_is_named_as_not_looked_into(doctor: Doctor, tmp_path: Path) -> None:
    text = "load_from:\n  - grpc_server: {host: h, port: 1}\n  - python_module: {module_name: served}\n"
    (tmp_path / "workspace.yaml").write_text(text)
    code, rows = doctor("-w", "workspace.yaml", served="import dagster as dg\ndefs = dg.Definitions()\n")
    assert code == 0
    assert "only python_module and python_file" in rows["code location"][0]["found"]


def test_none_of_the_paid_sdks_has_to_be_installed(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import dagster as dg\ndefs = dg.Definitions()\n")
    code = (
        "import sys\n"
        "for name in ('openai', 'anthropic', 'stripe', 'dagster_openai', 'dagster_anthropic', 'httpx'):\n"
        "    sys.modules[name] = None\n"
        "from dagster_idempotent.cli import main\n"
        "main(['doctor', '--folder', 'none', '-m', 'plain:defs', '--json'])\n"
    )
    left_out: dict[str, Any] = {name: value for name, value in os.environ.items() if name not in WITHOUT_A_LEDGER}
    here = os.fspath(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=left_out | {"PYTHONPATH": here},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {row["check"] for row in json.loads(done.stdout)} >= {"paid resources", "run monitoring"}
