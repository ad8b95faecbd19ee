"""A named person's decision: written whole with its audit row, shown and undone in a dry run, or refused."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from dagster_idempotent.errors import DecisionRefused
from dagster_idempotent.store.database import Connection, Database
from dagster_idempotent.store.decisions import Verdict, Who

__all__ = ["Decision", "Who", "decide"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What was decided; in a dry run, what would have been."""

    action: str
    subject: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    dry_run: bool


def decide(
    database: Database,
    statement: Callable[[Connection], Verdict],
    *,
    subject: str,
    accepted: str,
    refusals: Mapping[str, str],
    dry_run: bool,
) -> Decision:
    """Run a decision in one transaction; raises DecisionRefused with the text for its verdict.

    Never issued again by itself: after a lost connection the audit trail tells whether it was written. Refusal texts
    may name `{before}` and `{after}`.
    """
    with database.transaction() as connection:
        verdict = statement(connection)
        if dry_run:
            raise psycopg.Rollback
    if verdict.name != accepted:
        before, after = dict(verdict.before or {}), dict(verdict.after or {})
        text = refusals.get(verdict.name, f"the ledger answered {verdict.name!r}.")
        raise DecisionRefused(
            f"{subject}: {text.format(before=_Shown(before), after=_Shown(after))} Nothing was written.",
            verdict=verdict.name,
            subject=subject,
        )
    return Decision(
        action=accepted, subject=subject, before=verdict.before or {}, after=verdict.after or {}, dry_run=dry_run
    )


class _Shown(dict[str, Any]):
    """Values of a row for a text: `{before[status]}`; a missing one is shown as unknown."""

    def __missing__(self, key: str) -> str:
        return "unknown"
