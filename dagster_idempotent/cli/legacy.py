"""`legacy`: old per-week records become tasks, are mapped to their schedule, and are checked against the ledger."""

import json
from dataclasses import asdict
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import cast

import click
from pydantic import BaseModel

from dagster_idempotent.cli.failures import Failure, NeedsOperator
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import Function, decision_options, json_option, ledger_options
from dagster_idempotent.cli.output import print_facts, print_json, say
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.legacy import ACCEPTED, WithoutIdentity
from dagster_idempotent.domain.period import PeriodKind, TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import get_task
from dagster_idempotent.engine.legacy_check import check_import
from dagster_idempotent.engine.legacy_import import (
    Adapter,
    Finding,
    Import,
    Summary,
    import_records,
    map_task,
    read_weeks,
)
from dagster_idempotent.engine.legacy_import.choices import is_known
from dagster_idempotent.store.database import Database

PROGRESS = 1000


@click.group(cls=Noun)
def command() -> None:
    """Import old per-week records as tasks, map them to their schedule, check them."""


def _load_adapter(ctx: click.Context, parameter: click.Parameter, value: str | None) -> Adapter:
    if value is None:
        return read_weeks
    module, _, function = value.partition(":")
    try:
        found = cast("object", getattr(import_module(module), function))
    except (ImportError, AttributeError, ValueError) as error:
        raise click.BadParameter(f"{value!r} cannot be loaded: {error}.", ctx, parameter) from error
    if not callable(found):
        raise click.BadParameter(f"{value!r} is no function that takes a folder and yields records.", ctx, parameter)
    return cast("Adapter", found)


def _records_options(function: Function) -> Function:
    """Add what says where the records are and how they are read."""
    for decorator in (
        click.option(
            "--adapter",
            callback=_load_adapter,
            metavar="MODULE:FUNCTION",
            help="Reads records of another shape.  [default: the documented form]",
        ),
        click.option("--collection", default="", help="Name of the folder in the metadata.  [default: its own]"),
        click.option(
            "--currency", "currencies", multiple=True, help="A unit to accept beside ISO 4217; may be repeated."
        ),
        click.option(
            "--move-to",
            type=click.Path(path_type=Path, file_okay=False),
            help="Directories of imported records are renamed to MOVE_TO/TASK.  [default: they are left]",
        ),
        click.option("--pipeline", required=True, help="The pipeline whose tasks they become."),
        click.argument("records", metavar="FOLDER", type=click.Path(path_type=Path, file_okay=False, exists=True)),
    ):
        function = decorator(function)
    return function


@command.command("import")
@ledger_options
@json_option
@decision_options
@_records_options
@click.option("--timezone", help="Of the pipeline's periods; needed where the ledger does not know it yet.")
@click.option(
    "--period",
    type=click.Choice([kind.value for kind in PeriodKind]),
    default=PeriodKind.ISO_WEEK.value,
    show_default=True,
    help="What numbers the tasks, where the ledger does not know the pipeline yet.",
)
@click.option(
    "--without-identity",
    type=click.Choice([choice.value for choice in WithoutIdentity]),
    default=WithoutIdentity.REFUSE.value,
    show_default=True,
    help="Records with neither time nor key: refuse; import (allocation in their week stops until `legacy map`); or "
    "mark as unrelated to any schedule.",
)
def import_(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    records: Path,
    pipeline: str,
    move_to: Path | None,
    currencies: tuple[str, ...],
    collection: str,
    adapter: Adapter,
    timezone: str | None,
    period: str,
    without_identity: str,
) -> None:
    """Import the records of FOLDER, one task each; print a verdict for each.

    Nothing is guessed: what is ambiguous is refused with its reason (exit code 3), the rest is done. Killed and started
    again, it goes on where it was. A dry run prints the same and writes nothing.

    Example:
      dagster-idempotent legacy import ./digests --pipeline weekly_digest --dry-run --actor ada --reason history
    """
    with opened(url, folder) as database:
        what = Import(
            pipeline=_declared(database, pipeline, timezone, period),
            folder=records,
            actor=actor,
            reason=reason,
            collection=collection,
            move_to=move_to,
            without_identity=WithoutIdentity(without_identity),
            currencies=frozenset(currencies),
            adapter=adapter,
        )
        printer = _Printer(as_json=as_json)
        summary = import_records(database, what, dry_run=dry_run, tell=printer.tell)
        printer.finish(summary, dry_run=dry_run)
        if summary.refused:
            raise NeedsOperator(
                f"{summary.refused} of {summary.records} records are ambiguous and were left as they are; each says "
                "why. Mend or remove them, then import again: what is done stays done."
            )


