"""The example loads where only the base dependencies of the package are installed (R40)."""

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOAD = """
import json, sys
from importlib.abc import MetaPathFinder

absent = set(json.load(sys.stdin))

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import dagster as dg
from example_repo.definitions import defs
dg.Definitions.validate_loadable(defs)
import dagster_idempotent.cli
print(sorted(job.name for job in defs.jobs))
"""


def _name(requirement: str) -> str:
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-").replace(".", "-")


def _installed_with_the_base() -> set[str]:
    """List the distributions that come with the base dependencies, and theirs, without any extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found: set[str] = {"dagster-idempotent"}
    queue = [*project["dependencies"], "psycopg-binary", "pip", "setuptools"]
    while queue:
        name = _name(queue.pop())
        if name in found:
            continue
        found.add(name)
        try:
            needed = requires(name) or []
        except PackageNotFoundError:
            continue
        queue += [each for each in needed if "extra ==" not in each]
    return found


def test_the_example_and_the_command_line_load_with_the_base_dependencies_only() -> None:
    base = _installed_with_the_base()
    absent = sorted(
        module
        for module, distributions in packages_distributions().items()
        if not base & {_name(each) for each in distributions}
    )
    assert {"httpx", "openai", "pytest", "starlette"} <= set(absent)
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD],
        input=json.dumps(absent),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=120,
    )
    assert loaded.returncode == 0, loaded.stderr
    assert "weekly_digest" in loaded.stdout
