"""What most commands ask for, given to their functions as one object: a ledger, who decides, a task."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import Any

from dagster_idempotent.cli.decided import tell
from dagster_idempotent.cli.ledger import opened
from dagster_idempotent.cli.options import decision_options, json_option, ledger_options, task_argument
from dagster_idempotent.engine.decisions import Decision, Who
from dagster_idempotent.engine.listing import find_task
from dagster_idempotent.store.database import Database

Body = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Which ledger a command works on, and how it prints."""

    url: str | None
    folder: Path | None
    as_json: bool

    def opened(self, *, any_version: bool = False) -> AbstractContextManager[Database]:
        """Open the ledger for the command."""
        return opened(self.url, self.folder, any_version=any_version)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding(Asked):
    """Who decides, and why; in a dry run everything is undone."""

    actor: str
    reason: str
    dry_run: bool

    @property
    def who(self) -> Who:
        """Who decides, as the ledger records it."""
        return Who(actor=self.actor, reason=self.reason)

    def decide(self, verb: Callable[..., Decision], *about: object, **more: object) -> None:
        """Open the ledger, decide, and tell what was decided."""
        with self.opened() as database:
            self._told(verb(database, *about, **more, who=self.who, dry_run=self.dry_run))

    def _told(self, decision: Decision) -> None:
        tell(decision, as_json=self.as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingOnTask(Deciding):
    """A decision about one task, by any of its names."""

    task: str
    pipeline: str | None

    def decide(self, verb: Callable[..., Decision], *about: object, **more: object) -> None:
        """Open the ledger, find the task, decide about it, and tell what was decided."""
        with self.opened() as database:
            ref = find_task(database, self.task, pipeline=self.pipeline)
            self._told(verb(database, ref, *about, **more, who=self.who, dry_run=self.dry_run))


def asking(function: Body) -> Body:
    """Add the options of Asked; the function takes one instead of them."""
    return ledger_options(json_option(_gathered(function, Asked)))


def deciding(function: Body) -> Body:
    """Add the options of Deciding; the function takes one instead of them."""
    return ledger_options(json_option(decision_options(_gathered(function, Deciding))))


def deciding_on_task(function: Body) -> Body:
    """Add TASK and the options of DecidingOnTask; the function takes one instead of them."""
    return ledger_options(json_option(decision_options(task_argument(_gathered(function, DecidingOnTask)))))


def _gathered(function: Body, kind: type[Asked]) -> Body:
    names = [field.name for field in fields(kind)]

    @wraps(function)
    def command(*arguments: object, **options: Any) -> object:  # noqa: ANN401 - whatever click gives
        asked = kind(**{name: options.pop(name) for name in names})
        return function(asked, *arguments, **options)

    return command
