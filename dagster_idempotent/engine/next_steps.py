"""What is safe next for a task, as commands to paste; the safest comes first."""

import shlex
from collections.abc import Sequence
from typing import assert_never

from dagster_idempotent.domain.task import ENDED, TaskStatus
from dagster_idempotent.engine import call_steps
from dagster_idempotent.engine.launch_step import launch_again
from dagster_idempotent.engine.next_step import PROVIDERS, NextStep, decision, look_again
from dagster_idempotent.engine.task_facts import Facts, Row, short_time, shown_at_the_gate

__all__ = ["NextStep", "next_steps"]


def next_steps(facts: Facts, *, providers: str = PROVIDERS) -> Sequence[NextStep]:
    """Return the steps for a task, the safest first; `providers` names the adapters that can be asked."""
    doubtful = [
        step for row in facts.in_state("intended", "in_doubt") for step in call_steps.in_doubt(facts, row, providers)
    ]
    steps = doubtful or [*_by_status(facts, providers), *call_steps.accepted(facts, providers)]
    return [*_frozen(facts, providers), *steps, *call_steps.charged_twice(facts)]


def _frozen(facts: Facts, providers: str) -> list[NextStep]:
    if not facts.task["frozen_reason"] or facts.status in ENDED:
        return []
    compare = f"dagster-idempotent verify --against-provider -m {shlex.quote(providers)}"
    return [
        NextStep(when="after a failover: the ledger has to agree with its providers; this only reads", command=compare),
        decision("the reason for the freeze is gone", f"pipelines unfreeze {facts.ref.pipeline}"),
    ]


def _by_status(facts: Facts, providers: str) -> Sequence[NextStep]:
    match facts.status:
        case TaskStatus.PENDING:
            if facts.spent:
                return [*call_steps.abandoned(facts), launch_again(facts, providers, when=_SPENT)]
            return [
                *call_steps.abandoned(facts),
                launch_again(facts, providers, when="now, or wait for the task sensor"),
            ]
        case TaskStatus.RUNNING | TaskStatus.FAILED:
            return [*call_steps.abandoned(facts), *_worked_on(facts, providers)]
        case TaskStatus.HELD:
            return _held(facts, providers)
        case TaskStatus.DEAD:
            return _dead(facts)
        case TaskStatus.COMPLETED:
            return _completed(facts, providers)
        case TaskStatus.DISCARDED:
            return []
        case _:
            assert_never(facts.status)


_SPENT = "its attempts are spent: the next run, or the task sensor, makes it a dead letter, which can be redriven"


def _held(facts: Facts, providers: str) -> list[NextStep]:
    discard = decision("its result is not needed any more", f"dead-letters discard {facts.ref}")
    if facts.task["held_for"] == "budget":
        return [*_over_budget(facts), discard]
    if facts.waits_for_approval:
        return [*_approve(facts), discard]
    return [
        *call_steps.abandoned(facts),
        launch_again(facts, providers, when="now: nothing is left to wait for"),
        discard,
    ]


def _over_budget(facts: Facts) -> list[NextStep]:
    pipeline, ref = facts.ref.pipeline, facts.ref
    steps = [
        NextStep(
            when="which limit is full, and what the call wanted (`evidence` names it)",
            command=f"dagster-idempotent budgets show --pipeline {pipeline} --all",
        )
    ]
    for row in facts.budgets:
        kind, _, name = row["scope"].partition(":")
        narrowed = f" --{kind} {name}" if name else ""
        steps.append(
            decision(
                f"that is the limit of the {kind} ({row['left']:f} of {row['limit']:f} {row['currency']} are left) and "
                "the spending is right: raise it",
                f'budgets set {pipeline} "AMOUNT {row["currency"]}"{narrowed}',
            )
        )
    return [*steps, decision("there is room: let it go on", f"budgets release {ref}")]


def _worked_on(facts: Facts, providers: str) -> list[NextStep]:
    task = facts.task
    owner, due = task["owner"], task["next_attempt_at"]
    if facts.spent:
        again = _SPENT
    elif facts.status is TaskStatus.FAILED:
        waits = f"; the task sensor does so after {short_time(due)}" if due is not None and due > facts.now else ""
        again = f"its run {owner} is over: a launch by a person does not wait for the backoff{waits}"
    else:
        again = f"Dagster shows that its run {owner} is over: the next run takes the task over at once"
    if not facts.leased:
        return [launch_again(facts, providers, when=_SPENT if facts.spent else "now: the lease has expired")]
    release = decision(
        f"Dagster still shows run {owner} as started and it is gone, for certain", f"tasks release {facts.ref}"
    )
    working = look_again(facts, f"run {owner} is at work: wait for it")
    return [working, launch_again(facts, providers, when=again), release]


def _dead(facts: Facts) -> list[NextStep]:
    accepted = [row["call_key"] for row in facts.in_state("accepted")]
    when = "what made it fail is mended; paid answers are replayed"
    if accepted:
        when += f", and the answer of {', '.join(accepted)}, which was accepted, is fetched"
    steps = [*call_steps.abandoned(facts), decision(when, f"dead-letters redrive {facts.ref}")]
    if not accepted:
        # Refused otherwise: a discard would hide a charge.
        steps.append(decision("its result is not needed any more", f"dead-letters discard {facts.ref}"))
    return steps


def _completed(facts: Facts, providers: str) -> list[NextStep]:
    steps = [step for row in facts.messages for step in _message(facts, row, providers)]
    if any(row["state"] == "waiting" for row in facts.messages) and not facts.task["gate_open"]:
        steps += _approve(facts)
    return steps


def _message(facts: Facts, row: Row, providers: str) -> list[NextStep]:
    name = row["channel"]
    resolve = f"outbox resolve {facts.ref} {shlex.quote(name)}"
    match row["state"]:
        case "in_doubt":
            return [
                decision(
                    f"looking where {name} delivers shows that it was {found.replace('_', ' ')}",
                    f"{resolve} --as {found} --evidence TEXT",
                )
                for found in ("delivered", "not_delivered")
            ]
        case "dead" if name not in facts.given_up:
            mended = f"what kept {name} from delivering is mended"
            return [decision(mended, f"{resolve} --as not_delivered --evidence TEXT")]
        case "ready":
            return [launch_again(facts, providers, when=f"now, or wait for the outbox sensor: {name} is ready")]
        case "sending" if row["sending"]:
            return [look_again(facts, f"after {short_time(row['sender_expires_at'])}: {name} is being delivered")]
        case "sending":
            return [
                launch_again(
                    facts, providers, when=f"now, or wait for the outbox sensor: what delivered {name} is gone"
                )
            ]
        case _:
            return []


def _approve(facts: Facts) -> list[NextStep]:
    approve = decision(
        "a named person has looked at what this hash stands for",
        f"approvals approve {facts.ref} --shown {facts.task['shown_sha256']}",
    )
    kept = shown_at_the_gate(facts.task)
    if kept is None:
        return [approve]
    return [NextStep(when="what the hash stands for", command=f"dagster-idempotent tasks {kept} {facts.ref}"), approve]
