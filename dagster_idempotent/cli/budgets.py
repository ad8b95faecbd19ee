"""`budgets`: limits and their counters."""

from decimal import Decimal
from pathlib import Path

import click

from dagster_idempotent.cli.decided import tell
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import (
    MONEY,
    decision_options,
    json_option,
    ledger_options,
    limit_option,
    pipeline_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.engine import budgets, dead_letters
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "scope", "currency", "reserved", "settled", "limit", "left")


@click.group(cls=Noun)
def command() -> None:
    """Show and set limits, and release tasks that were held at one."""


@command.command()
@ledger_options
@json_option
@pipeline_option
@click.option("--scope", metavar="SCOPE", help="Only `pipeline`, `period:2026-W32` or `task:2026-W32-0`.")
@click.option("--all", "everything", is_flag=True, help="Also counters without a limit.")
@limit_option
def show(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    pipeline: str | None,
    scope: str | None,
    everything: bool,
    limit: int,
) -> None:
    """Show what is reserved, settled and left of each limit.

    Example:
      dagster-idempotent budgets show --pipeline weekly_digest --scope period:2026-W32
    """
    with opened(url, folder) as database:
        rows = database.run(
            lambda c: listing.budgets(c, pipeline=pipeline, scope=scope, everything=everything, limit=limit)
        )
        print_rows(rows, COLUMNS, as_json=as_json, nothing="No counter fits; --all shows those without a limit.")


@command.command("set")
@click.argument("pipeline")
@click.argument("limit", metavar="LIMIT")
@ledger_options
@json_option
@decision_options
@click.option("--period", metavar="ID", help="The limit of this period instead of the whole pipeline's.")
@click.option("--task", metavar="TASK_ID", help="The limit of this task instead of the whole pipeline's.")
def set_(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    pipeline: str,
    limit: str,
    period: str | None,
    task: str | None,
) -> None:
    """Set one limit; LIMIT is an amount such as "5.00 USD", or "none USD" to lift it.

    Tasks that are allocated later take their own limits from the code, not from here.

    Example:
      dagster-idempotent budgets set weekly_digest "5.00 USD" --task 2026-W32-0 --actor ada --reason "longer input"
    """
    if period and task:
        raise click.UsageError("--period and --task name two limits. Give one of them.")
    scope = f"task:{task}" if task else f"period:{period}" if period else "pipeline"
    currency, amount = _limit(limit)
    with opened(url, folder) as database:
        who = Who(actor=actor, reason=reason)
        decision = budgets.set_limit(
            database, pipeline, scope, currency=currency, limit=amount, who=who, dry_run=dry_run
        )
        tell(decision, as_json=as_json)


@command.command()
@ledger_options
@json_option
@decision_options
@task_argument
def release(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    task: str,
    pipeline: str | None,
) -> None:
    """Let a task go on that was held because a limit was full; raise the limit first.

    Example:
      dagster-idempotent budgets release 2026-W32-0 --actor ada --reason "limit raised"
    """
    with opened(url, folder) as database:
        ref = find_task(database, task, pipeline=pipeline)
        who = Who(actor=actor, reason=reason)
        tell(dead_letters.release_budget_hold(database, ref, who=who, dry_run=dry_run), as_json=as_json)


def _limit(text: str) -> tuple[str, Decimal | None]:
    amount, _, currency = text.partition(" ")
    lifted = amount == "none"
    money = MONEY.convert(f"0 {currency}" if lifted else text, None, None)
    return money.currency, None if lifted else money.amount
