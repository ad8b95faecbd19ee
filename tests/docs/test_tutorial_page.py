"""The tutorial, run as it stands: its project loads, and each of its weeks is paid once."""

import importlib.util
import re
import tomllib
from pathlib import Path
from urllib.request import urlopen

import dagster as dg
import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider

PAGE = (Path(__file__).parents[2] / "docs/tutorial.md").read_text()
ADDRESS = "http://127.0.0.1:8077/v1"
# What Dagster says about itself, not about us.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars` is deprecated"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated"),
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources` is deprecated"),
    pytest.mark.filterwarnings("ignore:Parameter `owners` of initializer `SensorDefinition"),
]


def block(language: str) -> str:
    (code,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return code


def test_the_weeks_of_the_tutorial_are_paid_once_however_often_they_are_launched(
    tmp_path: Path, ledger_url: str, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_IDEMPOTENT_POSTGRES_URL", ledger_url)
    monkeypatch.setenv("MODEL_KEY", "any-text")
    name = tomllib.loads(block("toml"))["tool"]["dagster"]["module_name"]
    place = tmp_path / f"{name}.py"
    code = block("python")
    assert ADDRESS in code
    place.write_text(code.replace(ADDRESS, metered_provider.base_url))
    spec = importlib.util.spec_from_file_location("tutorial_page", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    job = module.defs.resolve_job_def("weekly_digest")
    (weeks,) = re.findall(r"--noprompt --partitions '([^']+)'", PAGE)
    with dg.instance_for_test() as instance:
        for week in [*weeks.split(","), weeks.split(",")[0]]:
            assert job.execute_in_process(instance=instance, partition_key=week).success
    assert metered_provider.charges == len(weeks.split(","))
    made = {path.name.removesuffix(".file.json") for path in (tmp_path / "digests").rglob("*.json")}
    assert set(re.findall(r"dagster-idempotent explain (\S+)", PAGE)) <= made
    assert "2026-W02-0" in made


def test_the_provider_takes_every_order_that_the_tutorial_gives_it(metered_provider: MeteredProvider) -> None:
    orders = re.findall(r"curl http://127\.0\.0\.1:8077/(\w+) -d '([^']+)'", PAGE)
    assert {path for path, _ in orders} == {"faults", "settings"}
    for path, body in orders:
        with urlopen(f"{metered_provider.control_url}/{path}", data=body.encode()) as taken:  # noqa: S310 - loopback
            assert taken.status == 200
