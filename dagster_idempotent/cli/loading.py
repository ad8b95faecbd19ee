"""Objects of the user's own code that a command needs: `module:attribute`."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TypeGuard, cast

import click

from dagster_idempotent.cli.failures import UsersCode
from dagster_idempotent.engine.relay import Channel
from dagster_idempotent.providers.protocol import AnyProvider


def load(path: str) -> object:
    """Import `module:attribute`; the current folder is searched too, as `python -m` does."""
    module, colon, attribute = path.partition(":")
    if not colon or not module or not attribute:
        raise click.BadParameter(f"{path!r} is not module:attribute, such as my_project.definitions:defs.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with UsersCode(f"Module {module!r}"):
        try:
            found: object = import_module(module)
        except ImportError as error:
            raise click.BadParameter(f"module {module!r} cannot be imported: {error}.") from error
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise click.BadParameter(f"module {module!r} has no attribute {attribute!r}.")
        found = getattr(found, name)
    return found


def load_providers(path: str) -> Sequence[AnyProvider]:
    """Load a provider, several of them, or the guarded provider resources of Dagster definitions."""
    found = load(path)
    resources = getattr(found, "resources", None)
    if isinstance(resources, Mapping):
        values = cast("Mapping[str, object]", resources).values()
        given = [_of_resource(value) for value in values if callable(getattr(value, "provider", None))]
    elif isinstance(found, Iterable):
        given = list(cast("Iterable[object]", found))
    else:
        given = [found]
    providers = [each for each in given if _is_provider(each)]
    if not providers or len(providers) < len(given):
        raise click.BadParameter(
            f"{path} holds something that is no provider. Name Dagster definitions with a guarded provider resource, "
            "a provider, or a list of them."
        )
    return providers


def load_channels(path: str) -> Mapping[str, Channel]:
    """Load a mapping of channel names to channels."""
    found = load(path)
    if not isinstance(found, Mapping) or not found:
        raise click.BadParameter(f'{path} is no mapping of channels, such as {{"email": EmailChannel()}}.')
    return cast("Mapping[str, Channel]", found)


def _of_resource(resource: object) -> object:
    """Build a resource's provider; fields that name environment variables are read first, as Dagster does."""
    with UsersCode(f"Resource {type(resource).__name__}"):
        initialize = getattr(resource, "process_config_and_initialize", None)
        ready = initialize() if callable(initialize) else resource
        build = getattr(ready, "provider", None)
        return build() if callable(build) else None


def _is_provider(given: object) -> TypeGuard[AnyProvider]:
    return all(hasattr(given, name) for name in ("name", "lookup", "settle_delay", "submit", "find"))
