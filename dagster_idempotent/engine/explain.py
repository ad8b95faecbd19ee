"""What holds a task, on which evidence, what a re-execution now would do and cost, and what is safe next."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.task import ENDED, TaskStatus
from dagster_idempotent.engine.next_step import PROVIDERS, NextStep
from dagster_idempotent.engine.next_steps import next_steps
from dagster_idempotent.engine.task_facts import LATE, Facts, Row, look, short_time
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.listing import TaskRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The answer to "what is going on here?"; `next` starts with the safest step."""

    task: TaskRef
    status: TaskStatus
    headline: str
    since: datetime | None
    holder: str | None
    evidence: Sequence[str]
    rerun: str
    rerun_sends: Sequence[str]
    rerun_cost: Sequence[Money]
    next: Sequence[NextStep]
    needs_operator: bool


def explain(database: Database, ref: TaskRef, *, providers: str = PROVIDERS) -> Explanation:
    """Explain one task; reads only. `providers` (module:attribute) is written into the commands that ask them."""
    facts = look(database, ref)
    steps = next_steps(facts, providers=providers)
    sends, costs = _rerun_sends(facts)
    return Explanation(
        task=ref,
        status=facts.status,
        headline=_headline(facts),
        since=_since(facts),
        holder=_holder(facts),
        evidence=_evidence(facts),
        rerun=_rerun(facts, sends),
        rerun_sends=sends,
        rerun_cost=costs,
        next=steps,
        needs_operator=any(step.decides for step in steps),
    )


def _headline(facts: Facts) -> str:
    task = facts.task
    texts = {
        TaskStatus.PENDING: "It waits for a run to claim it; nobody works on it.",
        TaskStatus.RUNNING: "A Dagster run works on it.",
        TaskStatus.FAILED: "Its last attempt failed; another may follow.",
        TaskStatus.HELD: {
            "in_doubt": "It is held: a paid request may or may not have been accepted, and only evidence settles that.",
            "gate": "It is held: a named person has to approve the spending first."
            if facts.waits_for_approval
            else "It was held, and no approval is missing.",
            "budget": "It is held: what its next call may cost does not fit a limit.",
        }.get(task["held_for"] or "", "It is held."),
        TaskStatus.DEAD: "It is a dead letter: its attempts are spent, or a retry cannot help.",
        TaskStatus.COMPLETED: "It is completed; its result is final.",
        TaskStatus.DISCARDED: "An operator discarded it; that is final.",
    }
    frozen = f" Its pipeline is frozen: {task['frozen_reason']}." if task["frozen_reason"] else ""
    return texts[facts.status] + frozen


def _since(facts: Facts) -> datetime | None:
    task = facts.task
    if facts.status is TaskStatus.COMPLETED:
        return task["completed_at"]
    doubtful = [row["intended_at"] for row in facts.in_state("intended", "in_doubt", "accepted")]
    if doubtful:
        return min(doubtful)
    decided = [row["at"] for row in facts.audit]
    return max(decided) if decided else task["created_at"]


def _holder(facts: Facts) -> str | None:
    task = facts.task
    if facts.status not in (TaskStatus.RUNNING, TaskStatus.FAILED):
        return None
    expires = task["lease_expires_at"]
    until = "with no end" if expires is None else f"until {short_time(expires)}" if expires > facts.now else "expired"
    return f"Dagster run {task['owner']} (lease {until}, fencing token {task['fencing_token']})"


def _evidence(facts: Facts) -> list[str]:
    task = facts.task
    lines = [f"attempt {task['attempts']} of {task['max_attempts']}"]
    if task["error"]:
        lines.append(f"last error: {task['error']}")
    lines += [_call_line(row, facts.now) for row in facts.calls]
    lines += [_red_line(row) for row in facts.charged_twice]
    lines += [_possible_line(row) for row in facts.sightings if row["kind"] == "possible"]
    lines += [f"message {row['channel']}: {row['state']}" for row in facts.messages]
    lines += [f"{short_time(row['at'])} {row['actor']}: {row['action']} ({row['reason']})" for row in facts.audit[:3]]
    return lines


def _red_line(row: Row) -> str:
    call = f"RED: call {row['call_key']}, submission {row['submission']}"
    if row["remote_ref"] == LATE:
        return f"{call}: a paid answer came late, beside another one"
    return f"{call}: the provider shows {row['remote_ref']} too, which may have been charged ({row['described']})"


