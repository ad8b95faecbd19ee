"""What is safe next about the paid calls of a task: in doubt, accepted and not fetched, or given up on."""

import shlex

from dagster_idempotent.domain.task import ENDED, TaskStatus
from dagster_idempotent.engine.launch_step import launch_again
from dagster_idempotent.engine.next_step import NextStep, decision, look_again
from dagster_idempotent.engine.task_facts import Facts, Row, short_time


def in_doubt(facts: Facts, row: Row, providers: str) -> list[NextStep]:
    """List what may be done about a call whose outcome nobody knows: evidence first, money last."""
    if row["sending"]:
        return [
            look_again(facts, f"after {short_time(row['sender_expires_at'])}: the sender of {row['call_key']} is alive")
        ]
    steps = [*_asked(facts, row, providers), *_sent_again(facts, row, providers)]
    return [*steps, *_by_evidence(facts, row), *_without_evidence(facts, row)]


def abandoned(facts: Facts) -> list[NextStep]:
    """List what may be done about calls at which every run stops, since an operator gave up on them."""
    return [
        decision(
            f"the answer of the abandoned call {row['call_key']} is needed, and paying twice is acceptable",
            f"calls resend {_call(facts, row)} --may-charge-twice",
        )
        for row in facts.in_state("abandoned")
        if not row["resend_allowed_by"] and not row["late"]
    ]


def accepted(facts: Facts, providers: str) -> list[NextStep]:
    """List what may be done about accepted jobs that never end here: forgotten, their result lost, or not wanted."""
    steps: list[NextStep] = []
    for row in facts.in_state("accepted"):
        call, where = _call(facts, row), _where(row)
        # Of a task that is at its end nothing is sent any more.
        after = "" if facts.status in ENDED else ", and the next run submits a new one"
        steps += [
            decision(
                f"{where} show the answer of {row['call_key']}, and no run can fetch it",
                f"calls resolve {call} --as succeeded --answer FILE --evidence TEXT",
            ),
            decision(
                f"{where} show that {row['call_key']} is over or forgotten for good: its cost stays{after}",
                f"calls resolve {call} --as failed --evidence TEXT",
            ),
            decision(
                f"the job of {row['call_key']} is not wanted any more: the provider is asked to stop it{after}",
                f"calls cancel {call} -m {shlex.quote(providers)}",
            ),
        ]
    return steps


def charged_twice(facts: Facts) -> list[NextStep]:
    """List what remains to do about double charges: money back, and a word that it was seen to."""
    return [
        decision(
            f"the double charge of {call} was refunded, or nothing more is to be had",
            f"calls acknowledge {facts.ref} {shlex.quote(call)}",
        )
        for call in dict.fromkeys(str(row["call_key"]) for row in facts.charged_twice)
    ]


def _call(facts: Facts, row: Row) -> str:
    return f"{facts.ref} {shlex.quote(row['call_key'])}"


def _where(row: Row) -> str:
    where = f"the provider's records for the key {row['idempotency_key']}"
    return f"{where} or the reference {row['remote_ref']}" if row["remote_ref"] else where


def _asked(facts: Facts, row: Row, providers: str) -> list[NextStep]:
    whens = {
        "exact": "first: the provider can be asked; nothing is sent",
        "fuzzy": "first: the provider shows possible matches; it settles nothing",
    }
    if row["lookup"] not in whens:
        return []
    command = f"dagster-idempotent calls reconcile {_call(facts, row)} -m {shlex.quote(providers)}"
    return [NextStep(when=whens[row["lookup"]], command=command)]


def _sent_again(facts: Facts, row: Row, providers: str) -> list[NextStep]:
    """Offer a run that may send the same request under the same key, which its provider takes for one."""
    waits_for_a_person = facts.task["held_for"] in ("in_doubt", "budget") or facts.waits_for_approval
    if row["key_window"] is None or waits_for_a_person or facts.leased or facts.spent or facts.status in ENDED:
        return []
    same_key = [each for each in facts.history[row["call_key"]] if each["idempotency_key"] == row["idempotency_key"]]
    until = min(each["intended_at"] for each in same_key) + row["key_window"] - row["settle_delay"]
    if until <= facts.now or facts.task["frozen_reason"]:
        return []
    when = f"now: {row['call_key']} goes again under its key, which the provider takes for the same request until "
    return [launch_again(facts, providers, when=when + short_time(until))]


def _by_evidence(facts: Facts, row: Row) -> list[NextStep]:
    resolve, where = f"calls resolve {_call(facts, row)}", _where(row)
    steps = [decision(f"{where} show the answer", f"{resolve} --as succeeded --answer FILE --evidence TEXT")]
    if row["lookup"] == "exact":
        # Of a provider that cannot be asked nobody would ever fetch the answer.
        steps.append(
            decision(f"{where} show it unfinished", f"{resolve} --as accepted --remote-ref REFERENCE --evidence TEXT")
        )
    if row["settles_at"] > facts.now:
        when = f"after {short_time(row['settles_at'])}: until then it may still land, and not finding it proves nothing"
        return [*steps, look_again(facts, when)]
    never = f"{where} show for certain that it never arrived"
    return [*steps, decision(never, f"{resolve} --as not_sent --evidence TEXT")]


def _without_evidence(facts: Facts, row: Row) -> list[NextStep]:
    bound = "its unknown cost" if row["reserved"] is None else f"{row['reserved']:f} {row['reserved_currency']}"
    steps = [
        decision(
            f"nobody can tell, and the answer can be done without; it counts as paid ({bound})",
            f"calls abandon {_call(facts, row)}",
        )
    ]
    # Nothing would send a call of a task that is at its end.
    if facts.status not in (TaskStatus.COMPLETED, TaskStatus.DISCARDED):
        steps.append(
            decision(
                f"nobody can tell, the answer is needed, and paying {bound} twice is acceptable",
                f"calls resend {_call(facts, row)} --may-charge-twice",
            )
        )
    return steps
