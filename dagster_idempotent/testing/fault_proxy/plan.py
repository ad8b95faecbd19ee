"""How many messages came through, and what is to happen at which."""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from dagster_idempotent.errors import ConfigurationError

Action = Callable[[], object]


class Direction(StrEnum):
    """Where a message goes."""

    TO_UPSTREAM = "to_upstream"
    TO_CLIENT = "to_client"


class When(StrEnum):
    """Before a message is forwarded, or after it was and before anything else moves."""

    BEFORE = "before"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What came through so far, over all connections; a message counts before it is forwarded."""

    connections: int
    to_upstream: int
    to_client: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Strikes:
    """What is to happen around one message."""

    before: tuple[Action, ...]
    after: tuple[Action, ...]


class Plan:
    """Counts and actions, shared by the thread of the proxy and those of the test."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._connections = 0
        self._open = 0
        self._counted = dict.fromkeys(Direction, 0)
        self._actions: dict[tuple[Direction, int, When], list[Action]] = {}

    @property
    def counts(self) -> Counts:
        """What came through so far."""
        with self._changed:
            return Counts(
                connections=self._connections,
                to_upstream=self._counted[Direction.TO_UPSTREAM],
                to_client=self._counted[Direction.TO_CLIENT],
            )

    def add(self, n: int, direction: Direction, when: When, action: Action) -> None:
        """Plan an action; raises ConfigurationError when the message came through already."""
        with self._changed:
            seen = self._counted[direction]
            if n <= seen:
                raise ConfigurationError(
                    f"found message {n} {direction}, but {seen} came through already,"
                    " expected a later one; add .counts to number from now on",
                    field="n",
                )
            self._actions.setdefault((direction, n, when), []).append(action)

    def open_connection(self) -> None:
        """Count a connection."""
        with self._changed:
            self._connections += 1
            self._open += 1

    def end_connection(self) -> None:
        """Note that a connection is over."""
        with self._changed:
            self._open -= 1
            self._changed.notify_all()

    def count_message(self, direction: Direction) -> Strikes:
        """Count a message; returns what is to happen around it, once."""
        with self._changed:
            self._counted[direction] += 1
            number = self._counted[direction]
            self._changed.notify_all()
            return Strikes(
                before=tuple(self._actions.pop((direction, number, When.BEFORE), ())),
                after=tuple(self._actions.pop((direction, number, When.AFTER), ())),
            )

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no connection is open; False when `timeout` seconds are over."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._open, timeout)

    def wait_for(self, n: int, direction: Direction, timeout: float) -> bool:
        """Wait until message `n` was counted; False when `timeout` seconds are over."""
        with self._changed:
            return self._changed.wait_for(lambda: self._counted[direction] >= n, timeout)
