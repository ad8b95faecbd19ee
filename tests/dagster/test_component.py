"""The YAML component, tested with Dagster's own component test tools."""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster.components.core.component_tree import ComponentTreeException
from dagster.components.core.package_entry import discover_package_objects
from dagster.components.testing import create_defs_folder_sandbox
from dagster.components.testing.utils import DefsFolderSandbox

from dagster_idempotent import AllocatorResource, GuardedChatCompletionsResource, IdempotentJobComponent, LedgerResource
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.metered_provider import MeteredProvider

TYPE = "dagster_idempotent.IdempotentJobComponent"
ROOT = Path(__file__).parents[2]
BASE: dict[str, Any] = {
    "pipeline": {"name": "weekly", "output": ".functions:Digest"},
    "collect": ".functions:collect",
    "transform": ".functions:transform",
}


@pytest.fixture
def sandbox() -> Iterator[DefsFolderSandbox]:
    with create_defs_folder_sandbox() as made:
        yield made


def scaffold(sandbox: DefsFolderSandbox, **attributes: Any) -> Path:
    made = sandbox.scaffold_component(component_cls=IdempotentJobComponent, defs_path="weekly")
    if attributes:
        (made / "defs.yaml").write_text(yaml.safe_dump({"type": TYPE, "attributes": {**BASE, **attributes}}))
    return made


def test_the_component_is_found_under_its_public_name_by_the_entry_point_that_dagster_reads() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = project["entry-points"]["dagster_dg_cli.registry_modules"].values()
    assert [key.to_typename() for key in discover_package_objects(list(modules))] == [TYPE]


def test_a_scaffolded_component_loads_as_it_is_and_pays_once(
    sandbox: DefsFolderSandbox, ledger_url: str, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "any-text")
    with sandbox.load_component_and_build_defs(scaffold(sandbox)) as (component, defs):
        assert isinstance(component, IdempotentJobComponent)
        ledger = LedgerResource(url=ledger_url)
        resources = {
            "ledger": ledger,
            "allocator": AllocatorResource(ledger=ledger),
            "model": GuardedChatCompletionsResource(base_url=metered_provider.base_url),
        }
        whole = dg.Definitions.merge(defs, dg.Definitions(resources=resources, executor=dg.in_process_executor))
        dg.Definitions.validate_loadable(whole)
        repository = whole.get_repository_def()
        assert {"weekly", "idempotency_resolve"} <= set(repository.job_names)
        assert repository.get_schedule_def("weekly_schedule").cron_schedule == "0 9 * * 1"
        with dg.instance_for_test() as instance:
            for _ in range(2):
                done = repository.get_job("weekly").execute_in_process(partition_key="2026-08-03", instance=instance)
                assert done.success
    assert metered_provider.charges == 1


def test_a_project_with_nothing_but_a_scaffolded_component_loads(sandbox: DefsFolderSandbox) -> None:
    scaffold(sandbox)
    with sandbox.build_all_defs() as defs:
        dg.Definitions.validate_loadable(defs)
        assert {"ledger", "allocator", "model"} <= set(defs.resources or {})


def test_the_resources_that_a_project_has_are_left_as_they_are(sandbox: DefsFolderSandbox) -> None:
    there = sandbox.defs_folder_path / "resources.py"
    there.write_text("# ours\n")
    scaffold(sandbox)
    assert there.read_text() == "# ours\n"


def test_every_setting_of_the_yaml_reaches_the_job(sandbox: DefsFolderSandbox) -> None:
    made = scaffold(
        sandbox,
        pipeline={**BASE["pipeline"], "approval": "publish", "budget_per_task": "2.00 USD"},
        weeks={"start_date": "2026-01-05", "subjects": ["acme", "globex"]},
        operators=False,
    )
    with sandbox.load_component_and_build_defs(made) as (_, defs):
        (job,) = defs.jobs or ()
        assert isinstance(job, dg.JobDefinition)
        assert isinstance(job.partitions_def, dg.MultiPartitionsDefinition)
        assert not defs.sensors
        assert not defs.schedules


def test_an_unpartitioned_component_runs_by_cron(sandbox: DefsFolderSandbox) -> None:
    made = scaffold(sandbox, schedule={"cron_schedule": "0 2 * * *", "running": True})
    with sandbox.load_component_and_build_defs(made) as (_, defs):
        (schedule,) = defs.schedules or ()
        assert isinstance(schedule, dg.ScheduleDefinition)
        assert schedule.default_status is dg.DefaultScheduleStatus.RUNNING


@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ({"collect": "functions.collect"}, "expected module:attribute"),
        ({"transform": ".functions:missing"}, "has no 'missing'"),
        ({"weeks": {"start_date": "2026-01-05"}, "partitions": ".functions:weeks"}, "Both weeks and partitions"),
    ],
)
def test_what_the_yaml_names_wrongly_is_said_by_its_field(
    attributes: dict[str, Any], says: str, sandbox: DefsFolderSandbox
) -> None:
    made = scaffold(sandbox, **attributes)
    with pytest.raises(ComponentTreeException) as refused, sandbox.load_component_and_build_defs(made):
        pass
    assert isinstance(refused.value.__cause__, ConfigurationError)
    assert says in str(refused.value.__cause__)
