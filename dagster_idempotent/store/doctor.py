"""What `doctor` asks the server."""

from collections.abc import Mapping, Sequence

from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements

SQL = statements("doctor")


def server(connection: Connection) -> Row:
    """Read version, role, clock and whether this is a primary."""
    return connection.execute(SQL["server"]).fetchone() or {}


def session_defaults(connection: Connection) -> Mapping[str, str]:
    """Read the settings with which a new session starts."""
    return {row["name"]: row["value"] for row in connection.execute(SQL["session_defaults"])}


def rights(connection: Connection) -> Sequence[Row]:
    """List the rights that the ledger needs and whether this role has them."""
    return connection.execute(SQL["rights"]).fetchall()


def connections(connection: Connection) -> Row:
    """Read how many connections are allowed and used."""
    return connection.execute(SQL["connections"]).fetchone() or {}


def replication(connection: Connection) -> Row:
    """Read the standbys, synchronous and others."""
    return connection.execute(SQL["replication"]).fetchone() or {}
