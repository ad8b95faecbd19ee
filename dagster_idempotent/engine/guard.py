"""The guard: one paid call of a claimed task, sent at most once, replayed afterwards (R11-R17)."""

from dataclasses import replace
from typing import Generic, TypeVar, assert_never
from uuid import uuid4

from dagster_idempotent.domain.fingerprint import Fingerprint, fingerprint
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import (
    CallKey,
    IdempotencyKey,
    SettledBy,
    Step,
    Submission,
    SubmissionState,
    current_of,
    idempotency_key,
    keys_of,
    next_key_no,
    next_step,
)
from dagster_idempotent.domain.task import HeldFor
from dagster_idempotent.engine.answer_files import stored_answer
from dagster_idempotent.engine.call_errors import abandoned, in_progress, not_known
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.engine.reconciliation import OUTCOME_PATIENCE, Reconciled, answer_row, reconcile_call
from dagster_idempotent.engine.remote_jobs import await_job
from dagster_idempotent.engine.reservation import upper_bound
from dagster_idempotent.engine.sending import Sending
from dagster_idempotent.engine.sightings import confirm
from dagster_idempotent.engine.work import Work, get_task, stopped
from dagster_idempotent.errors import (
    BudgetExceeded,
    CallInDoubt,
    CallInProgress,
    CallNotSent,
    CallRejected,
    IdempotentError,
    PayloadPruned,
    PipelineFrozen,
    TaskHeld,
)
from dagster_idempotent.providers.outcome import Accepted, InDoubt, NotSent, Rejected, Succeeded
from dagster_idempotent.providers.protocol import Provider, RemoteJobProvider, expected_within
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.store import submissions
from dagster_idempotent.store.submissions import Call, CallState, Intent

Request = TypeVar("Request")
Value = TypeVar("Value")
# Seconds until a request may go again under the same key, after a resend that stayed in doubt too.
RESEND_PAUSE = 10.0


