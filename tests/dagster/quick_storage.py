"""Makes Dagster's own storage of a test cheap: what it would do anew for each file or statement, it does once.

Beside real_dagster.py the only place that imports private modules of Dagster.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from sqlite3 import Connection
from typing import Any

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage
from sqlalchemy import Engine, NullPool, create_engine, event


@contextmanager
def quick_storage() -> Iterator[None]:
    """Read migrations once, keep an engine (which keeps no connection) for each file, and do not wait for the disk.

    Nothing outlives the session, so nothing has to survive a power cut; a kill loses nothing either way.
    """
    read = ScriptDirectory.from_config
    known: dict[str, ScriptDirectory] = {}

    def read_once(config: Config) -> ScriptDirectory:
        location = str(config.get_main_option("script_location"))
        if not location.startswith("dagster:"):
            return read(config)
        if location not in known:
            known[location] = read(config)
        return known[location]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScriptDirectory, "from_config", read_once)
        for module in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
            patch.setattr(module, "create_engine", _engine)
        yield


def _engine(url: str, *, poolclass: type[NullPool], connect_args: dict[str, Any] | None = None) -> Engine:
    assert poolclass is NullPool
    return _kept_engine(url, tuple((connect_args or {}).items()))


@lru_cache(maxsize=64)
def _kept_engine(url: str, arguments: tuple[tuple[str, Any], ...]) -> Engine:
    engine = create_engine(url, poolclass=NullPool, connect_args=dict(arguments))
    event.listen(engine, "connect", _do_not_wait)
    return engine


def _do_not_wait(connection: Connection, _: object) -> None:
    connection.execute("PRAGMA synchronous = OFF").close()
