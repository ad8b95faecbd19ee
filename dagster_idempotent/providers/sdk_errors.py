"""Errors of this library as an SDK lets them through: of our class and of the SDK's base class at once.

anthropic, for one, wraps whatever else is raised below it into a connection error of its own.
"""

import sys
from functools import cache
from importlib import import_module
from typing import cast

from dagster_idempotent.errors import IdempotentError


def surfaced(error: IdempotentError, module: str, name: str) -> IdempotentError:
    """Return `error` as an error of its own class that is also `module.name`; as it is where that is not imported."""
    base = getattr(sys.modules.get(module), name, None)
    if base is None or isinstance(error, base):
        return error
    return _twin(type(error), cast("type[Exception]", base))(error.message, **error.facts)


@cache
def _twin(kind: type[IdempotentError], base: type[Exception]) -> type[IdempotentError]:
    module, name = base.__module__.partition(".")[0], base.__name__

    def reduce(self: IdempotentError) -> tuple[object, ...]:
        return _restored, (kind, module, name, self.message, self.facts)

    members = {"__reduce__": reduce, "__module__": kind.__module__, "__doc__": kind.__doc__, "__str__": _message}
    return cast("type[IdempotentError]", type(kind.__name__, (kind, base), members))


def _message(self: IdempotentError) -> str:
    return self.message


def _restored(
    kind: type[IdempotentError], module: str, name: str, message: str, facts: dict[str, object]
) -> IdempotentError:
    """Unpickle: without the SDK, the plain error."""
    try:
        import_module(module)
    except ImportError:
        return kind(message, **facts)
    return surfaced(kind(message, **facts), module, name)