@command.command("map")
@ledger_options
@json_option
@decision_options
@click.argument("task", metavar="TASK")
@click.option("--pipeline", required=True, help="The pipeline of the task.")
@click.option("--scheduled-at", metavar="TIME", help="The scheduled time that it had, with its timezone.")
@click.option("--key", default="", help="The explicit key that it had.")
@click.option("--unrelated", is_flag=True, help="No schedule will ever ask for it again.")
@click.option("--subject", help="Subject of the identity.  [default: the record's]")
@click.option("--version", help="Version of the identity.  [default: the record's]")
def map_(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    task: str,
    pipeline: str,
    scheduled_at: str | None,
    key: str,
    unrelated: bool,
    subject: str | None,
    version: str | None,
) -> None:
    """Say which invocation an imported task was, or that it was none; allocation in its week goes on.

    Example:
      dagster-idempotent legacy map 2026-W31-0 --pipeline weekly_digest --unrelated --actor ada --reason "by hand"
    """
    if sum((bool(scheduled_at), bool(key), unrelated)) != 1:
        raise click.UsageError("Give exactly one of --scheduled-at, --key and --unrelated.")
    with opened(url, folder) as database:
        known = get_task(database, pipeline, TaskId(task))
        identity = None
        if not unrelated:
            identity = Identity(
                pipeline=pipeline,
                subject=known.subject if subject is None else subject,
                scheduled_at=None if scheduled_at is None else _instant(scheduled_at),
                explicit_key=key,
                version=known.version if version is None else version,
            )
        mapped = map_task(
            database, known.task_id, identity, pipeline=pipeline, actor=actor, reason=reason, dry_run=dry_run
        )
        facts = {
            "task_id": mapped.task_id,
            "allocation_key": None if identity is None else identity.allocation_key,
            "unrelated": unrelated,
            "dry_run": dry_run,
        }
        print_facts(facts, as_json=as_json)
        say("Would be mapped." if dry_run else "Mapped.")


@command.command()
@ledger_options
@json_option
@_records_options
def check(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    records: Path,
    pipeline: str,
    move_to: Path | None,
    currencies: tuple[str, ...],
    collection: str,
    adapter: Adapter,
) -> None:
    """Compare the records of FOLDER (and of MOVE_TO) with what their import left in the ledger.

    Hashes of files and documents are computed again, costs, references, approvals and times compared. It reads only; a
    second run prints the same. Exit code 1 says that something differs.

    Example:
      dagster-idempotent legacy check ./digests --pipeline weekly_digest
    """
    with opened(url, folder) as database:
        what = Import(
            pipeline=pipeline,
            folder=records,
            actor="check",
            reason="check",
            collection=collection,
            move_to=move_to,
            currencies=frozenset(currencies),
            adapter=adapter,
        )
        lines: list[str] = []
        found = check_import(database, what, tell=lines.append)
        sides = {"records": asdict(found.records), "ledger": asdict(found.ledger)}
        outcome = {"not_imported": found.not_imported, "equal": found.equal}
        if as_json:
            print_json({**sides, **outcome, "differences": lines})
        else:
            flat = {f"{side}.{name}": value for side, facts in sides.items() for name, value in facts.items()}
            print_facts({**flat, **outcome}, as_json=False)
            for line in lines:
                click.echo(line)
        if not found.equal:
            raise Failure(f"{found.differences} differences between the records and the ledger; stdout names each.")


class _Printer:
    """Prints verdicts as they come, so that their number takes no memory."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._told = 0

    def tell(self, finding: Finding) -> None:
        if self._as_json:
            click.echo("," if self._told else '{"records": [')
            click.echo(json.dumps(asdict(finding), ensure_ascii=False), nl=False)
        else:
            place = finding.task_id or "-"
            note = f" ({finding.note})" if finding.note else ""
            reason = "" if finding.verdict in ACCEPTED else f"  {' '.join(finding.reason.split())}"
            click.echo(f"{finding.source}  {finding.verdict}  {place}{reason}{note}")
        self._told += 1
        if self._told % PROGRESS == 0:
            say(f"{self._told} records")

    def finish(self, summary: Summary, *, dry_run: bool) -> None:
        verdicts = {str(verdict): count for verdict, count in sorted(summary.verdicts.items())}
        if self._as_json:
            head = "" if self._told else '{"records": ['
            total = {"records": summary.records, "refused": summary.refused, "verdicts": verdicts}
            click.echo(f'{head}\n], "summary": {json.dumps(total)}, "dry_run": {json.dumps(dry_run)}}}')
        told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
        prefix = "Dry run, nothing was written: " if dry_run else ""
        say(f"{prefix}{told or 'there are no records in the folder'}.")


def _declared(database: Database, pipeline: str, timezone: str | None, period: str) -> Pipeline[BaseModel] | str:
    if timezone is None or is_known(database, pipeline, timezone):
        return pipeline
    return Pipeline(pipeline, output=BaseModel, period=PeriodKind(period), timezone=timezone)


def _instant(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r} is no time such as 2026-07-27T09:00:00Z.", param_hint="--scheduled-at"
        ) from error
