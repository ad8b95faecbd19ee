"""`doctor`: whether the database, the schema, the rights and the settings are as the ledger needs them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path

from dagster_idempotent.engine.task_facts import short_time
from dagster_idempotent.errors import SchemaMismatch
from dagster_idempotent.store import doctor as server, listing, version
from dagster_idempotent.store.database import Database, describe

OLDEST = 140_000
CLOCK_TOLERANCE = timedelta(seconds=5)
SPARE_CONNECTIONS = 20
# SQLAlchemy takes a plain URL for psycopg 3, with which dagster-postgres does not work.
_PLAIN_URL = re.compile(r"\s*[\"']?postgres(?:ql)?://")
_URL = re.compile(r"^\s*postgres_url\s*:(?P<url>.*)$", re.MULTILINE)
_FROM_VARIABLE = re.compile(r"^\s*postgres_url\s*:\s*\{?\s*env\s*:\s*[\"']?(?P<name>\w+)", re.MULTILINE)


class Health(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: what was found, and what to do about it where it is not well."""

    name: str
    health: Health
    found: str
    do: str = ""


def examine(database: Database, *, dagster_home: Path | None = None) -> Sequence[Check]:
    """Check the server and, where given, the dagster.yaml of `dagster_home`; reads only."""
    checks = [*_server(database), _schema(database)]
    if checks[-1].health is Health.OK:
        checks += [_rights(database), _jobs(database)]
    checks += [_defaults(database), _durable(database), _connections(database), _replication(database)]
    if dagster_home is not None:
        checks.append(_dagster_yaml(dagster_home / "dagster.yaml"))
    return checks


def _server(database: Database) -> list[Check]:
    before = datetime.now(UTC)
    row = database.run(server.server)
    after = datetime.now(UTC)
    where = f"{describe(database.url)}, PostgreSQL {row['version']}, as {row['role']}"
    reachable = Check(name="server", health=Health.OK, found=where)
    if row["number"] < OLDEST:
        reachable = Check(
            name="server",
            health=Health.FAILED,
            found=where,
            do="Use PostgreSQL 14 or newer.",
        )
    elif row["standby"] or row["read_only"]:
        reachable = Check(
            name="server",
            health=Health.FAILED,
            found=f"{where}: it takes no writes",
            do="Point the URL at the primary; target_session_attrs=read-write picks it among several hosts.",
        )
    elif row["encoding"] != "UTF8":
        reachable = Check(
            name="server",
            health=Health.FAILED,
            found=f"{where}: encoding {row['encoding']}",
            do="Create the database with ENCODING 'UTF8': outputs and keys are any text.",
        )
    off = max(before - row["now"], row["now"] - after, timedelta(0))
    clock = Check(name="clock", health=Health.OK, found=f"{off.total_seconds():.1f} s apart from this machine")
    if off > CLOCK_TOLERANCE:
        clock = Check(
            name="clock",
            health=Health.WARNING,
            found=clock.found,
            do="Set both clocks by NTP. Leases go by the database's clock alone; ticks and logs go by this one.",
        )
    return [reachable, clock]


def _schema(database: Database) -> Check:
    try:
        version.check(database)
    except SchemaMismatch as error:
        return Check(
            name="schema",
            health=Health.FAILED,
            found=error.message,
            do=f"Run `{version.UPGRADE_COMMAND}` if this is the right database.",
        )
    return Check(name="schema", health=Health.OK, found=f"version {version.wanted_version()}")


def _rights(database: Database) -> Check:
    rows = database.run(server.rights)
    missing = [row["what"] for row in rows if not row["allowed"]]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""  # noqa: PLR2004 - enough to see the point
        return Check(
            name="rights",
            health=Health.FAILED,
            found=f"missing {'; '.join(missing[:3])}{more}",
            do="GRANT USAGE ON SCHEMA dagster_idempotent, SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA "
            "dagster_idempotent, and EXECUTE ON ALL FUNCTIONS IN SCHEMA dagster_idempotent to the role.",
        )
    return Check(name="rights", health=Health.OK, found=f"all {len(rows)} that are needed")


def _jobs(database: Database) -> Check:
    overdue = database.run(listing.overdue_jobs)
    if not overdue:
        return Check(name="jobs", health=Health.OK, found="no accepted job is overdue")
    first = overdue[0]
    return Check(
        name="jobs",
        health=Health.WARNING,
        found=f"{len(overdue)} accepted job(s) overdue, first {first['remote_ref']} at {first['provider']} (task "
        f"{first['pipeline']}/{first['task_id']}), expected by {short_time(first['expected_by'])}",
        do=f"dagster-idempotent explain {first['pipeline']}/{first['task_id']}: what is safe next. Where such jobs "
        "take longer, say so with the provider's expected_within.",
    )


