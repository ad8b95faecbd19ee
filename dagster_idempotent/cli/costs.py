"""`costs`: what was paid."""

import click

from dagster_idempotent.cli.asking import Asked, asking
from dagster_idempotent.cli.options import pipeline_option
from dagster_idempotent.cli.output import print_csv, print_rows, say
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.store import listing

COLUMNS = ("name", "currency", "settled", "reserved", "adjusted", "resent", "charges", "replays", "saved")


@click.command(cls=Verb)
@asking
@pipeline_option
@click.option("--period", metavar="ID", help="Only this period.")
@click.option(
    "--by",
    type=click.Choice(["task", "period", "pipeline", "provider"]),
    default="pipeline",
    show_default=True,
    help="Total by this.",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
def command(asked: Asked, *, pipeline: str | None, period: str | None, by: str, as_csv: bool) -> None:
    """Total what was paid, exactly, by currency.

    `settled` is what was booked, adjustments included; `reserved` what calls under way or in doubt may still cost;
    `resent` the part of `settled` that operators allowed knowing that it may charge twice; `replays` how often a stored
    answer stood in for another request, and `saved` what those would have cost.

    Example:
      dagster-idempotent costs --by task --period 2026-W32 --csv
    """
    if as_csv and asked.as_json:
        raise click.UsageError("--csv and --json name two forms. Give one of them.")
    with asked.opened() as database:
        rows = database.run(lambda c: listing.costs(c, by=by, pipeline=pipeline, period=period))
        if as_csv:
            print_csv(rows, COLUMNS)
        else:
            print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="Nothing was booked.")
        unknown = database.run(lambda c: listing.unpriced(c, pipeline=pipeline, period=period))
        if unknown:
            say(f"{unknown} paid answer(s) have no known cost and are not in these totals.")
