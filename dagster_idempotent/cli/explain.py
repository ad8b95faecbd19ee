"""`explain`: who holds what and why, and what is safe to do next."""

import click

from dagster_idempotent.cli.asking import Asked, asking
from dagster_idempotent.cli.failures import NEEDS_OPERATOR
from dagster_idempotent.cli.options import providers_option
from dagster_idempotent.cli.output import print_json, text_of
from dagster_idempotent.cli.verbs import Verb
from dagster_idempotent.engine.explain import Explanation, explain
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.engine.next_step import PROVIDERS


@click.command(cls=Verb)
@asking
@click.argument("key_or_task", metavar="KEY_OR_TASK")
@click.option("--pipeline", metavar="NAME", help="Pipeline of the task, where its id fits several.")
@providers_option(
    required=False, help="Who can be asked about paid calls; written into the commands that ask them. Not loaded here."
)
def command(asked: Asked, *, key_or_task: str, pipeline: str | None, providers: str | None) -> None:
    """Say who holds a task, since when, on which evidence, what running it again would do and cost, and what is safe.

    KEY_OR_TASK is a task id, PIPELINE/TASK_ID, an allocation key, a run id, a Dagster run id, an idempotency key or a
    reference of the provider. Exit code 3 says that somebody has to decide.

    Examples:
      dagster-idempotent explain 2026-W32-0
      dagster-idempotent explain weekly_digest/2026-08-03T00:00:00Z/subject=acme
    """
    with asked.opened() as database:
        found = explain(database, find_task(database, key_or_task, pipeline=pipeline), providers=providers or PROVIDERS)
    if asked.as_json:
        print_json(_document(found))
    else:
        _print(found)
    if found.needs_operator:
        click.get_current_context().exit(NEEDS_OPERATOR)


def _document(found: Explanation) -> dict[str, object]:
    return {
        "pipeline": found.task.pipeline,
        "task_id": found.task.task_id,
        "status": str(found.status),
        "headline": found.headline,
        "since": found.since,
        "holder": found.holder,
        "evidence": list(found.evidence),
        "rerun": {
            "would": found.rerun,
            "sends": list(found.rerun_sends),
            "costs_at_most": [str(money) for money in found.rerun_cost],
        },
        "next": [{"when": step.when, "command": step.command, "decides": step.decides} for step in found.next],
        "needs_operator": found.needs_operator,
    }


def _print(found: Explanation) -> None:
    click.echo(f"{found.task} is {found.status}. {found.headline}")
    if found.since is not None:
        click.echo(f"since     {text_of(found.since)}")
    if found.holder:
        click.echo(f"holder    {found.holder}")
    for line in found.evidence:
        click.echo(f"evidence  {' '.join(line.split())}")
    cost = f" Known calls may cost at most {', '.join(map(str, found.rerun_cost))}." if found.rerun_cost else ""
    click.echo(f"run again {found.rerun}{cost}")
    for number, step in enumerate(found.next, 1):
        click.echo(f"next {number}    if {step.when}:")
        click.echo(f"            {step.command}")
    if not found.next:
        click.echo("next      nothing is to be done")
