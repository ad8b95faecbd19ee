"""Renewal of leases and senders by one thread of the process, on a connection of its own."""

import logging
import os
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import assert_never
from uuid import UUID

import psycopg

from dagster_idempotent.domain.outbox import Deliverer
from dagster_idempotent.domain.task import Lease
from dagster_idempotent.errors import StoreError
from dagster_idempotent.store import leases, outbox, submissions
from dagster_idempotent.store.database import Connection, Database

logger = logging.getLogger(__name__)
# A third of the length: two renewals may fail before anybody else may act.
RENEWALS_PER_LEASE = 3
# A task row that somebody keeps locked must not hold up the renewal of senders.
LONGEST_LOCK_WAIT = timedelta(seconds=1)


@dataclass(slots=True, kw_only=True, eq=False)
class Beat:
    """Something to renew; `lost` once the ledger said that there is nothing left to renew, and `over` set then."""

    what: Lease | UUID | Deliverer
    every: float
    due: float
    lost: bool = False
    over: threading.Event = field(default_factory=threading.Event)
    # Its row was locked by somebody when it was last renewed.
    stuck: bool = False


class Heartbeat:
    """Renews what is registered with it; its thread lives only while something is.

    A renewal that fails is tried again: it never decides that a lease is lost, only the ledger's answer does.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._changed = threading.Condition()
        self._beats: list[Beat] = []
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()

    @contextmanager
    def renewing(
        self, what: Lease | UUID | Deliverer, length: timedelta, *, every: timedelta | None = None
    ) -> Generator[Beat]:
        """Renew a lease, or the sender of a submission or of a delivery, until the block is left."""
        pause = (length / RENEWALS_PER_LEASE if every is None else every).total_seconds()
        beat = Beat(what=what, every=pause, due=time.monotonic() + pause)
        self._leave_parent()
        with self._changed:
            self._beats.append(beat)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="dagster-idempotent-heartbeat", daemon=True)
                self._thread.start()
            self._changed.notify()
        try:
            yield beat
        finally:
            self._leave_parent()
            with self._changed:
                if beat in self._beats:  # after a fork it is the parent's
                    self._beats.remove(beat)
                thread = None if self._beats else self._thread
                self._changed.notify()
            if thread is not None:
                thread.join(timeout=5)

    def _leave_parent(self) -> None:
        """Forget what was registered before a fork: a child that renewed it would keep a dead sender alive."""
        if self._pid != os.getpid():
            self._changed = threading.Condition()
            self._beats, self._thread = [], None
            self._pid = os.getpid()

    def _run(self) -> None:
        connection: Connection | None = None
        try:
            while True:
                due = self._wait()
                if due is None:
                    return
                try:
                    connection = connection or self._database.connect(lock_wait=LONGEST_LOCK_WAIT)
                    _renew(connection, due)
                    self._postpone([beat for beat in due if beat.stuck])
                except (psycopg.Error, StoreError) as error:
                    logger.warning("heartbeat.renewal_failed", extra={"reason": str(error).strip()})
                    if connection is not None:
                        connection.close()
                    connection = None
                    self._postpone(due)
        finally:
            if connection is not None:
                connection.close()

    def _wait(self) -> list[Beat] | None:
        """Wait until something is due; None when nothing is registered any more."""
        with self._changed:
            while True:
                if not self._beats:
                    self._thread = None
                    return None
                now = time.monotonic()
                live = [beat for beat in self._beats if not beat.lost]
                due = [beat for beat in live if beat.due <= now]
                if due:
                    for beat in due:
                        beat.due = now + beat.every
                    return due
                self._changed.wait(min((beat.due - now for beat in live), default=None))

    def _postpone(self, due: list[Beat]) -> None:
        with self._changed:
            for beat in due:
                beat.due = time.monotonic() + min(1.0, beat.every)


def _renew(connection: Connection, due: list[Beat]) -> None:
    """Renew what is due; what is stuck at a locked row comes last and keeps nobody else waiting."""
    senders = [beat for beat in due if isinstance(beat.what, UUID)]
    others = sorted((beat for beat in due if not isinstance(beat.what, UUID)), key=lambda beat: beat.stuck)
    for batch in [senders, *([beat] for beat in others)]:
        stuck = False
        try:
            _renew_batch(connection, batch)
        except psycopg.errors.LockNotAvailable as error:
            stuck = True
            logger.warning("heartbeat.row_locked", extra={"reason": str(error).strip()})
        for beat in batch:
            beat.stuck = stuck


def _renew_batch(connection: Connection, batch: list[Beat]) -> None:
    """Renew the senders of a process by one statement, or one lease or delivery."""
    senders = [beat.what for beat in batch if isinstance(beat.what, UUID)]
    alive = submissions.renew_senders(connection, senders) if senders else set[UUID]()
    for beat in batch:
        match beat.what:
            case Lease():
                beat.lost = leases.renew(connection, beat.what) is None
            case Deliverer():
                beat.lost = not outbox.renew_delivery(connection, beat.what.sender)
            case UUID():
                beat.lost = beat.what not in alive
            case _:
                assert_never(beat.what)
        if beat.lost:
            beat.over.set()
