"""`budgets`: limits and their counters."""

from decimal import Decimal

import click

from dagster_idempotent.cli.asking import Asked, Deciding, DecidingOnTask, asking, deciding, deciding_on_task
from dagster_idempotent.cli.options import (
    amount,
    limit_option,
    pipeline_option,
)
from dagster_idempotent.cli.output import print_rows
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.engine import budgets, dead_letters
from dagster_idempotent.store import listing

COLUMNS = ("pipeline", "scope", "currency", "reserved", "settled", "limit", "left")


@click.group(cls=Noun)
def command() -> None:
    """Show and set limits, and release tasks that were held at one."""


@command.command()
@asking
@pipeline_option
@click.option("--scope", metavar="SCOPE", help="Only `pipeline`, `period:2026-W32` or `task:2026-W32-0`.")
@click.option("--all", "everything", is_flag=True, help="Also counters without a limit.")
@limit_option
def show(asked: Asked, *, pipeline: str | None, scope: str | None, everything: bool, limit: int) -> None:
    """Show what is reserved, settled and left of each limit.

    Example:
      dagster-idempotent budgets show --pipeline weekly_digest --scope period:2026-W32
    """
    with asked.opened() as database:
        rows = database.run(
            lambda c: listing.budgets(c, pipeline=pipeline, scope=scope, everything=everything, limit=limit)
        )
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No counter fits; --all shows those without a limit.")


@command.command("set")
@click.argument("pipeline")
@click.argument("limit", metavar="LIMIT")
@deciding
@click.option("--period", metavar="ID", help="The limit of this period instead of the whole pipeline's.")
@click.option("--task", metavar="TASK_ID", help="The limit of this task instead of the whole pipeline's.")
def set_(decision: Deciding, *, pipeline: str, limit: str, period: str | None, task: str | None) -> None:
    """Set one limit; LIMIT is an amount such as "5.00 USD", or "none USD" to lift it.

    Tasks that are allocated later take their own limits from the code, not from here.

    Example:
      dagster-idempotent budgets set weekly_digest "5.00 USD" --task 2026-W32-0 --actor ada --reason "longer input"
    """
    if period and task:
        raise click.UsageError("--period and --task name two limits. Give one of them.")
    scope = f"task:{task}" if task else f"period:{period}" if period else "pipeline"
    currency, number = _limit(limit)
    decision.decide(budgets.set_limit, pipeline, scope, currency=currency, limit=number)


@command.command()
@deciding_on_task
def release(decision: DecidingOnTask) -> None:
    """Let a task go on that was held because a limit was full; raise the limit first.

    Example:
      dagster-idempotent budgets release 2026-W32-0 --actor ada --reason "limit raised"
    """
    decision.decide(dead_letters.release_budget_hold)


def _limit(text: str) -> tuple[str, Decimal | None]:
    number, _, currency = text.partition(" ")
    lifted = number == "none"
    money = amount(f"0 {currency}" if lifted else text)
    return money.currency, None if lifted else money.amount
