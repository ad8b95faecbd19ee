"""Many calls of one task at once: bounded, counted, each with a fate of its own."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import copy_context
from types import TracebackType
from typing import Generic, TypeVar, cast

from dagster_idempotent.domain.submission import CallKey, check_call_key
from dagster_idempotent.domain.task import HeldFor
from dagster_idempotent.engine.call_keys import call_key
from dagster_idempotent.engine.map_errors import unfinished
from dagster_idempotent.engine.work import Deferred, Work, current_work, holds_deferred
from dagster_idempotent.errors import (
    BudgetExceeded,
    CallError,
    CallInDoubt,
    CallInProgress,
    CandidateInvalid,
    ConfigurationError,
    IdempotentError,
    InvalidPayload,
    TaskHeld,
)

Item = TypeVar("Item")
Result = TypeVar("Result")
logger = logging.getLogger(__name__)
# How long the calls under way may still answer after an interrupt; schedulers kill after about half a minute.
INTERRUPT_PATIENCE = 20.0
# So many failures without one answer in between: the provider or the network is down, and each could be a charge.
FAILURES_IN_A_ROW = 50
SECONDS_BETWEEN_LINES = 15.0
LINES = 10
# What is about one call and says nothing about the others.
_SINGLE = (CallError, CandidateInvalid, InvalidPayload)


def map_calls(
    items: Iterable[Item], *, key: Callable[[Item], str], ask: Callable[[Item], Result], concurrency: int = 16
) -> list[Result]:
    """Run `ask` for every item, by guarded SDK clients, each within `call_key(key(item))`; return what it returns.

    At most `concurrency` run at a time, in threads that see the context variables of the caller. A call that is in
    doubt or refused does not stop the others; answers that are stored already cost nothing. Results come in the order
    of the items. Raises CallsUnfinished at the end where some have no answer, ConfigurationError for a key that two
    items share before anything is sent, and what stops every call (LeaseLost, TaskHeld, …) once those under way ended.
    """

    def one(name: CallKey, item: Item) -> Result:
        with call_key(name):
            return ask(item)

    return run_calls(current_work(), keyed(items, key), one, concurrency=concurrency)


def keyed(items: Iterable[Item], key: Callable[[Item], str]) -> Sequence[tuple[CallKey, Item]]:
    """Return each item with its call key; raises ConfigurationError for a key that two of them share."""
    found: dict[CallKey, Item] = {}
    twice: dict[CallKey, None] = {}
    for item in items:
        name = check_call_key(key(item))
        if name in found:
            twice[name] = None
        found[name] = item
    if twice:
        shown = ", ".join(repr(name) for name in list(twice)[:10])
        raise ConfigurationError(
            f"{len(twice)} call keys stand for more than one item ({shown}). Nothing was sent. A key is what a retry "
            "finds its answer by: take it from what tells the items apart, such as an id.",
            field="key",
            keys=tuple(twice),
        )
    return list(found.items())


def run_calls(
    work: Work,
    items: Sequence[tuple[CallKey, Item]],
    ask: Callable[[CallKey, Item], Result],
    *,
    concurrency: int = 16,
) -> list[Result]:
    """Run `ask` for every keyed item; see `map_calls`."""
    if isinstance(concurrency, bool) or concurrency < 1:
        raise ConfigurationError(
            f"concurrency is {concurrency!r}, expected a whole number of at least 1.", field="concurrency"
        )
    crew = _Crew(work, items, ask)
    token = holds_deferred.set(crew.deferred)
    try:
        # Daemons: an answer that takes minutes must not keep an interrupted process from ending.
        threads = [
            threading.Thread(target=copy_context().run, args=(crew.work_off,), daemon=True, name=f"call-map-{number}")
            for number in range(min(concurrency, len(items)))
        ]
    finally:
        holds_deferred.reset(token)
    with crew:
        for thread in threads:
            thread.start()
        crew.wait()
    return crew.finish()


class _Crew(Generic[Item, Result]):
    """The threads of one map and what they have done; left by an interrupt, it starts nothing more."""

    def __init__(
        self, work: Work, items: Sequence[tuple[CallKey, Item]], ask: Callable[[CallKey, Item], Result]
    ) -> None:
        self._work = work
        self._items = items
        self._ask = ask
        self._results: list[Result | None] = [None] * len(items)
        self._failed: dict[int, IdempotentError] = {}
        self._changed = threading.Condition()
        self._next = 0
        self._answered = 0
        self._in_hand = 0
        self._waiting = 0  # of those in hand, for a reservation of another one to end
        self._failures_in_a_row = 0
        self._stopped = False
        self._stopped_by: BaseException | None = None
        self._results_before = len(work.results)
        # Holds that the guard asked for; also where the caller's function went on without the answer.
        self.deferred: Deferred = []

    def __enter__(self) -> None:
        """Start the part that an interrupt may end."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give the calls under way a while to answer, so that what they cost is not lost."""
        if kind is None:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._say(f"Interrupted by {kind.__name__}, nothing more starts: ")
        with self._changed:
            self._changed.wait_for(lambda: not self._in_hand, INTERRUPT_PATIENCE)
        self._say("Ended: ")

    def work_off(self) -> None:
        """Take one item after the other until none is left or something stops them all."""
        while (number := self._take()) is not None:
            with _Attempt(self, number):
                self._results[number] = self._within_budget(*self._items[number])

    def wait(self) -> None:
        """Wait until everything ended, and tell the log how far it is."""
        every, told = max(1, len(self._items) // LINES), 0
        due = time.monotonic() + SECONDS_BETWEEN_LINES
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda seen=told: self._ended or self._done >= seen + every, due - time.monotonic()
                )
                ended, done = self._ended, self._done
            if ended or done >= told + every or time.monotonic() >= due:
                told, due = done, time.monotonic() + SECONDS_BETWEEN_LINES
                self._say()
            if ended:
                return

    def finish(self) -> list[Result]:
        """Return the results in the order of the items, or put the task on hold where needed and raise."""
        stop = self._stopped_by
        if stop is not None and not isinstance(stop, BudgetExceeded):
            if isinstance(stop, TaskHeld):
                self._work.hold(getattr(stop, "held_for", None) or HeldFor.GATE, stop.message)
            stop.add_note(self._count())
            raise stop
        doubts = [reason for held_for, reason in self.deferred if held_for is HeldFor.IN_DOUBT]
        if stop is None and not self._failed and self._next == len(self._items):
            if doubts:
                self._work.hold(HeldFor.IN_DOUBT, doubts[0])
            return cast("list[Result]", self._results)
        errors = {self._items[number][0]: error for number, error in sorted(self._failed.items())}
        error = unfinished(self._work.task.task_id, errors, stop, answered=self._answered, total=len(self._items))
        if doubts:
            self._work.hold(HeldFor.IN_DOUBT, error.message)
        elif stop is not None:
            self._work.hold(HeldFor.BUDGET, error.message)
        raise error from stop

    def end_item(self, number: int, error: BaseException | None) -> bool:
        """Note how an item ended; return whether its error is the item's own."""
        single = isinstance(error, _SINGLE) and not isinstance(error, BudgetExceeded)
        with self._changed:
            self._in_hand -= 1
            if error is None:
                self._answered += 1
                self._failures_in_a_row = 0
            elif single:
                self._failed[number] = _alone(cast("IdempotentError", error))
                # A job that goes on at its provider is no failure, and keeps no other from being submitted.
                self._failures_in_a_row += not isinstance(error, CallInProgress)
                if self._failures_in_a_row >= FAILURES_IN_A_ROW:
                    self._stopped = True
            else:
                self._stopped = True
                # A budget that is full is the weakest reason: what else goes wrong is told instead.
                if self._stopped_by is None or isinstance(self._stopped_by, BudgetExceeded):
                    self._stopped_by = error
            self._changed.notify_all()
        return single

    @property
    def _done(self) -> int:
        return self._answered + len(self._failed)

    @property
    def _ended(self) -> bool:
        return not self._in_hand and (self._stopped or self._next == len(self._items))

    def _take(self) -> int | None:
        with self._changed:
            if self._stopped or self._next == len(self._items):
                return None
            self._next += 1
            self._in_hand += 1
            return self._next - 1

    def _within_budget(self, name: CallKey, item: Item) -> Result:
        """Ask; where the budget is full only by what others of this map have reserved, once more after they ended."""
        while True:
            seen = self._done
            try:
                return self._ask(name, item)
            except BudgetExceeded:
                if not self._others_ended(seen):
                    raise

    def _others_ended(self, seen: int) -> bool:
        """Wait until another item ended since `seen`; False where none is under way that could."""
        with self._changed:
            self._waiting += 1
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._done > seen or self._waiting == self._in_hand)
            self._waiting -= 1
            return not self._stopped and self._done > seen

    def _say(self, why: str = "") -> None:
        line = f"{why}{self._count()}"
        if self._work.log is not None:
            self._work.log(line)
        logger.info("calls.map", extra={"task": self._work.task.task_id, "progress": line})

    def _count(self) -> str:
        with self._changed:
            made = self._work.results[self._results_before :]
            paid = sum(not result.replayed for result in made)
            doubt = sum(isinstance(error, CallInDoubt) for error in self._failed.values())
            return (
                f"{self._answered} of {len(self._items)} calls answered ({paid} paid now), {doubt} in doubt, "
                f"{len(self._failed) - doubt} without an answer, {self._in_hand} under way."
            )


def _alone(error: IdempotentError) -> IdempotentError:
    """Return an error without the frames that raised it: each would keep a request and an answer in memory."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


class _Attempt:
    """One item in the hands of a thread; a context, so that whatever is raised reaches the one who waits."""

    def __init__(self, crew: _Crew[Item, Result], number: int) -> None:
        self._end = crew.end_item
        self._number = number

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._end(self._number, error)
        return True
