"""Sending: one submission leaves once, from the process that wrote its intent, and its outcome is written."""

import logging
import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, assert_never
from uuid import UUID

from dagster_idempotent.domain.submission import IdempotencyKey, SettledBy, SubmissionState
from dagster_idempotent.engine.answer_files import in_hand
from dagster_idempotent.engine.reconciliation import OUTCOME_PATIENCE, accepted_row, answer_row
from dagster_idempotent.engine.work import Work
from dagster_idempotent.providers.outcome import Accepted, InDoubt, NotSent, Outcome, Rejected, Succeeded
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.store import submissions
from dagster_idempotent.store.submissions import AnswerRow, Call, CallState, Recorded

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sending:
    """One send of a submission; as a context it writes what an exception leaves proved."""

    work: Work
    provider: AnyProvider
    call: Call
    state: CallState
    submission: int
    sender: UUID
    key: IdempotencyKey
    window: SendWindow
    pid: int = field(default_factory=os.getpid)

    def send(self, request: Any) -> Outcome:  # noqa: ANN401 - whatever the provider takes
        """Send the request and write its outcome; the sender's lease is renewed until it is written.

        Returns InDoubt in place of a no that proves nothing.
        """
        logger.info("guard.sending", extra={"task": self.call.task_id, "call": self.call.call_key})
        with self.work.heartbeat.renewing(self.sender, self.state.sender_lease):
            with self:
                outcome = self.provider.submit(request, key=self.key, window=self.window)
            return self._record(outcome)

    def __enter__(self) -> None:
        """Start the part in which any exception, also an interrupt, leaves an outcome to write."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Write not_sent where no byte was allowed out, in_doubt after that; the exception goes on."""
        if kind is not None:
            reason = f"{kind.__name__}: {error}"
            self._record(InDoubt(reason=reason) if self.window.opened else NotSent(reason=reason))

    def _record(self, outcome: Outcome) -> Outcome:
        if os.getpid() != self.pid and not isinstance(outcome, Succeeded | Accepted):
            return outcome  # a fork knows nothing of what its parent sends under this sender id
        match outcome:
            case Succeeded():
                self._record_answer(answer_row(outcome, SettledBy.SENDER))
            case Accepted():
                # Committed before the first poll, and before anything else may go wrong (R13).
                self._record_answer(accepted_row(outcome.remote_ref, SettledBy.SENDER))
            case Rejected():
                return self._record_refusal(SubmissionState.REJECTED, outcome)
            case NotSent():
                return self._record_refusal(SubmissionState.NOT_SENT, outcome)
            case InDoubt():
                self._record_doubt(outcome)
            case _:
                assert_never(outcome)
        return outcome

    def _record_answer(self, answer: AnswerRow) -> None:
        row = answer
        try:
            row = in_hand(answer, self.call, self.submission, self.work.large)
        finally:
            # Also where an interrupt cuts the writing of a file short: nobody else has this answer.
            self._write_answer(row)

    def _write_answer(self, row: AnswerRow) -> None:
        recorded = self.work.database.run(
            lambda c: submissions.record_answer(c, self.call, self.submission, row), patience=OUTCOME_PATIENCE
        )
        if recorded is Recorded.AS_LATE:
            logger.error("guard.late_answer", extra={"task": self.call.task_id, "call": self.call.call_key})

    def _record_refusal(self, state: SubmissionState, refusal: Rejected | NotSent) -> Outcome:
        written = self.work.database.run(
            lambda c: submissions.record_refusal(
                c,
                self.call,
                self.submission,
                state=state,
                error=refusal.reason,
                sender=self.sender,
                seen_sends=1,
                remote_ref=refusal.remote_ref if isinstance(refusal, Rejected) else None,
            ),
            patience=OUTCOME_PATIENCE,
        )
        if written:
            return refusal
        # A refused resend says nothing about the first send: the row stays in doubt.
        logger.warning("guard.refusal_proves_nothing", extra={"call": self.call.call_key, "reason": refusal.reason})
        return InDoubt(reason=refusal.reason)

    def _record_doubt(self, outcome: InDoubt) -> None:
        self.work.database.run(
            lambda c: submissions.record_doubt(
                c, self.call, self.submission, sender=self.sender, error=outcome.reason, remote_ref=outcome.remote_ref
            ),
            patience=OUTCOME_PATIENCE,
        )