class Guard(Generic[Request, Value]):
    """Sends the paid calls of one claimed task to one provider."""

    def __init__(self, work: Work, provider: Provider[Request, Value]) -> None:
        self._work = work
        self._provider = provider
        self._database = work.database

    def call(self, call_key: CallKey, request: Request) -> CallResult[Value]:
        """Return the answer of `call_key`: stored, or paid for now, and never both.

        Raises PayloadMismatch, CallInProgress, CallInDoubt (the task is then held unless `retry_after` is set),
        CallRejected, CallNotSent, CallAbandoned, BudgetExceeded, PipelineFrozen, TaskHeld, LeaseLost.
        """
        provider = self._provider
        print_ = fingerprint(provider.name, provider.operation(request), provider.payload(request))
        call = Call(pipeline=self._work.lease.pipeline, task_id=self._work.lease.task_id, call_key=call_key)
        sent: int | None = None  # the submission that left from here: one send a call of this method
        while True:
            state = self._read(call)
            current = current_of(state.submissions)
            match next_step(state.submissions, print_, call=call_key):
                case Step.REPLAY:
                    confirm(self._database, call, state, provider)
                    return self._replay(call, _known(current), paid_now=_known(current).submission == sent)
                case Step.WAIT_FOR_SENDER:
                    raise in_progress(call, _known(current))
                case Step.STOP_ABANDONED:
                    raise abandoned(call, _known(current))
                case Step.ADOPT_LATE_ANSWER:
                    late = next(row.submission for row in state.submissions if row.late)
                    self._database.run(lambda c, n=late: submissions.adopt_late_answer(c, call, n))
                case Step.MARK_IN_DOUBT:
                    n = _known(current).submission
                    self._database.run(lambda c, n=n: submissions.mark_in_doubt(c, call, n))
                case Step.RESUME:
                    self._resume(call, state, _known(current))
                case Step.RECONCILE:
                    sent = self._reconcile(call, state, _known(current), request, sent) or sent
                case Step.SEND:
                    sent = self._start(call, state, print_, request, sent=sent) or sent

    def _read(self, call: Call) -> CallState:
        state = self._database.run(lambda c: submissions.read_call(c, call))
        if state is None:
            get_task(self._database, call.pipeline, call.task_id)  # raises TaskNotFound
            return self._read(call)
        return state

    def _start(
        self,
        call: Call,
        state: CallState,
        print_: Fingerprint,
        request: Request,
        *,
        sent: int | None,
    ) -> int | None:
        """Commit a new submission and send it; return its number, None where the call has changed since it was read."""
        if sent is not None:
            raise not_known(call, _known(current_of(state.submissions)))
        self._work.check_lease()
        reserve = upper_bound(self._work.pipeline, self._provider, request)
        # Before the intent is first issued; a lost COMMIT reply never restarts it.
        window = SendWindow(state.send_window)
        lease, provider = self._work.lease, self._provider
        key_no = next_key_no(state.submissions, print_)
        identity = state.run_id or lease.task_id
        key = idempotency_key(state.ledger_id, lease.pipeline, identity, call.call_key, key_no)
        number = len(state.submissions) + 1
        sending = self._sending(call, state, submission=number, key=key, window=window)
        intent = Intent(
            submission=number,
            sender=sending.sender,
            provider=provider.name,
            fingerprint=print_,
            idempotency_key=key,
            key_no=key_no,
            lookup=provider.lookup,
            settle_delay=provider.settle_delay,
            key_window=provider.key_window,
            expected_within=expected_within(provider),
            reserve=reserve,
        )
        if not self._intend(call, state, intent):
            return None
        self._send(sending, request)
        return number

    def _intend(self, call: Call, state: CallState, intent: Intent) -> bool:
        """Commit the intent; False where the call has changed since it was read."""
        lease = self._work.lease
        try:
            row = self._database.run(
                lambda c: submissions.intend(c, call, lease, intent, send_window=state.send_window)
            )
        except BudgetExceeded as error:
            self._work.hold(HeldFor.BUDGET, error.message)
            raise
        match row["verdict"]:
            case "intended":
                # A re-issued intent may find its own row settled by a finder meanwhile: then nothing is sent.
                return row["state"] == SubmissionState.INTENDED and row["sends"] == 1
            case "superseded" | "late_answer" | "stale":
                return False
            case verdict:
                raise self._stopped_by(verdict, call, state)

    def _stopped_by(self, verdict: str, call: Call, state: CallState) -> IdempotentError:
        """Return why neither an intent nor a resend may be committed now; both go on by themselves afterwards."""
        if verdict == "frozen":
            return PipelineFrozen(
                f"Pipeline {call.pipeline!r} is frozen: {state.frozen_reason or 'an operator froze it just now'}. "
                "Nothing was sent. It goes on once an operator unfreezes it.",
                pipeline=call.pipeline,
            )
        if verdict == "gate":
            reason = "a named person has to approve the spending first (gate `spend`)."
            self._work.hold(HeldFor.GATE, reason)
            return TaskHeld(f"Task {call.task_id} is held: {reason}", task_id=call.task_id, held_for=HeldFor.GATE)
        return stopped(self._database, self._work.lease)

    def _send(self, sending: Sending, request: Request) -> None:
        """Send once; returns only where the ledger has an answer or a doubt to read."""
        outcome = sending.send(request)
        call, facts = sending.call, {"task_id": sending.call.task_id, "call_key": sending.call.call_key}
        match outcome:
            case Succeeded() | Accepted() | InDoubt():
                return
            case Rejected():
                raise CallRejected(
                    f"Provider {self._provider.name!r} refused call {call.call_key!r} of task {call.task_id}: "
                    f"{outcome.reason} It was not charged.",
                    submission=sending.submission,
                    remote_ref=outcome.remote_ref,
                    **facts,
                )
            case NotSent():
                raise CallNotSent(
                    f"Call {call.call_key!r} of task {call.task_id} never left: {outcome.reason} It was not charged.",
                    submission=sending.submission,
                    **facts,
                )
            case _:
                assert_never(outcome)

    def _sending(
        self, call: Call, state: CallState, *, submission: int, key: IdempotencyKey, window: SendWindow
    ) -> Sending:
        return Sending(
            work=self._work,
            provider=self._provider,
            call=call,
            state=state,
            submission=submission,
            sender=uuid4(),
            key=key,
            window=window,
        )

    def _reconcile(
        self, call: Call, state: CallState, current: Submission, request: Request, sent: int | None
    ) -> int | None:
        """Settle a call in doubt by the provider's word, or stop; return its number where it was sent again."""
        if current.provider != self._provider.name:
            result = Reconciled(settled=False, reason=f"the call was made with provider {current.provider!r}")
        else:
            result = reconcile_call(self._database, call, self._provider)
            if result.settled:
                return None
            if self._provider.key_window is not None:
                if sent is None and self._resend(call, state, current, request):
                    return current.submission
                if sent is not None:
                    result = replace(result, retry_after=RESEND_PAUSE)
        seen = (current.error or "its outcome is unknown").rstrip(".")
        text = (
            f"Call {call.call_key!r} of task {call.task_id} (submission {current.submission}, key "
            f"{current.idempotency_key}) is in doubt: {seen}. It may have been accepted and charged; {result.reason}. "
            "It is never sent as a new request by itself: the provider's own answer settles it, or a named operator "
            "with evidence."
        )
        if result.retry_after is None:
            self._work.hold(HeldFor.IN_DOUBT, text)
        raise CallInDoubt(
            text,
            task_id=call.task_id,
            call_key=call.call_key,
            submission=current.submission,
            idempotency_key=current.idempotency_key,
            retry_after=result.retry_after,
        )

    def _resend(self, call: Call, state: CallState, seen: Submission, request: Request) -> bool:
        """Send the same bytes under the same key, where the provider documents that this is one request.

        False where it may have forgotten the key, or somebody else acted meanwhile.
        """
        self._work.check_lease()
        window = SendWindow(state.send_window)
        sending = self._sending(call, state, submission=seen.submission, key=seen.idempotency_key, window=window)
        lease, sender = self._work.lease, sending.sender
        verdict = self._database.run(lambda c: submissions.claim_resend(c, call, lease, seen, sender=sender))
        if verdict != "claimed":
            # The reply to our own claim may have been lost: then the row carries our sender.
            current = current_of(self._read(call).submissions)
            if current is None or current.sender != sender or current.state is not SubmissionState.IN_DOUBT:
                if verdict == "refused":
                    return False
                raise self._stopped_by(verdict, call, state)
        self._send(sending, request)
        return True

    def _resume(self, call: Call, state: CallState, current: Submission) -> None:
        """Fetch the answer of a request that the provider accepted; it is never submitted again (R13)."""
        if isinstance(self._provider, RemoteJobProvider):
            await_job(self._work, call, current, self._provider)
            return
        finding = self._provider.find(keys_of(state.submissions))
        if isinstance(finding, Succeeded):
            row = answer_row(finding, SettledBy.POLL)
            self._database.run(
                lambda c: submissions.record_answer(c, call, current.submission, row),
                patience=OUTCOME_PATIENCE,
            )
            return
        raise CallInProgress(
            f"Provider {self._provider.name!r} accepted call {call.call_key!r} of task {call.task_id} as "
            f"{current.remote_ref!r} and has no answer yet. It is not submitted again.",
            task_id=call.task_id,
            call_key=call.call_key,
            submission=current.submission,
            retry_after=10.0,
        )

    def _replay(self, call: Call, row: Submission, *, paid_now: bool) -> CallResult[Value]:
        answer = stored_answer(call, row)
        if answer is None:
            raise PayloadPruned(
                f"The answer of call {call.call_key!r} of task {call.task_id} was pruned; its hash "
                f"{row.response_sha256} is kept. It is not sent again.",
                task_id=call.task_id,
                call_key=call.call_key,
                submission=row.submission,
            )
        cost = None
        if row.cost is not None and row.currency is not None:
            cost = Money(amount=row.cost, currency=row.currency)
        return CallResult(
            call_key=call.call_key,
            value=self._provider.decode(answer),
            answer=answer,
            replayed=not paid_now,
            cost=cost,
            remote_ref=row.remote_ref,
            submission=row.submission,
            settled_by=row.settled_by or SettledBy.SENDER,
        )


def _known(current: Submission | None) -> Submission:
    if current is None:  # next_step says SEND where there is none
        raise AssertionError("a step that needs a submission was decided without one")
    return current