def _defaults(database: Database) -> Check:
    level = database.run(server.session_defaults).get("default_transaction_isolation", "unknown")
    if level == "read committed":
        return Check(name="isolation", health=Health.OK, found=level)
    return Check(
        name="isolation",
        health=Health.WARNING,
        found=f"new sessions start with {level}",
        do="The ledger's own connections set read committed, unless a pooler in transaction mode drops the setting: "
        "ALTER ROLE … SET default_transaction_isolation = 'read committed'.",
    )


def _durable(database: Database) -> Check:
    settings = database.run(server.session_defaults)
    off = [name for name in ("fsync", "full_page_writes") if settings.get(name) == "off"]
    weak = settings.get("synchronous_commit") in ("off", "local", "remote_write")
    if off:
        return Check(
            name="durability",
            health=Health.WARNING,
            found=f"{' and '.join(off)} off: a power cut can lose an intent whose request was sent",
            do="Turn them on for anything but a test.",
        )
    if weak:
        return Check(
            name="durability",
            health=Health.WARNING,
            found=f"new sessions start with synchronous_commit = {settings['synchronous_commit']}",
            do="The ledger's own connections set it to on, unless a pooler in transaction mode drops the setting: "
            "ALTER ROLE … SET synchronous_commit = 'on'.",
        )
    return Check(name="durability", health=Health.OK, found="commits are on disk before they are told")


def _connections(database: Database) -> Check:
    row = database.run(server.connections)
    found = f"{row['used']} of {row['allowed']} used"
    if row["idle_in_transaction"]:
        return Check(
            name="connections",
            health=Health.WARNING,
            found=f"{found}, {row['idle_in_transaction']} idle in a transaction for over 5 minutes",
            do="Find them in pg_stat_activity: their locks can keep tasks waiting. Nothing of the ledger does that.",
        )
    if row["allowed"] - row["used"] < SPARE_CONNECTIONS:
        return Check(
            name="connections",
            health=Health.WARNING,
            found=found,
            do="Each process opens at most `max_connections` of the ledger resource (4) and one for its heartbeat. "
            "Lower that, limit concurrent runs, raise the server's max_connections, or put PgBouncer in between.",
        )
    return Check(name="connections", health=Health.OK, found=found)


def _replication(database: Database) -> Check:
    row = database.run(server.replication)
    if row["async_standbys"] and not row["synchronous"]:
        return Check(
            name="standby",
            health=Health.WARNING,
            found=f"{row['async_standbys']} asynchronous standby(s): a failover can lose the latest intents",
            do="Name a synchronous standby in synchronous_standby_names, or freeze the pipelines after a failover "
            "(`dagster-idempotent pipelines freeze`) until the ledger was compared with the provider.",
        )
    if row["synchronous"] and not row["sync_standbys"]:
        return Check(
            name="standby",
            health=Health.WARNING,
            found=f"synchronous_standby_names is {row['synchronous']!r} and no such standby is connected",
            do="Commits wait for it. Bring it back.",
        )
    kind = f"{row['sync_standbys']} synchronous standby(s)" if row["sync_standbys"] else "none is connected"
    return Check(name="standby", health=Health.OK, found=kind)


def _dagster_yaml(path: Path) -> Check:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Check(
            name="dagster.yaml", health=Health.OK, found=f"{path} does not exist: Dagster uses its own defaults"
        )
    except (OSError, UnicodeDecodeError) as error:
        return Check(name="dagster.yaml", health=Health.FAILED, found=f"{path}: {error}", do="Make it readable.")
    urls = [match["url"] for match in _URL.finditer(text)]
    urls += [os.environ.get(match["name"], "") for match in _FROM_VARIABLE.finditer(text)]
    if any(_PLAIN_URL.match(url) for url in urls):
        return Check(
            name="dagster.yaml",
            health=Health.FAILED,
            found=f"{path}: postgres_url is a URL that starts with postgresql://",
            do="Write postgresql+psycopg2://: under SQLAlchemy 2.1 a plain URL means psycopg 3, with which "
            "dagster-postgres fails. The ledger's own URL may be written either way.",
        )
    return Check(name="dagster.yaml", health=Health.OK, found=f"{path}")
