"""Code locations of one test alone: Dagster, and Python, keep what they have loaded of a file."""

import importlib.util
import itertools
import shutil
import sys
from pathlib import Path
from typing import Any

from real_dagster import CODE

_numbers = itertools.count()


def copied_location(folder: Path, *, code: Path = CODE) -> Path:
    """Copy a code location."""
    return shutil.copy(code, folder / f"location_{next(_numbers)}.py")


def loaded_anew(folder: Path) -> Any:
    """Load a copy of the code location as a module of its own."""
    copied = copied_location(folder)
    spec = importlib.util.spec_from_file_location(copied.stem, copied)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[copied.stem] = module  # where what it pickles is looked for
    spec.loader.exec_module(module)
    return module