def _possible_line(row: Row) -> str:
    return (
        f"call {row['call_key']}, submission {row['submission']}: the look-up shows {row['remote_ref']} "
        f"({row['described']}), which may be this request"
    )


def _call_line(row: Row, now: datetime) -> str:
    line = f"call {row['call_key']}: {row['state']} (submission {row['submission']}, provider {row['provider']}, key "
    line += f"{row['idempotency_key']}, intended {short_time(row['intended_at'])}"
    if row["sends"] > 1:
        line += f", sent {row['sends']} times under this key"
    if row["remote_ref"]:
        line += f", reference {row['remote_ref']}"
    if row["cost"] is not None:
        line += f", cost {row['cost']:f} {row['currency']}"
    if row["settled_by"]:
        line += f", on the word of the {row['settled_by']}"
    if row["sending"]:
        line += f", its sender is alive until {short_time(row['sender_expires_at'])}"
    elif row["state"] in ("intended", "in_doubt") and row["settles_at"] > now:
        line += f", may still land until {short_time(row['settles_at'])}"
    if row["expected_by"] is not None:
        late = "OVERDUE: " if row["expected_by"] <= now else ""
        line += f", {late}its result was expected by {short_time(row['expected_by'])}"
    if row["error"] and row["state"] != "succeeded":
        line += f": {row['error']}"
    return line + ")"


def _rerun_sends(facts: Facts) -> tuple[list[str], list[Money]]:
    """Name the known calls that a new run would send, and what they may cost at most where that is known."""
    if facts.status in ENDED or facts.spent or facts.task["frozen_reason"]:
        return [], []
    sends: list[str] = []
    totals: dict[str, Decimal] = {}
    for row in facts.calls:
        late = any(each["late"] for each in facts.history[row["call_key"]])
        again = row["state"] in ("not_sent", "rejected", "failed") or (
            row["state"] == "abandoned" and row["resend_allowed_by"]
        )
        if again and not late:
            sends.append(row["call_key"])
            if row["reserved"] is not None:
                currency = row["reserved_currency"]
                totals[currency] = totals.get(currency, Decimal(0)) + row["reserved"]
    return sends, [Money(amount=amount, currency=currency) for currency, amount in sorted(totals.items())]


def _rerun(facts: Facts, sends: Sequence[str]) -> str:
    """Say what a re-execution now would do."""
    match facts.status:
        case TaskStatus.COMPLETED:
            return "It would return the stored result; nothing would be sent or paid."
        case TaskStatus.DEAD | TaskStatus.DISCARDED:
            return f"It would stop at once: the task is {facts.status}. Nothing would be sent or paid."
        case _ if facts.spent:
            return _rerun_spent(facts)
        case TaskStatus.RUNNING | TaskStatus.FAILED if facts.leased:
            return "Another run would stop at once, unless the holder's run is over. Nothing would be sent or paid."
        case _:
            return _rerun_calls(facts, sends)


def _rerun_spent(facts: Facts) -> str:
    if facts.in_state("intended", "in_doubt"):
        return "It would ask the provider where that has a look-up, and stop: the attempts are spent. Nothing is sent."
    return "It would make the task a dead letter: the attempts are spent. Nothing would be sent or paid."


def _rerun_calls(facts: Facts, sends: Sequence[str]) -> str:
    if facts.task["frozen_reason"]:
        return "It would replay what is stored and stop at the first new paid call: the pipeline is frozen."
    if facts.task["gate"] == "spend" and not facts.task["gate_open"]:
        return "It would stop before the first paid call: nobody has approved the spending. Nothing would be paid."
    parts: list[str] = []
    replayed = [row["call_key"] for row in facts.in_state("succeeded")]
    if replayed:
        parts.append(f"replay {', '.join(replayed)} from the ledger, free of charge")
    if doubtful := [row["call_key"] for row in facts.in_state("in_doubt", "intended")]:
        parts.append(
            f"ask the provider about {', '.join(doubtful)} where it has a look-up, and stop if that is no proof"
        )
    if accepted := [row["call_key"] for row in facts.in_state("accepted")]:
        parts.append(f"fetch the answer of {', '.join(accepted)} without submitting again")
    given_up = [row["call_key"] for row in facts.in_state("abandoned") if row["call_key"] not in sends]
    if given_up:
        parts.append(f"stop at {', '.join(given_up)}, which an operator abandoned")
    if sends:
        parts.append(f"send {', '.join(sends)} and pay for it")
    parts.append("pay for calls that it has not made yet")
    return f"It would {'; '.join(parts)}."
