"""The component, through the `dg` command, in a project as a person begins one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

TYPE = "dagster_idempotent.IdempotentJobComponent"
DG = Path(sys.executable).with_name("dg")
PROJECT = """
[project]
name = "shop"
version = "0.1.0"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "shop"
"""
DEFINITIONS = """
from pathlib import Path

import dagster as dg


@dg.definitions
def defs() -> dg.Definitions:
    return dg.load_from_defs_folder(path_within_project=Path(__file__).parent)
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "shop"
    defs = made / "src/shop/defs"
    defs.mkdir(parents=True)
    (made / "pyproject.toml").write_text(PROJECT)
    (made / "src/shop/__init__.py").touch()
    (made / "src/shop/definitions.py").write_text(DEFINITIONS)
    (defs / "__init__.py").touch()
    return made


def dg(project: Path, *words: str) -> str:
    home = project.parent / "home"
    home.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "DAGSTER_HOME": str(home),
        "DG_CLI_CONFIG": str(home / "dg.toml"),
        "HOME": str(home),
        "PYTHONPATH": os.pathsep.join([str(project / "src"), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run([DG, *words], cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_dg_lists_the_component_under_its_public_name(project: Path) -> None:
    ours = {"key": TYPE, "summary": "An idempotent job, its schedule, and everything that operators need."}
    assert json.dumps(ours) in dg(project, "list", "components", "--json")


def test_what_dg_scaffolds_passes_its_own_checks_as_it_is(project: Path) -> None:
    dg(project, "scaffold", "defs", TYPE, "weekly")
    made = project / "src/shop/defs/weekly"
    assert {file.name for file in made.iterdir()} == {"defs.yaml", "functions.py"}
    assert yaml.safe_load((made / "defs.yaml").read_text())["type"] == TYPE
    # Checks the YAML against the component's schema first, then loads every definition; neither needs a credential.
    assert "YAML validated successfully" in dg(project, "check", "defs")
