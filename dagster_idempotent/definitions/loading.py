"""A user's definitions as `dagster` itself would load them: by module, by file, by workspace.yaml."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import dagster as dg
import yaml

from dagster_idempotent.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """One code location: its name, its definitions, and the folder that its own modules lie in."""

    name: str
    definitions: dg.Definitions
    folder: Path


def from_module(name: str) -> Loaded:
    """Load `module` or `module:attribute`; the current folder is searched too."""
    return _loaded(name, *_imported(name, Path.cwd()))


def from_file(path: str) -> Loaded:
    """Load `file.py` or `file.py:attribute`."""
    file, _, attribute = path.partition(":") if not Path(path).is_file() else (path, "", "")
    return _loaded(path, _executed(Path(file)), attribute)


def from_workspace(path: Path) -> Iterator[Loaded | str]:
    """Load every code location of a workspace.yaml; a text says why one cannot be looked into."""
    try:
        text: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as a workspace: {error}. Expected a workspace.yaml; a Python file goes by -f.",
            field="workspace",
        ) from error
    entries = cast("dict[str, Any]", text).get("load_from") if isinstance(text, dict) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigurationError(
            f"{path} has no list `load_from`. Expected a workspace.yaml as Dagster loads it; a Python file goes by -f.",
            field="workspace",
        )
    for entry in cast("list[object]", entries):
        yield _entry(entry, path.parent)


def _entry(entry: object, folder: Path) -> Loaded | str:
    match entry:
        case {"python_module": str(name)}:
            return _loaded(name, *_imported(name, folder))
        case {"python_module": {"module_name": str(name), **more}}:  # pyright: ignore[reportUnknownVariableType] - any YAML
            options = cast("Mapping[str, Any]", more)
            attribute = options.get("attribute")
            module, _ = _imported(name, folder / str(options.get("working_directory", ".")))
            return _loaded(name, module, str(attribute or ""))
        case {"python_file": str(name)}:
            return _loaded(name, _executed(folder / name), "")
        case {"python_file": {"relative_path": str(name), **more}}:  # pyright: ignore[reportUnknownVariableType] - any YAML
            options = cast("Mapping[str, Any]", more)
            here = folder / str(options.get("working_directory", "."))
            return _loaded(name, _executed(folder / name, search=here), str(options.get("attribute") or ""))
        case _:
            return f"{entry}: only python_module and python_file can be looked into; run doctor where its code lies"


def _imported(name: str, folder: Path) -> tuple[ModuleType, str]:
    module, _, attribute = name.partition(":")
    _search(folder)
    try:
        return import_module(module), attribute
    except ImportError as error:
        raise ConfigurationError(f"Module {module!r} cannot be imported: {error}.", field="module") from error


def _executed(path: Path, *, search: Path | None = None) -> ModuleType:
    _search(search or Path.cwd())
    _search(path.parent)
    spec = spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is no Python file that can be loaded.", field="file")
    module = module_from_spec(spec)
    # What Dagster reads later, such as annotations, is looked up here.
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _search(folder: Path) -> None:
    here = str(folder.resolve())
    if here not in sys.path:
        sys.path.insert(0, here)


def _loaded(name: str, module: ModuleType, attribute: str) -> Loaded:
    file = Path(module.__file__ or ".").resolve()
    # Of a package, everything below its top.
    depth = module.__name__.count(".") + (file.name == "__init__.py")
    folder = file.parents[min(depth, len(file.parents) - 1)]
    folder = folder / module.__name__.partition(".")[0] if depth else folder
    return Loaded(name=name, definitions=_definitions(module, attribute), folder=folder)


def _definitions(module: ModuleType, attribute: str) -> dg.Definitions:
    if attribute:
        if not hasattr(module, attribute):
            raise ConfigurationError(f"Module {module.__name__!r} has no attribute {attribute!r}.", field="attribute")
        return _as_definitions(getattr(module, attribute), f"{module.__name__}:{attribute}")
    found: Sequence[object] = [
        each for each in vars(module).values() if isinstance(each, dg.Definitions) or _is_lazy(each)
    ]
    if len(found) > 1:
        raise ConfigurationError(
            f"Module {module.__name__!r} has {len(found)} Definitions. Name one: {module.__name__}:ATTRIBUTE.",
            field="attribute",
        )
    if found:
        return _as_definitions(found[0], module.__name__)
    with warnings.catch_warnings():
        # What it makes of a module is only looked at.
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.load_definitions_from_module(module)


def _as_definitions(found: object, name: str) -> dg.Definitions:
    made = cast("Callable[[], object]", found)() if callable(found) else found
    if not isinstance(made, dg.Definitions):
        raise ConfigurationError(
            f"{name} is a {type(made).__name__}, expected Definitions or a function that returns them.",
            field="attribute",
        )
    return made


def _is_lazy(value: object) -> bool:
    """Whether it is what `@dg.definitions` makes of a function."""
    return type(value).__module__.startswith("dagster.") and type(value).__name__ == "LazyDefinitions"
