"""Options that many commands share, each with an environment twin."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from dagster_idempotent.domain import backoff
from dagster_idempotent.domain.money import Money
from dagster_idempotent.errors import ConfigurationError

Function = TypeVar("Function", bound=Callable[..., Any])


def ledger_options(function: Function) -> Function:
    """Add --url and --folder."""
    function = click.option(
        "--folder",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="DAGSTER_IDEMPOTENT_FOLDER",
        help="Folder of the embedded PostgreSQL.  [default: $DAGSTER_HOME/postgres, else your data folder]",
    )(function)
    return click.option(
        "--url",
        envvar="DAGSTER_IDEMPOTENT_POSTGRES_URL",
        metavar="URL",
        help="PostgreSQL URL of the ledger; best given as DAGSTER_IDEMPOTENT_POSTGRES_URL.",
    )(function)


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option(
        "--json", "as_json", is_flag=True, envvar="DAGSTER_IDEMPOTENT_JSON", help="Print one JSON document."
    )(function)


def dry_run_option(function: Function) -> Function:
    """Add --dry-run."""
    return click.option(
        "--dry-run",
        is_flag=True,
        envvar="DAGSTER_IDEMPOTENT_DRY_RUN",
        help="Show what would change, and change nothing.",
    )(function)


def decision_options(function: Function) -> Function:
    """Add --actor, --reason and --dry-run: somebody decides, and the audit trail keeps who and why."""
    function = dry_run_option(function)
    function = click.option(
        "--reason",
        required=True,
        callback=_not_blank,
        envvar="DAGSTER_IDEMPOTENT_REASON",
        metavar="TEXT",
        help="Why; kept in the audit trail.",
    )(function)
    return click.option(
        "--actor",
        required=True,
        callback=_not_blank,
        envvar="DAGSTER_IDEMPOTENT_ACTOR",
        metavar="NAME",
        help="Who decides; kept in the audit trail.",
    )(function)


def _not_blank(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    if not value.strip():
        raise click.BadParameter("it is empty; the audit trail keeps who decided and why.", ctx, parameter)
    return value.strip()


def task_argument(function: Function) -> Function:
    """Add TASK and --pipeline."""
    function = click.option("--pipeline", metavar="NAME", help="Pipeline of the task, where its id fits several.")(
        function
    )
    return click.argument("task", metavar="TASK")(function)


def providers_option(
    *,
    required: bool,
    help: str = "Dagster definitions, a provider, or a list of providers.",  # noqa: A002 - click's word
) -> Callable[[Function], Function]:
    """Add -m/--providers: which adapters can be asked about paid calls."""
    return click.option(
        "-m",
        "--providers",
        required=required,
        envvar="DAGSTER_IDEMPOTENT_PROVIDERS",
        metavar="MODULE:ATTRIBUTE",
        help=help,
    )


def pipeline_option(function: Function) -> Function:
    """Add --pipeline as a filter."""
    return click.option("--pipeline", metavar="NAME", help="Only this pipeline.")(function)


def limit_option(function: Function) -> Function:
    """Add --limit."""
    return click.option(
        "--limit", type=click.IntRange(min=1), default=200, show_default=True, help="Print at most so many rows."
    )(function)


def amount(value: str) -> Money:
    """Parse an amount with its currency, `2.00 USD`; a wrong one is a usage error."""
    try:
        return Money.parse(value).non_negative(field="amount")
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from error


def duration(value: str) -> timedelta:
    """Parse a duration, `90d` or `1h30m`; a wrong one is a usage error."""
    try:
        return backoff.duration(value, field="duration")
    except ConfigurationError as error:
        raise click.BadParameter(error.message) from error
