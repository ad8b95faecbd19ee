"""What the ledger says of each send, page by page, to be set against a provider's own records."""

from collections.abc import Iterator, Sequence

from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements
from dagster_idempotent.store.verify import begin_reading

SQL = statements("provider_records")
PAGE = 500
# Calls may be named after their items, thousands a task; nobody asks about all of them for every unfinished task.
MOST_NAMES = 200


def sends(database: Database, providers: Sequence[str], pipeline: str | None) -> Iterator[Row]:
    """Stream every send to these providers, those of one call together, in order."""
    key = ("pipeline", "task_id", "call_key", "submission")
    return _pages(database, "sends", key, 0, providers=providers, pipeline=pipeline)


def calls_never_made(database: Database, providers: Sequence[str], pipeline: str | None) -> Iterator[Row]:
    """Stream the calls that an unfinished task has no record of, though others of its pipeline made them."""
    key = ("pipeline", "task_id", "call_key", "provider")
    return _pages(database, "calls_never_made", key, "", providers=providers, pipeline=pipeline)


def sends_by_provider(connection: Connection, pipeline: str | None) -> Sequence[Row]:
    """Count the sends and calls of every provider."""
    return connection.execute(SQL["sends_by_provider"], {"pipeline": pipeline}).fetchall()


def _pages(
    database: Database,
    name: str,
    key: tuple[str, str, str, str],
    first: object,
    *,
    providers: Sequence[str],
    pipeline: str | None,
) -> Iterator[Row]:
    after: tuple[object, ...] = ("", "", "", first)
    while True:
        parameters = dict(zip("abcd", after, strict=True)) | {"limit": PAGE, "names": MOST_NAMES}
        with database.transaction() as connection:
            begin_reading(connection)
            rows = connection.execute(
                SQL[name], {**parameters, "providers": list(providers), "pipeline": pipeline}
            ).fetchall()
        yield from rows
        if len(rows) < PAGE:
            return
        after = tuple(rows[-1][column] for column in key)
