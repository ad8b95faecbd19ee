"""`verify`: the whole ledger against its own rules."""

from collections.abc import Mapping, Sequence

import click

from dagster_idempotent.cli.asking import Asked, asking
from dagster_idempotent.cli.failures import FAILED, NeedsOperator, UsersCode
from dagster_idempotent.cli.loading import load_providers
from dagster_idempotent.cli.options import pipeline_option, providers_option
from dagster_idempotent.cli.output import print_json, print_rows, say, text_of
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine.listing import check_pipeline
from dagster_idempotent.engine.provider_check import Comparison, compare
from dagster_idempotent.engine.verify import Finding, verify
from dagster_idempotent.store.rows import Row


@click.command(cls=Verb)
@asking
@pipeline_option
@click.option(
    "--against-provider",
    is_flag=True,
    help="Also ask the providers about every call, and compare references and costs; needs --providers.",
)
@providers_option(required=False, help="Whom --against-provider asks: Dagster definitions, a provider, or a list.")
def command(asked: Asked, *, pipeline: str | None, against_provider: bool, providers: str | None) -> None:
    """Check the whole ledger against its own rules, in one read-only snapshot.

    Recomputes hashes, keys, states, bookings and budget counters, and counts what there is; run it before and after
    an import or a restore and compare. Two runs on one state print the same. Exit code 1 says that something
    contradicts a rule.

    With --against-provider every provider that can look up is asked about every key, also of calls that unfinished
    tasks have not made as far as the ledger knows: after a failover their charges may stand at the provider alone.
    Nothing is sent or written. --pipeline narrows this part. Exit code 3 says that look-ups brought no answer.

    Examples:
      dagster-idempotent verify --json > before.json
      dagster-idempotent verify --against-provider -m my_project.definitions:defs
    """
    if against_provider and providers is None:
        raise click.UsageError("--against-provider asks providers: name them by --providers MODULE:ATTRIBUTE.")
    adapters = load_providers(providers) if against_provider and providers is not None else None
    compared = Comparison()
    with asked.opened() as database:
        if pipeline is not None:
            check_pipeline(database, pipeline)
        found = verify(database, progress=lambda rule: say(f"checking that {rule}"))
        if adapters is not None:
            with UsersCode("The provider's adapter"):
                compared = compare(database, adapters, pipeline=pipeline, progress=say)
    findings, notices = _rows([*found.findings, *compared.findings]), _rows([*found.notices, *compared.notices])
    totals = dict(found.totals) | ({} if adapters is None else {"look_ups": compared.asked})
    _print(found.rules, findings, notices, totals, as_json=asked.as_json)
    say(f"{found.rules} rules checked, {len(findings)} contradiction(s), {len(notices)} notice(s).")
    if findings:
        click.get_current_context().exit(FAILED)
    if compared.unanswered:
        raise NeedsOperator(
            f"{compared.unanswered} of {compared.asked} look-ups brought no answer: those calls were not compared. Run "
            "it again once the provider answers."
        )


def _print(
    rules: int, findings: Sequence[Row], notices: Sequence[Row], totals: Mapping[str, object], *, as_json: bool
) -> None:
    if as_json:
        print_json({"sound": not findings, "rules": rules, "findings": findings, "notices": notices, "totals": totals})
        return
    for name, value in totals.items():
        click.echo(f"{name}: {text_of(value)}")
    for rows in (notices, findings):
        if rows:
            print_rows(rows, ("rule", "subject", "found"), as_json=False, nothing="")


def _rows(findings: Sequence[Finding]) -> list[Row]:
    return [{"rule": each.rule, "subject": each.subject, "found": each.found} for each in findings]
