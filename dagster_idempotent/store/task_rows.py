"""Rows of a user's table that belong to one task. Names are quoted, values are parameters."""

from collections.abc import Mapping, Sequence

from psycopg import sql

from dagster_idempotent.store.database import Connection

Rows = Sequence[Mapping[str, object]]


def lock(connection: Connection, table: Sequence[str], key: Mapping[str, object]) -> None:
    """Let one writer at a time replace the rows of a task; ends with the transaction, so a pooler does no harm."""
    name = "\0".join([*table, *(str(value) for value in key.values())])
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", (name.replace("\0", "\x1f"),))


def delete(connection: Connection, table: Sequence[str], key: Mapping[str, object]) -> None:
    """Delete the rows of a task."""
    where = sql.SQL(" AND ").join(sql.SQL("{} = {}").format(sql.Identifier(c), sql.Placeholder()) for c in key)
    statement = sql.SQL("DELETE FROM {} WHERE {}").format(sql.Identifier(*table), where)
    connection.execute(statement, list(key.values()))


def insert(connection: Connection, table: Sequence[str], rows: Rows) -> None:
    """Insert rows that all have the same columns."""
    columns = list(rows[0])
    statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
        sql.Identifier(*table),
        sql.SQL(", ").join(map(sql.Identifier, columns)),
        sql.SQL(", ").join(sql.Placeholder() for _ in columns),
    )
    with connection.cursor() as cursor:
        cursor.executemany(statement, [[row[column] for column in columns] for row in rows])
