"""`calls cancel`: asking a provider to stop a remote job."""

from pathlib import Path

import click

from dagster_idempotent.cli.decided import tell
from dagster_idempotent.cli.failures import UsersCode
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.loading import load_providers
from dagster_idempotent.cli.options import (
    decision_options,
    json_option,
    ledger_options,
    providers_option,
    task_argument,
)
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine import remote_jobs
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.listing import find_task


@click.command(cls=Verb)
@ledger_options
@json_option
@decision_options
@task_argument
@click.argument("call", metavar="CALL")
@providers_option
def cancel(
    *,
    url: str | None,
    folder: Path | None,
    as_json: bool,
    actor: str,
    reason: str,
    dry_run: bool,
    task: str,
    pipeline: str | None,
    call: str,
    providers: str,
) -> None:
    """Ask the provider to stop a remote job. What the provider says decides.

    What the job cost stays booked. The next run of the task submits a new job; discard the task if it must not.

    Example:
      dagster-idempotent calls cancel 2026-W32-0 shot-03 -m my_project.definitions:defs --actor ada --reason "wrong cut"
    """
    asked = load_providers(providers)
    with opened(url, folder) as database:
        ref = find_task(database, task, pipeline=pipeline)
        who = Who(actor=actor, reason=reason)
        with UsersCode("The provider's adapter"):
            decision = remote_jobs.cancel(database, ref, call, list(asked), who=who, dry_run=dry_run)
        tell(decision, as_json=as_json)
