"""The name of the paid call that comes next, for clients that have no parameter for it."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from dagster_idempotent.domain.submission import CallKey, check_call_key
from dagster_idempotent.errors import ConfigurationError

_named: ContextVar[CallKey | None] = ContextVar("dagster_idempotent_call_key", default=None)


@contextmanager
def call_key(name: str) -> Generator[None]:
    """Name every paid request in the block; the innermost name counts, also in async tasks started inside.

    A thread started inside has no name: enter the block in the thread itself.
    """
    token = _named.set(check_call_key(name))
    try:
        yield
    finally:
        _named.reset(token)


def named_call(default: str | None = None) -> CallKey:
    """Return the name of the block, else `default`; raises ConfigurationError where there is neither."""
    name = _named.get()
    if name is not None:
        return name
    if default is not None:
        return check_call_key(default)
    raise ConfigurationError(
        "A paid request without a call key: nothing was sent. Its name is what a retry finds its answer by, and it "
        'never comes from order or payload. Give it: get_client(context, call="summary"), or '
        '`with call_key("shot-03"):` around the request.',
        field="call",
    )
