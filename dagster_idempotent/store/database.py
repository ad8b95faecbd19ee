"""Connections to PostgreSQL: opened late, bounded, READ COMMITTED, and what may be issued again after a fault."""

import logging
import math
import os
import re
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import DictRow, dict_row
from psycopg.types.string import TextLoader

from dagster_idempotent.errors import ConfigurationError, DatabaseUnavailable
from dagster_idempotent.store.pool import Pool, PoolBusy

Result = TypeVar("Result")

logger = logging.getLogger(__name__)

# Whole statements are issued again after these, a bounded number of times; nothing else is retried by code.
RETRYABLE_SQLSTATES = frozenset({"40001", "40P01"})
MAX_RETRIES = 5
# The server or the connection went away: a commit may or may not have happened. Every statement of this store is
# keyed, so issuing it again finds what the first one did.
LOST_SQLSTATES = frozenset({"57P01", "57P02", "57P03", "08000", "08001", "08003", "08004", "08006", "53300"})
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
LONGEST_CONNECT = 10.0

_PORTS = re.compile(r"[0-9,]*")
_SETTINGS = """
SET default_transaction_isolation = 'read committed';
SET timezone = 'UTC';
SELECT set_config('synchronous_commit', 'on', false)
    WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')
"""


# A server that vanished without a word is noticed in about half a minute, not after the system's two hours.
_ARGUMENTS: dict[str, Any] = {
    "autocommit": True,
    "row_factory": dict_row,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


class Connection(psycopg.Connection[DictRow]):
    """A connection that remembers a commit whose replication was given up."""

    unreplicated: bool = False


class Database:
    """One PostgreSQL as one process sees it; connects on first use, safe to share between threads.

    `patience` bounds how long a statement waits for a server that is away. A fork gets connections of its own. Raises
    ConfigurationError for a URL that cannot be read.
    """

    def __init__(self, url: str, *, max_connections: int = 4, patience: timedelta = timedelta(seconds=30)) -> None:
        _check(url)
        self._url = url
        self._max_connections = max_connections
        self._patience = patience.total_seconds()
        self._pool = self._new_pool()
        self._parents: Pool[Connection] | None = None
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """The connection string as given; it may hold a password, so it is never logged."""
        return self._url

    def run(self, function: Callable[[Connection], Result], *, patience: timedelta | None = None) -> Result:
        """Run `function` on an autocommit connection, again after a lost connection or a serialisation failure.

        `function` issues statements that may be issued again: keyed, guarded, or reads. Raises DatabaseUnavailable
        once the patience is over.
        """
        wait = self._patience if patience is None else patience.total_seconds()
        deadline = time.monotonic() + wait
        pause, retries = FIRST_PAUSE, 0
        while True:
            pool = self._connections()
            try:
                with pool.connection(timeout=max(0.1, deadline - time.monotonic())) as connection:
                    return _replicated(connection, function(connection))
            except PoolBusy as error:
                reason = f"all {self._max_connections} connections of this process stayed busy"
                raise self._unavailable(reason, wait) from error
            except psycopg.Error as error:
                if error.sqlstate in RETRYABLE_SQLSTATES and retries < MAX_RETRIES:
                    retries += 1
                elif not is_lost(error):
                    raise
                elif time.monotonic() + pause > deadline:
                    raise self._unavailable(error, wait) from error
                else:
                    pool.forget_idle()
                logger.warning("database.statement_issued_again", extra={"sqlstate": error.sqlstate})
            time.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    @contextmanager
    def transaction(self) -> Generator[Connection]:
        """Open a connection with a transaction that commits at the end of the block; nothing is retried."""
        try:
            with self._connections().connection(timeout=self._patience) as connection, connection.transaction():
                yield connection
        except PoolBusy as error:
            reason = f"all {self._max_connections} connections of this process stayed busy"
            raise self._unavailable(reason, self._patience) from error

    def connect(self, *, timeout: float = LONGEST_CONNECT, lock_wait: timedelta | None = None) -> Connection:
        """Open one connection of the caller's own, outside the pool; the caller closes it.

        `timeout` is in seconds; `lock_wait` bounds how long a statement waits for a lock.
        """
        # libpq counts whole seconds and takes less than two for two.
        seconds = math.ceil(min(max(timeout, 2.0), LONGEST_CONNECT))
        connection = Connection.connect(self._url, connect_timeout=seconds, **_ARGUMENTS)
        try:
            _configure(connection)
            if lock_wait is not None:
                wait = f"{lock_wait // timedelta(milliseconds=1)}ms"
                connection.execute("SELECT set_config('lock_timeout', %s, false)", [wait])
        except BaseException:
            connection.close()
            raise
        return connection

    def close(self) -> None:
        """Close the idle connections; the next statement opens new ones."""
        pool, self._pool = self._connections(), self._new_pool()
        pool.close()

    def _connections(self) -> Pool[Connection]:
        if self._pid != os.getpid():
            # After a fork: the parent's sockets and locks are not ours to touch, nor to collect as garbage.
            self._parents = self._pool
            self._pool, self._pid = self._new_pool(), os.getpid()
        return self._pool

    def _new_pool(self) -> Pool[Connection]:
        return Pool(lambda timeout: self.connect(timeout=timeout), size=self._max_connections)

    def _unavailable(self, reason: object, waited: float) -> DatabaseUnavailable:
        return DatabaseUnavailable(
            f"PostgreSQL at {describe(self._url)} did not serve us within {waited:.0f} s: "
            f"{str(reason).strip()}. Nothing was decided without it. Check that the server runs and that the URL is "
            "right; a run started again afterwards finds its task and its calls as they were.",
        )


def _check(url: str) -> None:
    """Refuse a URL that reads otherwise than it was meant: what libpq says about it would quote the password."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        parts = None
    # Raised outside of the handler: the error chain is shown and kept by Dagster.
    if parts is None or _is_misread(parts):
        raise ConfigurationError(
            "The database URL cannot be read; it is not shown, since it may hold a password. Expected "
            "postgresql://user:password@host:5432/database, with these characters of a user or password written as "
            "%XX: @ is %40, : is %3A, / is %2F, ? is %3F, # is %23, % is %25.",
            field="url",
        )


def _is_misread(parts: Mapping[str, object]) -> bool:
    """Whether a part of the password has become a part of the address."""
    host, port, name = (str(parts.get(key) or "") for key in ("host", "port", "dbname"))
    # The host may be the folder of a socket, or the name of an abstract one.
    return "@" in name or (not host.startswith(("/", "@")) and "@" in host) or _PORTS.fullmatch(port) is None


def describe(url: str) -> str:
    """Name a database without its credentials, for texts that people and logs may keep."""
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return "the configured URL (it cannot be parsed)"
    return f"{parts.get('host', 'the default host')}/{parts.get('dbname', 'the default database')}"


def is_lost(error: psycopg.Error) -> bool:
    """Whether the server or the connection went away: a commit may or may not have happened."""
    return error.sqlstate in LOST_SQLSTATES or (error.sqlstate is None and isinstance(error, psycopg.OperationalError))


def _configure(connection: Connection) -> None:
    """Set what every rule of the ledger presumes, whatever the server's defaults are."""
    connection.execute(_SETTINGS)
    # `json` columns hold accepted texts that are kept to the letter; `jsonb` columns are read as objects.
    connection.adapters.register_loader("json", TextLoader)

    def remember(notice: psycopg.errors.Diagnostic) -> None:
        if notice.sqlstate == "01000" and "synchronous replication" in (notice.message_primary or ""):
            connection.unreplicated = True

    connection.add_notice_handler(remember)


def _replicated(connection: Connection, result: Result) -> Result:
    if connection.unreplicated:
        connection.unreplicated = False
        raise DatabaseUnavailable(
            "PostgreSQL stopped waiting for its synchronous standby: the last commit is on the primary only and a "
            "failover could lose it. No request leaves on its strength. Bring the standby back; a run started "
            "afterwards finds what was recorded.",
        )
    return result
