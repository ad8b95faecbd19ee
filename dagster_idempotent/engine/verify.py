"""`verify`: the whole ledger checked against its own rules, in one read-only snapshot (R35)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.errors import InvalidIdentity
from dagster_idempotent.store import verify as statements
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.rows import Row

IDENTITY_RULE = "a task's keys are those of its identity"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One contradiction: which rule, of what, and what is there instead."""

    rule: str
    subject: str
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was found; `notices` contradict nothing, but somebody should know. Two runs on one state are equal."""

    rules: int
    findings: Sequence[Finding]
    notices: Sequence[Finding]
    totals: Mapping[str, Any]

    @property
    def sound(self) -> bool:
        """Whether nothing contradicts a rule."""
        return not self.findings


def verify(database: Database, *, progress: Callable[[str], None] = lambda _: None) -> Verification:
    """Check the ledger; writes nothing, blocks nobody."""
    with database.transaction() as connection:
        statements.begin_reading(connection)
        findings: list[Finding] = []
        for rule, says in statements.RULES.items():
            progress(says)
            findings += [
                Finding(rule=rule, subject=row["subject"], found=row["found"])
                for row in statements.contradictions(connection, rule)
            ]
        progress(IDENTITY_RULE)
        findings += _identities(connection)
        notices = [
            Finding(rule="charged_twice", subject=row["subject"], found=row["found"])
            for row in statements.charged_twice(connection)
        ]
        totals = statements.totals(connection)
    return Verification(rules=len(statements.RULES) + 1, findings=findings, notices=notices, totals=totals)


def _identities(connection: Connection) -> Iterator[Finding]:
    for row in statements.identities(connection):
        found = _identity_problem(row)
        if found is not None:
            yield Finding(rule="identities", subject=f"{row['pipeline']}/{row['task_id']}", found=found)


def _identity_problem(row: Row) -> str | None:
    try:
        identity = Identity.from_allocation_key(row["allocation_key"])
    except InvalidIdentity as error:
        return error.message
    if identity.run_id != row["run_id"]:
        return f"run id {row['run_id']}, its key {row['allocation_key']} gives {identity.run_id}"
    told = (identity.pipeline, identity.subject, identity.scheduled_at, identity.version)
    if told != (row["pipeline"], row["subject_id"], row["scheduled_at"], row["version"]):
        return f"its key {row['allocation_key']} names another subject, time or version than its row"
    return None
