"""The send window: how long after its intent a request may still put out bytes, and from which process."""

import os
import time
from collections.abc import Callable
from datetime import timedelta

from dagster_idempotent.errors import CallNotSent

# Counts the time in which the machine was suspended, where the system has such a clock: a laptop that slept through
# its window must not send afterwards.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_time() -> float:
    """Return seconds on a clock that never goes back and counts suspension."""
    return time.clock_gettime(_CLOCK)


class SendWindowClosed(CallNotSent):
    """The window was over, or the process was forked, before a byte that was about to be written."""


class SendWindow:
    """Asked before every write of a paid request; remembers whether a byte may have left.

    It starts when the intent is first issued and is never restarted. A provider adapter calls `before_write` ahead of
    each write to the network, first and last; whoever classifies the outcome reads `opened`.
    """

    def __init__(self, length: timedelta, *, clock: Callable[[], float] = boot_time) -> None:
        self._clock = clock
        self._ends_at = clock() + length.total_seconds()
        self._pid = os.getpid()
        self.opened = False

    def remaining(self) -> float:
        """Return the seconds left, negative once the window is over."""
        return self._ends_at - self._clock()

    def before_write(self) -> None:
        """Allow the next write, or raise SendWindowClosed with nothing of it written."""
        if os.getpid() != self._pid:
            raise SendWindowClosed("This process was forked after the intent: only the process that wrote it sends.")
        if self.remaining() <= 0:
            after = "after its first byte; it was cut off before its last" if self.opened else "before its first byte"
            raise SendWindowClosed(
                f"The send window of this request ended {after}. A later byte could arrive after somebody called the "
                "request not sent. If bodies need longer, lengthen the pipeline's send_window (and sender_lease)."
            )
        self.opened = True
