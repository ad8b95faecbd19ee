"""What the tests of pages share: the Python of a page, loaded as one module."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def load_page(tmp_path: Path) -> Callable[..., ModuleType]:
    """Give a function that loads all Python of a page, with the text `found` replaced by `wanted`."""

    def load(page: str, found: str = "", wanted: str = "") -> ModuleType:
        code = "\n".join(re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL))
        assert found in code
        place = tmp_path / f"{Path(page).stem.replace('-', '_')}_page.py"
        place.write_text(code.replace(found, wanted) if found else code)
        spec = importlib.util.spec_from_file_location(place.stem, place)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
