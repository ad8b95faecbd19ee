"""The statements of `verify`: each lists what contradicts one rule."""

from collections.abc import Iterator, Sequence

from dagster_idempotent.store.database import Connection
from dagster_idempotent.store.rows import Row
from dagster_idempotent.store.statements import statements

SQL = statements("verify")
# Rule: what it says, in the order in which the rules are checked.
RULES = {
    "sequences": "the tasks of a period are numbered from 0 without gaps",
    "leases": "a task has an owner exactly while somebody may work on it",
    "artifact_hashes": "an artifact is what its hash says",
    "answer_hashes": "a paid answer is what its hash says",
    "output_hashes": "an output is what its hash says",
    "announced_outputs": "a message announces the accepted output of a completed task",
    "live_submissions": "a call has at most one live submission",
    "submission_numbers": "the submissions of a call are numbered from 1 without gaps",
    "resends": "nothing follows an abandoned submission unless an operator allowed it",
    "decided_by_somebody": "an operator's decision names who and why",
    "bookings": "what was booked for a send is what its row says",
    "counters": "budget counters are the sums of the bookings",
}


def begin_reading(connection: Connection) -> None:
    """Make the open transaction one read-only snapshot; to be called before anything else in it."""
    connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")


def contradictions(connection: Connection, rule: str) -> Sequence[Row]:
    """List what contradicts one of RULES."""
    return connection.execute(SQL[rule]).fetchall()


def identities(connection: Connection) -> Iterator[Row]:
    """Stream the identity of every task, in batches, so that memory stays flat."""
    with connection.cursor(name="dagster_idempotent_identities") as cursor:
        cursor.itersize = 5_000
        cursor.execute(SQL["identities"])
        yield from cursor


def charged_twice(connection: Connection) -> Sequence[Row]:
    """List what was paid for more than once: answers beside another one, further requests under one key."""
    return connection.execute(SQL["charged_twice"]).fetchall()


def totals(connection: Connection) -> Row:
    """Count what there is, to compare before and after."""
    return connection.execute(SQL["totals"]).fetchone() or {}
