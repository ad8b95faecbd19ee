"""`verify`: the whole ledger against its own rules."""

from collections.abc import Sequence
from pathlib import Path

import click

from dagster_idempotent.cli.failures import FAILED
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import json_option, ledger_options
from dagster_idempotent.cli.output import print_json, print_rows, say, text_of
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine.verify import Finding, verify


@click.command(cls=Verb)
@ledger_options
@json_option
@click.pass_context
def command(ctx: click.Context, *, url: str | None, folder: Path | None, as_json: bool) -> None:
    """Check the whole ledger against its own rules, in one read-only snapshot.

    Recomputes hashes, keys, states, bookings and budget counters, and counts what there is; run it before and after
    an import or a restore and compare. Two runs on one state print the same. Exit code 1 says that something
    contradicts a rule.

    Example:
      dagster-idempotent verify --json > before.json
    """
    with opened(url, folder) as database:
        found = verify(database, progress=say)
    findings, notices = _rows(found.findings), _rows(found.notices)
    if as_json:
        document = {
            "sound": found.sound,
            "rules": found.rules,
            "findings": findings,
            "notices": notices,
            "totals": found.totals,
        }
        print_json(document)
    else:
        for name, value in found.totals.items():
            click.echo(f"{name}: {text_of(value)}")
        for rows in (notices, findings):
            if rows:
                print_rows(rows, ("rule", "subject", "found"), as_json=False, nothing="")
    say(f"{found.rules} rules checked, {len(findings)} contradiction(s), {len(notices)} notice(s).")
    if findings:
        ctx.exit(FAILED)


def _rows(findings: Sequence[Finding]) -> list[dict[str, str]]:
    return [{"rule": each.rule, "subject": each.subject, "found": each.found} for each in findings]
