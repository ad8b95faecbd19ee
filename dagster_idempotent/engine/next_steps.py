"""What is safe next for a task, as commands to paste; the safest comes first."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from dagster_idempotent.domain.task import ENDED, TaskStatus
from dagster_idempotent.engine.task_facts import Facts, Row, short_time

WHO = "--actor NAME --reason TEXT"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do: `when` it is right, the command, and whether a person decides something by it."""

    when: str
    command: str
    decides: bool = False


def next_steps(facts: Facts) -> Sequence[NextStep]:
    """Return the steps for a task, the safest first."""
    steps: list[NextStep] = []
    if facts.task["frozen_reason"] and facts.status not in ENDED:
        command = f"dagster-idempotent pipelines unfreeze {facts.ref.pipeline} {WHO}"
        steps.append(NextStep(when="the reason for the freeze is gone", command=command, decides=True))
    doubtful = [step for row in facts.in_state("intended", "in_doubt") for step in _doubtful(facts, row)]
    return [*steps, *(doubtful or _by_status(facts))]


def _by_status(facts: Facts) -> Sequence[NextStep]:
    match facts.status:
        case TaskStatus.PENDING:
            return [*_abandoned(facts), _launch(facts, when="now, or wait for the task sensor")]
        case TaskStatus.RUNNING | TaskStatus.FAILED:
            return [*_abandoned(facts), *_worked_on(facts)]
        case TaskStatus.HELD:
            return _held(facts)
        case TaskStatus.DEAD:
            return _dead(facts)
        case TaskStatus.COMPLETED:
            return _completed(facts)
        case TaskStatus.DISCARDED:
            return []
        case _:
            assert_never(facts.status)


def _doubtful(facts: Facts, row: Row) -> list[NextStep]:
    if row["sending"]:
        return [
            _look_again(
                facts, f"after {short_time(row['sender_expires_at'])}: the sender of {row['call_key']} is alive"
            )
        ]
    call = f"{facts.ref} {shlex.quote(row['call_key'])}"
    where = f"the provider's records for the key {row['idempotency_key']}"
    if row["remote_ref"]:
        where += f" or the reference {row['remote_ref']}"
    steps: list[NextStep] = []
    if row["lookup"] == "exact":
        command = f"dagster-idempotent calls reconcile {call} -m MODULE:ATTRIBUTE"
        steps.append(NextStep(when="first: the provider can be asked; nothing is sent", command=command))
    if row["lookup"] == "fuzzy":
        command = f"dagster-idempotent calls reconcile {call} -m MODULE:ATTRIBUTE"
        steps.append(NextStep(when="first: the provider shows possible matches; it settles nothing", command=command))
    resolve = f"dagster-idempotent calls resolve {call}"
    steps.append(
        NextStep(
            when=f"{where} show the answer",
            command=f"{resolve} --as succeeded --answer FILE --evidence TEXT {WHO}",
            decides=True,
        )
    )
    steps.append(
        NextStep(
            when=f"{where} show it unfinished",
            command=f"{resolve} --as accepted --remote-ref REFERENCE --evidence TEXT {WHO}",
            decides=True,
        )
    )
    if row["settles_at"] > facts.now:
        when = f"before {short_time(row['settles_at'])} not finding it proves nothing: the request may still land"
        steps.append(_look_again(facts, when))
    else:
        steps.append(
            NextStep(
                when=f"{where} show for certain that it never arrived",
                command=f"{resolve} --as not_sent --evidence TEXT {WHO}",
                decides=True,
            )
        )
    bound = "its unknown cost" if row["reserved"] is None else f"{row['reserved']:f} {row['reserved_currency']}"
    steps.append(
        NextStep(
            when=f"nobody can tell, and the answer can be done without; it counts as paid ({bound})",
            command=f"dagster-idempotent calls abandon {call} {WHO}",
            decides=True,
        )
    )
    steps.append(
        NextStep(
            when=f"nobody can tell, the answer is needed, and paying {bound} twice is acceptable",
            command=f"dagster-idempotent calls resend {call} --may-charge-twice {WHO}",
            decides=True,
        )
    )
    return steps


def _abandoned(facts: Facts) -> list[NextStep]:
    """List what may be done about calls at which every run stops, since an operator gave up on them."""
    return [
        NextStep(
            when=f"the answer of the abandoned call {row['call_key']} is needed, and paying twice is acceptable",
            command=f"dagster-idempotent calls resend {facts.ref} {shlex.quote(row['call_key'])} "
            f"--may-charge-twice {WHO}",
            decides=True,
        )
        for row in facts.in_state("abandoned")
        if not row["resend_allowed_by"] and not row["late"]
    ]


