from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.fingerprint import fingerprint
from dagster_idempotent.domain.submission import (
    IdempotencyKey,
    SettledBy,
    Step,
    Submission,
    SubmissionState,
    next_key_no,
    next_step,
)
from dagster_idempotent.errors import PayloadMismatch

PRINT = fingerprint("p", "op", {"a": 1})
ABANDONED = Submission(
    submission=1,
    state=SubmissionState.ABANDONED,
    sender=uuid4(),
    sender_expires_in=timedelta(0),
    settles_in=timedelta(0),
    sends=1,
    owner="run",
    provider="p",
    fingerprint=PRINT,
    idempotency_key=IdempotencyKey("k"),
    key_no=0,
    remote_ref=None,
    response=None,
    response_body=None,
    response_sha256=None,
    cost=None,
    currency=None,
    late=False,
    settled_by=SettledBy.OPERATOR,
    error=None,
    intended_at=datetime(2026, 8, 3, tzinfo=UTC),
    settled_at=datetime(2026, 8, 3, tzinfo=UTC),
)


def test_an_abandoned_call_stops_unless_an_operator_allowed_another_send() -> None:
    assert next_step([ABANDONED], PRINT, call="c") is Step.STOP_ABANDONED
    assert next_step([replace(ABANDONED, resend_allowed=True)], PRINT, call="c") is Step.SEND


def test_an_allowed_send_carries_the_same_key_and_the_same_payload() -> None:
    allowed = replace(ABANDONED, resend_allowed=True)
    assert next_key_no([allowed], PRINT) == 0
    with pytest.raises(PayloadMismatch):
        next_step([allowed], fingerprint("p", "op", {"a": 2}), call="c")


def test_a_late_answer_is_adopted_rather_than_sent_again() -> None:
    assert next_step([replace(ABANDONED, resend_allowed=True, late=True)], PRINT, call="c") is Step.ADOPT_LATE_ANSWER


@given(state=st.sampled_from(sorted(set(SubmissionState) - {SubmissionState.ABANDONED})))
def test_the_permission_means_nothing_to_any_other_state(state: SubmissionState) -> None:
    row = replace(ABANDONED, state=state)
    assert next_step([row], PRINT, call="c") is next_step([replace(row, resend_allowed=True)], PRINT, call="c")
