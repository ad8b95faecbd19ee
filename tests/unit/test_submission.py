"""What follows from the submissions of a call (R13-R17)."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import assume, given, strategies as st

from dagster_idempotent.domain.fingerprint import FINGERPRINT_VERSION, Fingerprint, fingerprint
from dagster_idempotent.domain.submission import (
    LIVE,
    MAX_CALL_KEY,
    MOVES,
    VOID,
    CallKey,
    IdempotencyKey,
    SettledBy,
    Step,
    Submission,
    SubmissionState,
    check_call_key,
    check_same_payload,
    current_of,
    idempotency_key,
    keys_of,
    next_key_no,
    next_step,
)
from dagster_idempotent.errors import ConfigurationError, PayloadMismatch, UnknownFingerprint

S = SubmissionState
LEDGER = UUID(int=7)
SAME = fingerprint("p", "POST /x", {"model": "m", "messages": [{"content": "a"}]})
OTHER = fingerprint("p", "POST /x", {"model": "m", "messages": [{"content": "b"}]})


def submission(
    number: int = 1,
    state: S = S.SUCCEEDED,
    *,
    print_: Fingerprint = SAME,
    late: bool = False,
    settled_by: SettledBy | None = SettledBy.SENDER,
    expires: float = -1.0,
    key_no: int = 0,
) -> Submission:
    return Submission(
        submission=number,
        state=state,
        sender=uuid4(),
        sender_expires_in=timedelta(seconds=expires),
        settles_in=timedelta(seconds=expires + 5),
        sends=1,
        owner="run",
        provider="p",
        fingerprint=print_,
        idempotency_key=IdempotencyKey(f"key-{key_no}"),
        key_no=key_no,
        remote_ref=None,
        response=None,
        response_body=None,
        response_sha256=None,
        cost=None,
        currency=None,
        late=late,
        settled_by=settled_by,
        error=None,
        intended_at=datetime(2026, 8, 3, tzinfo=UTC),
        settled_at=None,
    )


@st.composite
def histories(draw: st.DrawFn) -> Sequence[Submission]:
    """Draw what the ledger can hold: every submission but the last is void, numbers have no gaps."""
    void = st.sampled_from(sorted(VOID))
    voters = st.sampled_from([SettledBy.SENDER, SettledBy.LOOK_UP, SettledBy.OPERATOR])
    prints = st.sampled_from([SAME, OTHER])
    size = draw(st.integers(min_value=0, max_value=4))
    rows: list[Submission] = []
    for number in range(1, size + 1):
        state = draw(void if number < size else st.sampled_from(sorted(S)))
        late = state in VOID - {S.FAILED} and draw(st.booleans())
        expires = draw(st.sampled_from([-1.0, 1.0]))
        print_ = draw(prints)
        key_no = next_key_no(rows, print_)
        rows.append(
            submission(number, state, print_=print_, late=late, settled_by=draw(voters), expires=expires, key_no=key_no)
        )
    return rows


class TestMoves:
    def test_every_state_has_its_moves_and_is_live_or_void(self) -> None:
        assert set(MOVES) == set(S)
        assert set(S) == LIVE | VOID
        assert not LIVE & VOID

    def test_a_success_and_the_remote_jobs_own_failure_are_final(self) -> None:
        assert {state for state in S if not MOVES[state]} == {S.SUCCEEDED, S.FAILED}

    def test_a_void_submission_comes_back_only_with_an_answer(self) -> None:
        for state in VOID:
            assert MOVES[state] <= {S.ACCEPTED, S.SUCCEEDED}

    def test_nothing_becomes_intended_again(self) -> None:
        assert all(S.INTENDED not in moves for moves in MOVES.values())

    def test_only_a_call_in_doubt_can_be_abandoned(self) -> None:
        assert [state for state in S if S.ABANDONED in MOVES[state]] == [S.IN_DOUBT]


class TestNextStep:
    @given(histories())
    def test_nothing_is_sent_while_a_submission_is_live(self, rows: Sequence[Submission]) -> None:
        assume(any(row.state in LIVE for row in rows))
        for print_ in (SAME, OTHER):
            try:
                step = next_step(rows, print_, call="c")
            except PayloadMismatch:
                continue
            assert step is not Step.SEND

    @given(histories())
    def test_nothing_is_sent_past_a_late_answer_or_an_abandoned_submission(self, rows: Sequence[Submission]) -> None:
        assume(rows)
        current = current_of(rows)
        assert current is not None
        assume(current.state in VOID)
        try:
            step = next_step(rows, current.fingerprint, call="c")
        except PayloadMismatch:
            return
        if any(row.late for row in rows):
            assert step is Step.ADOPT_LATE_ANSWER
        elif current.state is S.ABANDONED:
            assert step is Step.STOP_ABANDONED
        else:
            assert step is Step.SEND

    @given(histories())
    def test_another_payload_is_sent_only_after_a_no_that_is_proved(self, rows: Sequence[Submission]) -> None:
        current = current_of(rows)
        assume(current is not None)
        assert current is not None
        other = OTHER if current.fingerprint == SAME else SAME
        try:
            step = next_step(rows, other, call="c")
        except PayloadMismatch:
            return
        if step is Step.SEND:
            assert current.state in (S.REJECTED, S.FAILED) or (
                current.state is S.NOT_SENT and current.settled_by is SettledBy.SENDER
            )
        else:
            assert step is Step.ADOPT_LATE_ANSWER

    def test_a_first_call_is_sent(self) -> None:
        assert next_step([], SAME, call="c") is Step.SEND

    @pytest.mark.parametrize(
        ("state", "expires", "step"),
        [
            (S.SUCCEEDED, -1, Step.REPLAY),
            (S.ACCEPTED, -1, Step.RESUME),
            (S.INTENDED, 1, Step.WAIT_FOR_SENDER),
            (S.INTENDED, -1, Step.MARK_IN_DOUBT),
            (S.IN_DOUBT, 1, Step.RECONCILE),
            (S.IN_DOUBT, -1, Step.RECONCILE),
            (S.ABANDONED, -1, Step.STOP_ABANDONED),
            (S.NOT_SENT, -1, Step.SEND),
            (S.REJECTED, -1, Step.SEND),
            (S.FAILED, -1, Step.SEND),
        ],
    )
    def test_each_state_asks_for_its_step(self, state: S, expires: float, step: Step) -> None:
        assert next_step([submission(state=state, expires=expires)], SAME, call="c") is step

    @pytest.mark.parametrize("state", sorted(LIVE))
    def test_a_different_payload_is_refused_before_any_word_about_progress(self, state: S) -> None:
        with pytest.raises(PayloadMismatch) as caught:
            next_step([submission(state=state, expires=1)], OTHER, call="summary")
        assert caught.value.facts["fields"] == ("/messages/0/content",)
        assert caught.value.facts["call_key"] == "summary"


class TestSamePayload:
    @pytest.mark.parametrize("state", sorted(S))
    def test_the_same_payload_is_always_the_same_call(self, state: S) -> None:
        check_same_payload(submission(state=state), SAME, call="c")

    @pytest.mark.parametrize("settled_by", sorted(SettledBy))
    def test_after_not_sent_only_the_senders_own_word_allows_another_payload(self, settled_by: SettledBy) -> None:
        row = submission(state=S.NOT_SENT, settled_by=settled_by)
        if settled_by is SettledBy.SENDER:
            check_same_payload(row, OTHER, call="c")
        else:
            with pytest.raises(PayloadMismatch):
                check_same_payload(row, OTHER, call="c")

    def test_an_unknown_version_refuses_also_the_same_payload(self) -> None:
        newer = Fingerprint(version=FINGERPRINT_VERSION + 1, digest=SAME.digest, fields=SAME.fields)
        with pytest.raises(UnknownFingerprint, match=f"version {FINGERPRINT_VERSION + 1}"):
            check_same_payload(submission(print_=newer), SAME, call="c")


class TestKeys:
    @pytest.mark.parametrize(
        ("state", "print_", "expected"),
        [
            (S.NOT_SENT, SAME, 4),
            (S.ABANDONED, SAME, 4),
            (S.REJECTED, SAME, 5),
            (S.FAILED, SAME, 5),
            (S.NOT_SENT, OTHER, 5),
            (S.REJECTED, OTHER, 5),
        ],
    )
    def test_a_new_key_only_after_a_final_no_or_for_a_new_payload(
        self, state: S, print_: Fingerprint, expected: int
    ) -> None:
        assert next_key_no([submission(state=state, key_no=4)], print_) == expected

    def test_the_first_key_is_number_0(self) -> None:
        assert next_key_no([], SAME) == 0

    @given(histories(), st.sampled_from([SAME, OTHER]))
    def test_two_payloads_never_share_a_key(self, rows: Sequence[Submission], print_: Fingerprint) -> None:
        number = next_key_no(rows, print_)
        assert all(row.fingerprint == print_ for row in rows if row.key_no == number)

    @given(histories())
    def test_a_look_up_searches_every_key_but_those_of_failed_jobs_the_newest_first(
        self, rows: Sequence[Submission]
    ) -> None:
        keys = keys_of(rows)
        failed = {row.idempotency_key for row in rows if row.state is S.FAILED}
        assert set(keys) == {row.idempotency_key for row in rows} - failed
        assert len(keys) == len(set(keys))
        assert list(keys) == sorted(keys, reverse=True)

    parts = st.tuples(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.integers(0, 20))

    @given(parts, parts)
    def test_a_key_stands_for_one_call_of_one_ledger(
        self, a: tuple[str, str, str, int], b: tuple[str, str, str, int]
    ) -> None:
        key_a, key_b = (idempotency_key(LEDGER, *parts) for parts in (a, b))
        assert (key_a == key_b) == (a == b)
        assert idempotency_key(UUID(int=8), *a) != key_a
        assert len(key_a) == 48
        assert key_a.isascii()

    def test_a_key_is_the_same_in_every_release(self) -> None:
        key = idempotency_key(LEDGER, "weekly_digest", "ab" * 32, "summary", 0)
        assert key == "di-c74c3b645d5566a396b837512454d0c84f92fcb7d90a4"


class TestCallKey:
    @pytest.mark.parametrize("key", ["summary", "shot-03", "é", "a b", "x" * MAX_CALL_KEY])
    def test_a_name_is_taken_as_it_is(self, key: str) -> None:
        assert check_call_key(key) == CallKey(key)

    @pytest.mark.parametrize("key", ["", " ", "a\nb", "a\0b", "x" * (MAX_CALL_KEY + 1), "summary#2", None, 7])
    def test_anything_else_is_refused(self, key: object) -> None:
        with pytest.raises(ConfigurationError) as caught:
            check_call_key(key)
        assert caught.value.facts["field"] == "call"
