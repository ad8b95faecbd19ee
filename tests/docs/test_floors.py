"""The floors that pyproject.toml promises are the versions that `make oldest` installs."""

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins(name: str) -> dict[str, Version]:
    lines = (ROOT / ".ci" / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(package): Version(version) for package, version in pairs}


def promised() -> Iterator[Requirement]:
    extras = PROJECT["optional-dependencies"]
    # What only developers install need not be old.
    groups = [PROJECT["dependencies"], *(extras[name] for name in extras if name != "dev")]
    yield from (Requirement(line) for group in groups for line in group)


@pytest.mark.parametrize("requirement", list(promised()), ids=str)
def test_a_floor_is_the_version_that_the_oldest_run_installs(requirement: Requirement) -> None:
    (floor,) = requirement.specifier
    assert floor.operator == ">="
    assert pins("constraints-oldest.txt")[canonicalize_name(requirement.name)] == Version(floor.version)


def test_both_runs_pin_what_the_project_names() -> None:
    named = {canonicalize_name(requirement.name) for requirement in promised()}
    assert named <= set(pins("constraints.txt"))
    assert named <= set(pins("constraints-oldest.txt"))