def _held(facts: Facts) -> list[NextStep]:
    task, ref = facts.task, facts.ref
    discard = NextStep(
        when="its result is not needed any more",
        command=f"dagster-idempotent dead-letters discard {ref} {WHO}",
        decides=True,
    )
    if task["held_for"] == "budget":
        raising = f'dagster-idempotent budgets set {ref.pipeline} "AMOUNT {task["currency"] or "CURRENCY"}" '
        return [
            NextStep(
                when="which limit is full",
                command=f"dagster-idempotent budgets show --pipeline {ref.pipeline} --all",
            ),
            NextStep(
                when="the spending is right: raise the limit of the task (or --period, or the pipeline)",
                command=f"{raising}--task {ref.task_id} {WHO}",
                decides=True,
            ),
            NextStep(
                when="there is room: let it go on",
                command=f"dagster-idempotent budgets release {ref} {WHO}",
                decides=True,
            ),
            discard,
        ]
    if task["gate"] == "spend" and not task["gate_open"]:
        return [_approve(facts), discard]
    return [*_abandoned(facts), _launch(facts, when="now: nothing is left to wait for"), discard]


def _worked_on(facts: Facts) -> list[NextStep]:
    task = facts.task
    expires = task["lease_expires_at"]
    if expires is not None and expires <= facts.now:
        return [_launch(facts, when="now: the lease has expired")]
    release = NextStep(
        when=f"run {task['owner']} will not come back, for certain",
        command=f"dagster-idempotent tasks release {facts.ref} {WHO}",
    )
    return [_look_again(facts, f"while run {task['owner']} works"), release]


def _dead(facts: Facts) -> list[NextStep]:
    redrive = NextStep(
        when="what made it fail is mended; paid answers are replayed",
        command=f"dagster-idempotent dead-letters redrive {facts.ref} {WHO}",
        decides=True,
    )
    discard = NextStep(
        when="its result is not needed any more",
        command=f"dagster-idempotent dead-letters discard {facts.ref} {WHO}",
        decides=True,
    )
    accepted = [
        _look_again(facts, f"call {row['call_key']} was accepted and is not fetched: redrive, then launch")
        for row in facts.in_state("accepted")
    ]
    return [*accepted, *_abandoned(facts), redrive, *([] if accepted else [discard])]


def _completed(facts: Facts) -> list[NextStep]:
    steps: list[NextStep] = []
    for row in facts.messages:
        channel = shlex.quote(row["channel"])
        resolve = f"dagster-idempotent outbox resolve {facts.ref} {channel}"
        match row["state"]:
            case "in_doubt":
                for found in ("delivered", "not_delivered"):
                    command = f"{resolve} --as {found} --evidence TEXT {WHO}"
                    when = f"looking where {row['channel']} delivers shows that it was {found.replace('_', ' ')}"
                    steps.append(NextStep(when=when, command=command, decides=True))
            case "dead":
                command = f"{resolve} --as not_delivered --evidence TEXT {WHO}"
                when = f"what kept {row['channel']} from delivering is mended"
                steps.append(NextStep(when=when, command=command, decides=True))
            case "ready":
                steps.append(_launch(facts, when=f"now, or wait for the outbox sensor: {row['channel']} is ready"))
            case _:
                pass
    if any(row["state"] == "waiting" for row in facts.messages) and not facts.task["gate_open"]:
        steps.append(_approve(facts))
    return steps


def _approve(facts: Facts) -> NextStep:
    return NextStep(
        when="a named person has looked at what this hash stands for",
        command=f"dagster-idempotent approvals approve {facts.ref} --shown {facts.task['shown_sha256']} {WHO}",
        decides=True,
    )


def _launch(facts: Facts, *, when: str) -> NextStep:
    """Launch it again as it was launched first; the same partition is the same task."""
    launch: Mapping[str, Any] = facts.task["launch"] or {}
    job = launch.get("job")
    if not job:
        return NextStep(when=when, command=f"launch the job of {facts.ref.pipeline} for this task again in Dagster")
    if launch.get("partition_key"):
        partition = shlex.quote(str(launch["partition_key"]))
        return NextStep(when=when, command=f"dagster job backfill -j {job} --partitions {partition} --noprompt")
    config = shlex.quote(json.dumps({"ops": launch.get("ops") or {}}))
    tags = ""
    if facts.task["scheduled_at"] is not None:
        # Without a partition the tick's time travels in a tag.
        tag = {"dagster-idempotent/scheduled_at": facts.task["scheduled_at"].isoformat()}
        if facts.task["subject"]:
            tag["dagster-idempotent/subject"] = facts.task["subject"]
        tags = f" --tags {shlex.quote(json.dumps(tag))}"
    return NextStep(when=when, command=f"dagster job launch -j {job} --config-json {config}{tags}")


def _look_again(facts: Facts, when: str) -> NextStep:
    return NextStep(when=when, command=f"dagster-idempotent explain {facts.ref}")
