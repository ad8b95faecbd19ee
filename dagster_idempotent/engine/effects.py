"""Effects: relative changes in the user's own tables that happen once, whatever is killed or retried (R33).

The change and the record that it happened are one transaction on one database, so a balance and its record commit
together or not at all. Keyed by (pipeline, task, effect name): the second run gets the first result and changes
nothing. The user's tables must lie in the ledger's own database.
"""

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
from psycopg import sql
from psycopg.rows import DictRow
from pydantic import JsonValue

from dagster_idempotent.domain.fingerprint import differing_fields, fingerprint
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.task import Lease
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.work import stopped
from dagster_idempotent.errors import (
    ConfigurationError,
    DatabaseUnavailable,
    LeaseLost,
    PayloadMismatch,
    PayloadPruned,
    TaskHeld,
)
from dagster_idempotent.store import effects
from dagster_idempotent.store.database import Connection, Database, is_lost
from dagster_idempotent.store.effects import Effect, Recorded

Statement = LiteralString | bytes | sql.SQL | sql.Composed
Parameters = Sequence[Any] | Mapping[str, Any]


class EffectTransaction:
    """What `transaction` gives: `if tx.is_first:` change things and set `tx.result`; read `tx.result` afterwards."""

    def __init__(self, name: str, connection: Connection | None, result: JsonValue = None) -> None:
        self.is_first = connection is not None
        self.result = result
        self._name = name
        self._connection = self._opened = connection

    @property
    def is_cut_off(self) -> bool:
        """Whether the connection was lost, so that nobody here knows what became of the transaction."""
        return self._opened is not None and self._opened.closed

    @property
    def connection(self) -> Connection:
        """The connection of the open transaction; raises ConfigurationError where there is nothing left to do."""
        if self._connection is None:
            raise ConfigurationError(
                f"Effect {self._name!r} has happened, or its block is over: nothing may be changed under it any more. "
                "Put the statements under `if tx.is_first:` and read tx.result afterwards.",
                field="effect",
            )
        return self._connection

    def execute(self, statement: Statement, parameters: Parameters | None = None) -> psycopg.Cursor[DictRow]:
        """Execute a statement in the transaction; rows come as dicts."""
        return self.connection.execute(statement, parameters)

    def end(self) -> str:
        """Hand out no connection any more; return the result as JSON text."""
        self._connection = None
        return _encoded(self._name, self.result)


@contextmanager
def transaction(
    database: Database,
    pipeline: str,
    task_id: TaskId,
    effect: str,
    *,
    request: object = None,
    lease: Lease | None = None,
) -> Generator[EffectTransaction]:
    """Open the transaction of an effect; it commits when the block ends, and an exception undoes all of it.

    `request` is what the effect depends on (an amount, an account): the same key with another one raises
    PayloadMismatch. With a `lease` the commit is fenced: raises LeaseLost where another run took the task over. Raises
    DatabaseUnavailable where the connection was lost and nothing happened; the same key may go again.
    """
    this = _effect(database, pipeline, task_id, effect, request)
    done = database.run(lambda c: effects.get(c, this))
    tx: EffectTransaction | None = None
    fenced_off = False
    if done is None:
        try:
            with database.transaction() as connection:
                if effects.begin(connection, this):
                    tx = EffectTransaction(effect, connection)
                    yield tx
                    fenced_off = not effects.finish(connection, this, lease, result=tx.end())
                    if fenced_off:
                        raise psycopg.Rollback
        except psycopg.Error as error:
            if tx is None or not (is_lost(error) and tx.is_cut_off):
                raise
            _settle(database, this, tx, error)
        if fenced_off:
            raise _lost(database, this, lease)
        if tx is not None:
            return
        done = database.run(lambda c: effects.get(c, this))
    yield EffectTransaction(effect, None, _result(this, done))


def once(
    database: Database,
    pipeline: str,
    task_id: TaskId,
    effect: str,
    change: Callable[[Connection], JsonValue],
    *,
    request: object = None,
    lease: Lease | None = None,
) -> JsonValue:
    """Return what `change(connection)` returned the one time that it was committed.

    As `transaction`, and run again by itself after a lost connection, a deadlock or a serialisation failure: `change`
    only issues statements on the connection it is given.
    """
    this = _effect(database, pipeline, task_id, effect, request)

    def attempt(connection: Connection) -> Recorded | None:
        done = effects.get(connection, this)
        if done is not None:
            return done
        with connection.transaction():
            if effects.begin(connection, this):
                result = _encoded(effect, change(connection))
                if not effects.finish(connection, this, lease, result=result):
                    raise psycopg.Rollback
        return effects.get(connection, this)

    done = database.run(attempt)
    if done is None:  # begun and not there: only the fence undoes it
        raise _lost(database, this, lease)
    return _result(this, done)


def _effect(database: Database, pipeline: str, task_id: TaskId, name: str, request: object) -> Effect:
    if not 0 < len(name) <= 200:  # noqa: PLR2004 - the ledger's own limit
        raise ConfigurationError(
            f"The effect's name {name[:50]!r} has {len(name)} characters, expected 1 to 200.", field="effect"
        )
    get_task(database, pipeline, task_id)
    return Effect(
        pipeline=pipeline,
        task_id=task_id,
        name=name,
        attempt=uuid4(),
        fingerprint=fingerprint("effect", name, request),
    )


def _settle(database: Database, this: Effect, tx: EffectTransaction, error: psycopg.Error) -> None:
    """Find out what became of a transaction whose connection was lost, and make `tx` say it.

    Inserting the key again waits for a transaction that is still pending; its absence in a plain read proves nothing.
    """

    def probe(connection: Connection) -> Recorded | None:
        with connection.transaction(force_rollback=True):
            return None if effects.begin(connection, this) else effects.get(connection, this)

    done = database.run(probe)
    if done is None:
        raise DatabaseUnavailable(
            f"The connection was lost before effect {this.name!r} of task {this.task_id} was committed: nothing of it "
            "happened. The same key may go again.",
            task_id=this.task_id,
            effect=this.name,
        ) from error
    if done.attempt != this.attempt:
        tx.is_first = False
        tx.result = _result(this, done)


def _result(this: Effect, done: Recorded | None) -> JsonValue:
    if done is None:  # a record is never deleted
        raise AssertionError("an effect that happened has no record")
    differing = differing_fields(done.fingerprint, this.fingerprint)
    if differing:
        raise PayloadMismatch(
            f"Effect {this.name!r} of task {this.task_id} happened with another request; these parts differ: "
            f"{', '.join(differing)}. Nothing was changed. Another change needs another name.",
            task_id=this.task_id,
            call_key=this.name,
            fields=differing,
        )
    if done.result is None:
        raise PayloadPruned(
            f"Effect {this.name!r} of task {this.task_id} happened, and retention dropped its result. It does not "
            "happen again; nothing was changed.",
            task_id=this.task_id,
            call_key=this.name,
        )
    return json.loads(done.result)


def _encoded(name: str, result: JsonValue) -> str:
    try:
        return json.dumps(result, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"The result of effect {name!r} cannot be kept as JSON: {error}. Nothing was committed. Return plain "
            "values, lists and objects.",
            field="result",
        ) from error


def _lost(database: Database, this: Effect, lease: Lease | None) -> LeaseLost | TaskHeld:
    if lease is None:  # without a lease nothing fences
        raise AssertionError(f"effect {this.name!r} was undone without a fence")
    return stopped(database, lease)
