"""A job API's configuration: what is wrong is named, and what an answer says is read by it."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Money
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.job_api import JobApi
from dagster_idempotent.providers.job_http import json_object
from dagster_idempotent.providers.job_states import JobDone, JobFailed, JobRunning, JobUnknown
from dagster_idempotent.providers.outcome import Answer
from dagster_idempotent.providers.protocol import RemoteJobProvider
from dagster_idempotent.providers.remote_job import JsonJobApi

RESULT = {"result_path": "/jobs/{id}/result"}


def provider(**settings: Any) -> JsonJobApi:
    return JsonJobApi(JobApi(**{**RESULT, **settings}), name="studio", base_url="https://studio.example/v1")


def test_the_adapter_is_a_remote_job_provider() -> None:
    assert isinstance(provider(), RemoteJobProvider)


@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("submit_path", {"submit_path": "jobs"}),
        ("status_path", {"status_path": "/jobs"}),
        ("result_path", {"result_path": None}),
        ("result_path", {"result_url_at": "output.url"}),
        ("cancel_path", {"cancel_path": "/cancel"}),
        ("look_up_path", {"look_up_path": "/jobs"}),
        ("id_at", {"id_at": "a..b"}),
        ("error_at", {"error_at": ""}),
        ("running", {"running": frozenset()}),
        ("failed", {"failed": "failed"}),
        ("cancelled", {"cancelled": frozenset({"failed"})}),
        ("key_header", {"key_header": None, "key_window": timedelta(hours=1)}),
        ("currency", {"cost_at": "cost"}),
        ("currency", {"cost_at": "cost", "currency": "USD", "currency_at": "currency"}),
        ("settle_delay", {"settle_delay": timedelta(seconds=-1)}),
        ("base", {"pace": {"base": timedelta(0), "cap": timedelta(0)}}),
    ],
)
def test_a_wrong_setting_is_named(field: str, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        JobApi(**{**RESULT, **settings, **({"pace": Backoff(**settings["pace"])} if "pace" in settings else {})})
    assert caught.value.facts["field"] == field


@pytest.mark.parametrize("address", ["studio.example", "ftp://studio.example", "https://studio.example/?key=1"])
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ConfigurationError, match="base_url"):
        JsonJobApi(JobApi(**RESULT), name="studio", base_url=address)


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"status": "queued"}, JobRunning(note="queued")),
        ({"status": "running", "done": 42}, JobRunning(progress=0.42, note="running")),
        ({"status": "running", "done": Decimal("0.5")}, JobRunning(progress=0.5, note="running")),
        ({"status": "running", "done": "?"}, JobRunning(note="running")),
        ({"status": "succeeded"}, JobDone(facts={"status": "succeeded"})),
        ("HTTP 500: oh", JobUnknown(reason="HTTP 500: oh")),
    ],
)
def test_a_status_says_what_its_word_is_configured_to_mean(told: Any, state: object) -> None:
    assert provider(progress_at="done")._state(told) == state


@pytest.mark.parametrize("word", ["FAILED", "exploded", None])
def test_a_word_that_nobody_knows_is_no_failure(word: str | None) -> None:
    state = provider()._state({"status": word})
    assert isinstance(state, JobUnknown)
    assert "in no list" in state.reason


def test_a_failure_carries_its_reason_and_its_cost() -> None:
    api = provider(error_at="error.message", cost_at="cost.amount", currency="USD")
    state = api._state({"status": "cancelled", "error": {"message": "by request"}, "cost": {"amount": "0.10"}})
    assert isinstance(state, JobFailed)
    assert (state.reason, state.cancelled) == ("cancelled: by request", True)
    assert api.cost_of(state) == Money.parse("0.10 USD")


@pytest.mark.parametrize(
    ("body", "cost"),
    [
        (b'{"c": 0.1, "u": "USD"}', Money.parse("0.1 USD")),
        (b'{"c": 3, "u": "credits"}', Money.parse("3 credits")),
        (b'{"c": null, "u": "USD"}', None),
        (b'{"c": true, "u": "USD"}', None),
        (b'{"c": "much", "u": "USD"}', None),
        (b'{"c": "1"}', None),
        (b'{"c": 1e400, "u": "USD"}', None),
    ],
)
def test_a_cost_is_exact_or_unknown(body: bytes, cost: Money | None) -> None:
    api = provider(cost_at="c", currency_at="u")
    assert api.cost_of(JobDone(facts=json_object(body) or {})) == cost


def test_a_result_may_stand_in_the_status_answer_itself() -> None:
    api = provider(result_path=None, result_at="output")
    answer = api.fetch("job_1", JobDone(facts={"output": {"b": 2, "a": 1}}))
    assert isinstance(answer, Answer)
    assert api.decode(answer).json() == {"a": 1, "b": 2}
    assert isinstance(api.fetch("job_1", JobDone(facts={})), JobUnknown)
