"""What an old record becomes follows from the record alone; what is ambiguous is refused (R34, R35)."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st
from pydantic import ValidationError

from dagster_idempotent.domain import json_text
from dagster_idempotent.domain.legacy import LegacyRecord, LegacyState, Refusal, Verdict, WithoutIdentity
from dagster_idempotent.domain.legacy_plan import TOTAL, Plan, Rules, examine
from dagster_idempotent.domain.period import PeriodKind
from dagster_idempotent.domain.submission import SubmissionState
from dagster_idempotent.domain.task import TaskStatus

RULES = Rules(pipeline="weekly_digest", kind=PeriodKind.ISO_WEEK, timezone=ZoneInfo("UTC"))
STATE: dict[str, Any] = {
    "week": "2026-W31",
    "scheduled_at": "2026-07-27T09:00:00+02:00",
    "status": "completed",
    "completed_at": "2026-07-27T10:00:00Z",
}
ONE = {"amount": "1", "currency": "USD"}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.decimals(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
SPACE = st.text(alphabet=" \t\n\r", max_size=3)


def record(**changes: object) -> LegacyRecord:
    text = json.dumps({name: value for name, value in (STATE | changes).items() if value is not ...})
    return LegacyRecord.from_json("2026-W31", text, {"state.json": text.encode()})


def plan(rules: Rules = RULES, **changes: object) -> Plan:
    found = examine(record(**changes), rules)
    assert isinstance(found, Plan), found
    return found


def refused(rules: Rules = RULES, **changes: object) -> Verdict:
    found = examine(record(**changes), rules)
    assert isinstance(found, Refusal)
    return found.verdict


def written(value: object) -> str:
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{written(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(written, value)) + "]"
    return json.dumps(value)


class TestJsonText:
    @given(st.dictionaries(st.text(), JSON, max_size=5), SPACE)
    def test_the_texts_of_members_are_what_was_written(self, value: dict[str, object], space: str) -> None:
        texts = {name: written(part) for name, part in value.items()}
        parts = f"{space},{space}".join(f"{json.dumps(name)}{space}:{space}{part}" for name, part in texts.items())
        text = f"{space}{{{space}{parts}{space}}}{space}"
        json_text.parse(text)
        assert json_text.members(text) == texts

    @given(st.lists(JSON, max_size=5), SPACE)
    def test_the_texts_of_elements_are_what_was_written(self, value: list[object], space: str) -> None:
        texts = tuple(map(written, value))
        text = f"{space}[{space}{f'{space},{space}'.join(texts)}{space}]"
        json_text.parse(text)
        assert json_text.elements(text) == texts

    @pytest.mark.parametrize(
        "text",
        ['{"a": 1, "a": 1}', "NaN", "[Infinity]", "", "{", "1 2", "[" * 100_000, "[" * 201 + "]" * 201, "\ufeff{}"],
    )
    def test_what_readers_take_differently_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match=r"."):
            json_text.parse(text)

    def test_numbers_keep_their_digits(self) -> None:
        assert str(json_text.parse("1.10")) == "1.10"


class TestPlan:
    def test_a_completed_record_is_a_completed_task_of_its_week(self) -> None:
        found = plan()
        assert found.period_id == "2026-W31"
        assert found.status is TaskStatus.COMPLETED
        assert found.completed_at == datetime(2026, 7, 27, 10, tzinfo=UTC)
        assert found.identity is not None
        assert found.identity.allocation_key == "weekly_digest/2026-07-27T07:00:00Z"

    def test_a_record_without_an_output_has_its_whole_state_as_output(self) -> None:
        old = record()
        assert old.output.encode() == old.documents["state.json"]
        assert record(output={"a": 1.50}).output == '{"a": 1.5}'

    @pytest.mark.parametrize(
        ("changes", "verdict"),
        [
            ({"week": "2026-W54"}, Verdict.WRONG_WEEK),
            ({"week": "2026-07"}, Verdict.WRONG_WEEK),
            ({"scheduled_at": ...}, Verdict.NO_IDENTITY),
            ({"key": "k"}, Verdict.INVALID_IDENTITY),
            ({"unrelated": True}, Verdict.INVALID_IDENTITY),
            ({"scheduled_at": "2026-08-03T00:00:00Z"}, Verdict.SCHEDULED_ELSEWHERE),
            ({"completed_at": ...}, Verdict.INVALID),
            ({"completed_at": "0001-01-01T00:00:00+23:00"}, Verdict.INVALID),
            ({"cost": {"amount": "1"}}, Verdict.UNKNOWN_CURRENCY),
            ({"cost": {"amount": "1", "currency": "credits"}}, Verdict.UNKNOWN_CURRENCY),
            ({"cost": {"amount": "-0.01", "currency": "USD"}}, Verdict.INVALID_AMOUNT),
            ({"cost": {"amount": "0.0000000000001", "currency": "USD"}}, Verdict.INVALID_AMOUNT),
            ({"calls": [{"name": "a"}, {"name": "a"}]}, Verdict.INVALID),
            ({"calls": [{"name": "a", "status": "unknown", "cost": ONE}]}, Verdict.UNCLEAR_COST),
            ({"calls": [{"name": "a", "status": "failed", "cost": ONE}]}, Verdict.UNCLEAR_COST),
            ({"media": [{"path": "a", "sha256": "0" * 64}] * 2}, Verdict.INVALID),
            ({"media": [{"path": "/a", "sha256": "0" * 64}]}, Verdict.UNSAFE_PATH),
            ({"media": [{"path": "a/../../b", "sha256": "0" * 64}]}, Verdict.UNSAFE_PATH),
            ({"media": [{"path": "./a", "sha256": "0" * 64}]}, Verdict.UNSAFE_PATH),
        ],
    )
    def test_what_is_ambiguous_is_refused(self, changes: dict[str, object], verdict: Verdict) -> None:
        assert refused(**changes) is verdict

    @pytest.mark.parametrize("field", ["scheduled_at", "completed_at"])
    def test_a_naive_time_is_no_time(self, field: str) -> None:
        with pytest.raises(ValidationError) as raised:
            record(**{field: "2026-07-27T10:00:00"})
        assert [error["type"] for error in raised.value.errors()] == ["timezone_aware"]

    @pytest.mark.parametrize(
        "changes", [{"completed": "x"}, {"completed_at": 1_700_000_000}, {"subject": "\0"}, {"status": "done"}]
    )
    def test_what_the_form_does_not_say_is_refused(self, changes: dict[str, object]) -> None:
        with pytest.raises(ValidationError):
            record(**changes)

    def test_who_has_no_identity_is_refused_or_left_open_or_unrelated_as_chosen(self) -> None:
        chosen = {choice: Rules(**_fields(RULES), without_identity=choice) for choice in WithoutIdentity}
        assert refused(chosen[WithoutIdentity.REFUSE], scheduled_at=...) is Verdict.NO_IDENTITY
        assert not plan(chosen[WithoutIdentity.IMPORT], scheduled_at=...).unrelated
        assert plan(chosen[WithoutIdentity.UNRELATED], scheduled_at=...).unrelated
        assert not plan(chosen[WithoutIdentity.UNRELATED]).unrelated

    def test_a_total_must_be_the_sum_of_the_calls_and_stands_alone_without_them(self) -> None:
        calls = [{"name": n, "cost": {"amount": "0.10", "currency": "USD"}} for n in "ab"]
        assert plan(calls=calls, cost={"amount": "0.2", "currency": "USD"}).costs == {"USD": Decimal("0.20")}
        assert refused(calls=calls, cost={"amount": "0.21", "currency": "USD"}) is Verdict.COST_MISMATCH
        alone = plan(calls=[{"name": "a"}], cost={"amount": "0.21", "currency": "USD"})
        assert [(call.call_key, call.cost is not None) for call in alone.calls] == [("a", False), (TOTAL, True)]

    def test_a_failed_call_that_names_its_remote_job_keeps_its_cost(self) -> None:
        calls = [{"name": "a", "status": "failed", "cost": ONE, "remote_reference": "r"}]
        assert plan(calls=calls).costs == {"USD": Decimal(1)}

    def test_failed_calls_come_before_the_one_that_counts(self) -> None:
        calls = [
            {"name": "a", "status": "failed"},
            {"name": "a", "status": "failed", "remote_reference": "r"},
            {"name": "a", "status": "unknown"},
        ]
        assert [(call.submission, call.state) for call in plan(calls=calls).calls] == [
            (1, SubmissionState.REJECTED),
            (2, SubmissionState.FAILED),
            (3, SubmissionState.IN_DOUBT),
        ]

    @given(st.permutations([(hour, name) for hour in range(3) for name in "abc"]))
    def test_the_order_of_a_week_is_completion_then_name(self, shuffled: list[tuple[int, str]]) -> None:
        start = datetime(2026, 7, 27, tzinfo=UTC)
        plans = [
            examine(
                LegacyRecord.from_state(
                    f"2026-W31-{name}",
                    LegacyState.model_validate(
                        STATE | {"completed_at": (start + timedelta(hours=hour)).isoformat(), "subject": name}
                    ),
                    {},
                    name=str(hour),
                ),
                RULES,
            )
            for hour, name in shuffled
        ]
        ordered = sorted((found for found in plans if isinstance(found, Plan)), key=lambda found: found.order)
        assert [(int(each.record.name), each.record.source[-1]) for each in ordered] == sorted(shuffled)


class TestContent:
    def test_the_hash_of_a_record_covers_documents_files_and_name(self) -> None:
        base = record()
        variants = [
            base,
            record(subject="acme"),
            base.model_copy(update={"name": "b"}),
            base.model_copy(update={"documents": base.documents | {"history.json": b"[]"}}),
            record(media=[{"path": "a", "sha256": "0" * 64}]),
        ]
        assert len({each.sha256 for each in variants}) == len(variants)
        assert base.model_copy(update={"source": "elsewhere"}).sha256 == base.sha256

    @given(st.binary())
    def test_a_record_comes_back_from_its_spool_as_it_was(self, document: bytes) -> None:
        old = record().model_copy(update={"documents": {"state.json": document}})
        again = LegacyRecord.model_validate(json.loads(json.dumps(old.model_dump(mode="json"))))
        assert again.documents == old.documents
        assert again.sha256 == old.sha256


def _fields(rules: Rules) -> dict[str, Any]:
    return {"pipeline": rules.pipeline, "kind": rules.kind, "timezone": rules.timezone}
