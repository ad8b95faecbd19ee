"""What the schema refuses of a submission, whoever asks (protocol.md, "Sending")."""

from collections.abc import Callable

import pytest
from psycopg import errors, sql as psql

from dagster_idempotent.domain import submission
from tests.integration.schema.conftest import SHA, Sql, refuse, without_triggers


class TestSubmissions:
    @pytest.mark.parametrize("state", sorted(submission.LIVE))
    def test_a_second_live_submission_is_refused(self, sql: Sql, insert: Callable[..., None], state: str) -> None:
        insert()
        with without_triggers(sql):
            sql.execute(
                "UPDATE dagster_idempotent.submissions SET state = %s, remote_ref = 'r', settled_by = 'sender', "
                "settled_at = now(), response_sha256 = %s, response_body = ''",
                [state, SHA],
            )
        with pytest.raises(errors.UniqueViolation, match="submissions_one_live"):
            insert(submission=2)

    @pytest.mark.parametrize("state", sorted(submission.VOID))
    def test_the_next_submission_follows_a_void_one(self, sql: Sql, insert: Callable[..., None], state: str) -> None:
        insert()
        with without_triggers(sql):
            sql.execute(
                "UPDATE dagster_idempotent.submissions SET state = %s, settled_by = 'operator', settled_at = now()",
                [state],
            )
        if state == submission.SubmissionState.ABANDONED:
            with pytest.raises(errors.RestrictViolation, match="only an operator may allow another"):
                insert(submission=2)
            sql.execute(
                "INSERT INTO dagster_idempotent.resends (pipeline, task_id, call_key, submission, actor, reason) "
                "SELECT pipeline, task_id, call_key, submission, 'ada', 'ticket' FROM dagster_idempotent.submissions"
            )
        insert(submission=2)

    def test_numbers_have_no_gaps_and_start_at_1(self, insert: Callable[..., None]) -> None:
        with pytest.raises(errors.RestrictViolation, match="no predecessor"):
            insert(submission=2)
        with pytest.raises(errors.CheckViolation):
            insert(submission=0)

    @pytest.mark.parametrize("state", sorted(set(submission.SubmissionState) - {"intended"}))
    def test_a_submission_starts_as_intended(self, insert: Callable[..., None], state: str) -> None:
        with pytest.raises(errors.RestrictViolation, match="starts as intended"):
            insert(state=state)

    @pytest.mark.parametrize("old", submission.SubmissionState)
    def test_the_trigger_and_the_table_of_moves_agree(
        self, sql: Sql, insert: Callable[..., None], old: submission.SubmissionState
    ) -> None:
        insert()
        put = """UPDATE dagster_idempotent.submissions SET state = %s, settled_by = 'operator', settled_at = now(),
            remote_ref = 'r', response_sha256 = %s, response_body = ''"""
        for new in set(submission.SubmissionState) - {old}:
            with without_triggers(sql):
                sql.execute(put, [old, SHA])
            update = "UPDATE dagster_idempotent.submissions SET state = %s"
            if new in submission.MOVES[old]:
                assert sql.execute(update, [new]).rowcount == 1
            else:
                with pytest.raises(errors.RestrictViolation, match=f"cannot go from {old} to {new}"):
                    sql.execute(update, [new])

    def test_what_was_sent_is_fixed(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        for column, value in (
            ("provider", "q"),
            ("fingerprint", "g"),
            ("fingerprint_version", 2),
            ("idempotency_key", "other"),
            ("key_no", 1),
            ("call_key", "d"),
            ("submission", 2),
            ("intended_at", "2020-01-01"),
            ("fingerprint_fields", '{"/a": "b"}'),
            ("lookup", "none"),
            ("settle_delay", "0 seconds"),
            ("key_window", "1 year"),
        ):
            query = psql.SQL("UPDATE dagster_idempotent.submissions SET {} = %s").format(psql.Identifier(column))
            with pytest.raises(errors.RestrictViolation, match="is fixed"):
                sql.execute(query, [value])

    def test_a_new_sender_comes_only_with_one_counted_resend(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        for change in (
            "sender = gen_random_uuid()",
            "sends = sends + 1",
            "sender = gen_random_uuid(), sends = sends + 2",
            "sender = gen_random_uuid(), sends = sends + 1, state = 'not_sent'",
        ):
            refuse(sql, f"submissions SET {change}", "counted resend")

    def test_a_resend_is_only_of_a_call_in_doubt(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        resend = "UPDATE dagster_idempotent.submissions SET sender = gen_random_uuid(), sends = sends + 1"
        with pytest.raises(errors.RestrictViolation, match="counted resend"):
            sql.execute(resend)
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        sql.execute(resend)

    def test_an_answer_is_final(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute(
            "UPDATE dagster_idempotent.submissions SET state = 'succeeded', settled_by = 'sender', settled_at = now(), "
            "response_body = 'a', response_sha256 = %s",
            [SHA],
        )
        for change in ("response_sha256 = NULL", f"response_sha256 = '{'1' * 64}'", "response_body = 'b'"):
            refuse(sql, f"submissions SET {change}", "answer of submission 1|body_present")
        # Pruning drops the body and keeps the hash.
        sql.execute("UPDATE dagster_idempotent.submissions SET response_body = NULL, pruned_at = now()")

    def test_checks_refuse(self, insert: Callable[..., None]) -> None:
        cases: list[tuple[dict[str, object], str]] = [
            ({"call_key": ""}, "call_key"),
            ({"call_key": "x" * 201}, "call_key"),
            ({"sends": 0}, "sends|starts as intended"),
            ({"settle_delay": "-1 second"}, "settle_delay"),
            ({"key_window": "0 seconds"}, "key_window"),
            ({"cost": 1}, "cost_has_a_currency"),
            ({"cost": -1, "currency": "USD"}, "cost"),
            ({"currency": "usd!", "cost": 1}, "currency"),
            ({"late": True}, "late_only_when_void"),
            ({"idempotency_key": ""}, "idempotency_key"),
            ({"lookup": "maybe"}, "lookup"),
            ({"response_sha256": SHA}, "body_present_unless_pruned"),
        ]
        for columns, constraint in cases:
            with pytest.raises((errors.CheckViolation, errors.RestrictViolation), match=constraint):
                insert(**columns)

    def test_an_outcome_says_what_it_rests_on(self, sql: Sql, insert: Callable[..., None]) -> None:
        insert()
        sql.execute("UPDATE dagster_idempotent.submissions SET state = 'in_doubt'")
        for change, constraint in (
            ("state = 'accepted', settled_by = 'look_up', settled_at = now()", "accepted_has_a_reference"),
            ("state = 'succeeded', settled_by = 'sender', settled_at = now()", "succeeded_has_an_answer"),
            ("state = 'rejected'", "final_says_by_whom"),
            ("state = 'abandoned', settled_by = 'look_up', settled_at = now()", "abandoned_by_operator_only"),
        ):
            refuse(sql, f"submissions SET {change}", constraint)
