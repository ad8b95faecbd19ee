"""`calls`: the paid calls of tasks, and an operator's word about those in doubt."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import BinaryIO

import click

from dagster_idempotent.cli.asking import Asked, DecidingOnTask, asking, deciding_on_task
from dagster_idempotent.cli.failures import NeedsOperator, UsersCode, failures_told
from dagster_idempotent.cli.loading import load_providers
from dagster_idempotent.cli.options import (
    amount,
    dry_run_option,
    limit_option,
    pipeline_option,
    providers_option,
    task_argument,
)
from dagster_idempotent.cli.output import print_rows, say
from dagster_idempotent.cli.payloads import hand_out, output_option
from dagster_idempotent.cli.verbs import Noun
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import SubmissionState
from dagster_idempotent.engine import payloads, remote_jobs, resolutions
from dagster_idempotent.engine.listing import find_task, unknown_call
from dagster_idempotent.engine.operator_look_up import look_up
from dagster_idempotent.engine.resolutions import Evidence, Proof
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import listing

COLUMNS = (
    "pipeline",
    "task_id",
    "call_key",
    "submission",
    "state",
    "provider",
    "sends",
    "cost",
    "currency",
    "reserved",
    "settled_by",
    "late",
)
SHOW_COLUMNS = (*COLUMNS[3:], "idempotency_key", "remote_ref", "intended_at", "settles_at", "error")


@click.group(cls=Noun)
def command() -> None:
    """Paid calls: list, look up at the provider, resolve, cancel, abandon, send again knowingly."""


@command.command("list")
@asking
@pipeline_option
@click.option("--task", metavar="TASK", help="Only the calls of this task.")
@click.option("--period", metavar="ID", help="Only this period.")
@click.option("--state", type=click.Choice([str(state) for state in SubmissionState]), help="Only this state.")
@click.option("--unsettled", is_flag=True, help="Only calls whose outcome is not known yet.")
@click.option("--min-cost", metavar="AMOUNT", help="Only answers that cost at least so much, in any currency.")
@limit_option
def list_(
    asked: Asked,
    *,
    pipeline: str | None,
    task: str | None,
    period: str | None,
    state: str | None,
    unsettled: bool,
    min_cost: str | None,
    limit: int,
) -> None:
    """List submissions: every send of every call.

    Example:
      dagster-idempotent calls list --unsettled
      dagster-idempotent calls list --period 2026-W32 --min-cost 0.50
    """
    least = None if min_cost is None else _amount(min_cost)
    with asked.opened() as database:
        ref = None if task is None else find_task(database, task, pipeline=pipeline)
        rows = database.run(
            lambda c: listing.calls(
                c,
                pipeline=pipeline if ref is None else ref.pipeline,
                task_id=None if ref is None else ref.task_id,
                period=period,
                state=state,
                min_cost=least,
                unsettled=unsettled,
                limit=limit,
            )
        )
        print_rows(rows, COLUMNS, as_json=asked.as_json, nothing="No call fits.")


@command.command()
@asking
@task_argument
@click.argument("call", metavar="CALL")
def show(asked: Asked, *, task: str, pipeline: str | None, call: str) -> None:
    """Show every submission of one call, with its key at the provider.

    Example:
      dagster-idempotent calls show 2026-W32-0 summary
    """
    with asked.opened() as database:
        ref = find_task(database, task, pipeline=pipeline)
        rows = database.run(lambda c: listing.calls(c, pipeline=ref.pipeline, task_id=ref.task_id, call_key=call))
        if not rows:
            raise unknown_call(database, ref, call)
        print_rows(rows, SHOW_COLUMNS, as_json=asked.as_json, nothing="")


@command.command()
@asking
@task_argument
@click.argument("call", metavar="CALL")
@click.option(
    "--submission", type=click.IntRange(min=1), help="The answer to this send.  [default: the one that is replayed]"
)
@output_option
def answer(
    asked: Asked, *, task: str, pipeline: str | None, call: str, submission: int | None, output: Path | None
) -> None:
    """Print the stored answer of a call, byte for byte, also one that was paid for and not accepted.

    Examples:
      dagster-idempotent calls answer 2026-W32-0 summary
      dagster-idempotent calls answer 2026-W32-0 summary#2 --output answer.json
    """
    with asked.opened() as database:
        found = payloads.answer(database, find_task(database, task, pipeline=pipeline), call, submission)
    hand_out(found, output=output, as_json=asked.as_json)


@command.command()
@asking
@dry_run_option
@task_argument
@click.argument("call", metavar="[CALL]", required=False)
@providers_option(required=True)
def reconcile(
    asked: Asked, *, dry_run: bool, task: str, pipeline: str | None, call: str | None, providers: str
) -> None:
    """Ask the provider about calls in doubt, and write what its answer proves. Nothing is sent.

    Exit code 3 says that a call is still in doubt; stderr says why.

    Example:
      dagster-idempotent calls reconcile 2026-W32-0 -m my_project.definitions:defs
    """
    adapters: Sequence[AnyProvider] = [] if dry_run else load_providers(providers)
    with asked.opened() as database:
        ref = find_task(database, task, pipeline=pipeline)
        with UsersCode("The provider's adapter"):
            found = look_up(database, ref, call, adapters, dry_run=dry_run)
        print_rows(
            [{"call_key": each.call_key, "provider": each.provider, "settled": each.settled} for each in found],
            ("call_key", "provider", "settled"),
            as_json=asked.as_json,
            nothing="Nothing is in doubt.",
        )
        if dry_run:
            say("Dry run: the provider was not asked.")
            return
        still = [f"{each.call_key}: {each.reason}" for each in found if not each.settled]
        if still:
            raise NeedsOperator(
                f"Still in doubt: {'; '.join(still)}. `dagster-idempotent explain {ref}` says what next."
            )


@command.command()
@deciding_on_task
@click.argument("call", metavar="CALL")
@click.option("--as", "proof", type=click.Choice([str(proof) for proof in Proof]), required=True, help="What it was.")
@click.option("--evidence", required=True, metavar="TEXT", help="What shows it: a ticket, an invoice line, a log.")
@click.option(
    "--answer",
    type=click.File("rb"),
    help="With --as succeeded: the provider's answer, byte for byte; - reads stdin. Later runs replay it.",
)
@click.option("--remote-ref", metavar="TEXT", help="The provider's own reference of the request.")
@click.option("--cost", type=amount, help='What it cost, such as "0.02 USD".')
def resolve(
    decision: DecidingOnTask,
    *,
    call: str,
    proof: str,
    evidence: str,
    answer: BinaryIO | None,
    remote_ref: str | None,
    cost: Money | None,
) -> None:
    """Settle a call in doubt by evidence from outside, such as the provider's console.

    `not_sent` and `rejected` are accepted only once no request can land any more; before that, not finding it proves
    nothing. If they are wrong, the next run pays a second time.

    Examples:
      dagster-idempotent calls resolve 2026-W32-0 summary --as not_sent --evidence "no. 812" --actor ada --reason bill
      dagster-idempotent calls resolve 2026-W32-0 summary --as succeeded --answer a.json --evidence req_9
    """
    with failures_told():
        found = Evidence(
            proof=Proof(proof),
            told=evidence,
            answer=None if answer is None else answer.read(),
            remote_ref=remote_ref,
            cost=cost,
        )
    decision.decide(resolutions.resolve, call, found)


@command.command()
@deciding_on_task
@click.argument("call", metavar="CALL")
def abandon(decision: DecidingOnTask, *, call: str) -> None:
    """Give up on the answer of a call in doubt.

    It counts as paid, at what was reserved for it. Later runs of the task stop at this call. An answer that still
    comes is kept.

    Example:
      dagster-idempotent calls abandon 2026-W32-0 summary --actor ada --reason "the provider cannot tell"
    """
    decision.decide(resolutions.abandon, call)


@command.command()
@deciding_on_task
@click.argument("call", metavar="CALL")
@click.option(
    "--may-charge-twice",
    is_flag=True,
    help="Say that you know: the first request may have been accepted, and this one may be charged on top.",
)
@click.option("--amount", type=amount, help="What the second charge may come to.  [default: what was reserved]")
def resend(decision: DecidingOnTask, *, call: str, may_charge_twice: bool, amount: Money | None) -> None:
    """Allow a call in doubt, or an abandoned one, to be sent again. THIS MAY CHARGE TWICE.

    The old submission is abandoned; the next run of the task makes a new one. `costs` counts it apart.

    Example:
      dagster-idempotent calls resend 2026-W32-0 summary --may-charge-twice --actor ada --reason "needed by nine"
    """
    if not may_charge_twice:
        raise click.UsageError(
            f"Call {call!r} may have been accepted already, and sending it again may charge twice. If that is what "
            "you decide, add --may-charge-twice."
        )
    decision.decide(resolutions.resend, call, amount=amount)


@command.command()
@deciding_on_task
@click.argument("call", metavar="CALL")
@providers_option(required=True)
def cancel(decision: DecidingOnTask, *, call: str, providers: str) -> None:
    """Ask the provider to stop a remote job. What the provider says decides.

    What the job cost stays booked. The next run of the task submits a new job; discard the task if it must not.

    Example:
      dagster-idempotent calls cancel 2026-W32-0 shot-03 -m my_project.definitions:defs --actor ada --reason "wrong cut"
    """
    asked = list(load_providers(providers))
    with UsersCode("The provider's adapter"):
        decision.decide(remote_jobs.cancel, call, asked)


@command.command()
@deciding_on_task
@click.argument("call", metavar="CALL")
def acknowledge(decision: DecidingOnTask, *, call: str) -> None:
    """Say that the double charges of a call have been seen to: refunded, or nothing more to be had.

    The asset check `nothing_charged_twice` is green again once every one has been. What was booked stays booked.

    Example:
      dagster-idempotent calls acknowledge 2026-W32-0 summary --actor ada --reason "refund 4711 received"
    """
    decision.decide(resolutions.acknowledge, call)


def _amount(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation as error:
        raise click.BadParameter(f"{text!r} is not a number.", param_hint="--min-cost") from error
