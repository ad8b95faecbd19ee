"""Spellings of a PostgreSQL URL: what libpq reads, what SQLAlchemy reads, what the environment says."""

import os
from pathlib import Path
from urllib.parse import quote

from dagster_idempotent.errors import ConfigurationError

URL_VARIABLE = "DAGSTER_IDEMPOTENT_POSTGRES_URL"
DATABASE = "dagster_idempotent"
SUPERUSER = "postgres"
PORT = 5432

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg")


def libpq_url(url: str) -> str:
    """Give `url` the plain `postgresql://` spelling that libpq, psycopg and psql read."""
    scheme, separator, rest = url.strip().partition("://")
    if not separator or scheme.lower() not in _SCHEMES:
        # The rest of the URL may hold a password, so that only the scheme is shown.
        raise ConfigurationError(
            f"Found a database URL with the scheme {scheme!r}." if separator else "Found a URL without ://.",
            expected=_SCHEMES,
            do="Write it as postgresql://user:password@host:5432/database.",
        )
    return f"postgresql://{rest}"


def sqlalchemy_url(url: str) -> str:
    """Give `url` the spelling for `postgres_url` of dagster-postgres, which needs psycopg2."""
    return libpq_url(url).replace("postgresql://", "postgresql+psycopg2://", 1)


def url_from_environment() -> str | None:
    """Return the URL that the environment asks for; an empty variable counts as unset."""
    url = os.environ.get(URL_VARIABLE, "").strip()
    return libpq_url(url) if url else None


def socket_url(sockets: Path, database: str) -> str:
    """Return the URL of `database` behind the socket in the folder `sockets`."""
    # The port is part of the socket's name; spelled out, PGPORT in a caller's environment cannot change it.
    return f"postgresql://{SUPERUSER}@/{quote(database)}?host={quote(str(sockets), safe='/')}&port={PORT}"


def with_database(url: str, database: str) -> str:
    """Return `url` with another database name."""
    head, mark, query = libpq_url(url).partition("?")
    server = head.removeprefix("postgresql://").partition("/")[0]
    return f"postgresql://{server}/{quote(database)}{mark}{query}"
