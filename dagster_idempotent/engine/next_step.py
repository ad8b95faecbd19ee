"""One thing to do next, and how the words that only a person knows are written in its command."""

from dataclasses import dataclass

from dagster_idempotent.engine.task_facts import Facts

WHO = "--actor NAME --reason TEXT"
PROVIDERS = "MODULE:ATTRIBUTE"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextStep:
    """One thing to do: `when` it is right, the command, and whether a person decides something by it."""

    when: str
    command: str
    decides: bool = False


def decision(when: str, command: str) -> NextStep:
    """Return a step by which a named person decides; `command` lacks only who and why."""
    return NextStep(when=when, command=f"dagster-idempotent {command} {WHO}", decides=True)


def look_again(facts: Facts, when: str) -> NextStep:
    """Return the step of asking the same question again."""
    return NextStep(when=when, command=f"dagster-idempotent explain {facts.ref}")
