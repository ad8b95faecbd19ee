"""What a look-up shows beside an answer is kept and shown in red; one that is not exact settles nothing (R14)."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from dagster_idempotent.definitions.asset_checks import NOTHING_CHARGED_TWICE, evaluations, look_at
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.engine.decisions import Who
from dagster_idempotent.engine.explain import explain
from dagster_idempotent.engine.resolutions import acknowledge
from dagster_idempotent.engine.verify import verify
from dagster_idempotent.errors import CallInDoubt, CallRejected, DecisionRefused
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.outcome import (
    Answer,
    Finding,
    LookUpFailed,
    NotFound,
    PossibleMatch,
    PossibleMatches,
    Rejected,
    Succeeded,
    Unfinished,
)
from dagster_idempotent.providers.profiles import OPENAI
from dagster_idempotent.store.listing import TaskRef

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench


class Fuzzy(ChatCompletionsProvider):
    """A provider that can be searched by hand only: by time and model, say."""

    finding: Finding = PossibleMatches()

    @property
    def lookup(self) -> LookUp:
        return LookUp.FUZZY

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        assert keys
        return self.finding


def explained(bench: "Bench") -> str:
    found = explain(bench.database, TaskRef(pipeline="weekly_digest", task_id=TaskId(bench.task()["task_id"])))
    return "\n".join([*found.evidence, *(step.command for step in found.next)])


def kinds(bench: "Bench") -> list[tuple[str, str]]:
    rows = bench.sql.execute("SELECT kind, remote_ref FROM dagster_idempotent.sightings ORDER BY 1, 2").fetchall()
    return [(row["kind"], row["remote_ref"]) for row in rows]


class TestAfterAResend:
    def resend(self, bench: "Bench", *, deduplicate: bool) -> ChatCompletionsProvider:
        """Lose an answer while the look-up is away, and send the same key again."""
        bench.metered.configure(lookup=False, deduplicate=deduplicate)
        provider = bench.provider(key_window=timedelta(hours=1), settle_delay=timedelta(seconds=1))
        bench.doubt(provider)
        assert bench.call(provider).replayed is False
        assert bench.rows()[0]["sends"] == 2
        return provider

    def test_a_provider_that_took_it_for_two_requests_is_shown_in_red(self, bench: "Bench") -> None:
        provider = self.resend(bench, deduplicate=False)
        assert bench.charges == 2
        assert kinds(bench) == []
        bench.metered.configure(lookup=True)
        # The look-up was away: the next replay makes it good, once, and the answer stays what it is.
        first = bench.call(provider)
        assert first == bench.call(provider)
        ((kind, reference),) = kinds(bench)
        assert kind == "charged_again"
        assert {reference, first.remote_ref} == {
            line.request_id for line in bench.metered.bill().lines[bench.charges_before :]
        }
        assert f"RED: call summary, submission 1: the provider shows {reference} too" in explained(bench)
        verification = verify(bench.database)
        assert verification.findings == []
        assert [notice.rule for notice in verification.notices] == ["charged_twice"]
        checks = {each.check_name: each for each in evaluations(look_at(bench.database))}
        assert not checks[NOTHING_CHARGED_TWICE].passed

    def test_a_person_sees_to_a_double_charge_and_it_is_red_no_more(self, bench: "Bench") -> None:
        provider = self.resend(bench, deduplicate=False)
        bench.metered.configure(lookup=True)
        bench.call(provider)
        ref = TaskRef(pipeline="weekly_digest", task_id=TaskId(bench.task()["task_id"]))
        who = Who(actor="ada", reason="refund 4711")
        assert f"calls acknowledge {ref} summary" in explained(bench)
        acknowledge(bench.database, ref, "summary", who=who, dry_run=True)
        assert "RED" in explained(bench)
        acknowledge(bench.database, ref, "summary", who=who)
        assert "RED" not in explained(bench)
        assert "calls acknowledge" not in explained(bench)
        assert verify(bench.database).notices == []
        checks = {each.check_name: each for each in evaluations(look_at(bench.database))}
        assert checks[NOTHING_CHARGED_TWICE].passed
        with pytest.raises(DecisionRefused, match="somebody has seen to it"):
            acknowledge(bench.database, ref, "summary", who=who)

    def test_a_provider_that_honours_the_key_is_asked_once_more_and_never_again(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = self.resend(bench, deduplicate=True)
        bench.metered.configure(lookup=True)
        bench.call(provider)
        assert kinds(bench) == [("confirmed", "")]
        asked: list[object] = []
        monkeypatch.setattr(provider, "find", asked.append)
        bench.call(provider)
        assert asked == []
        assert "RED" not in explained(bench)
        checks = {each.check_name: each for each in evaluations(look_at(bench.database))}
        assert checks[NOTHING_CHARGED_TWICE].passed
        assert bench.charges == 1

    def test_a_service_that_took_one_job_for_two_is_shown_in_red(self, bench: "Bench") -> None:
        bench.metered.configure(lookup=False, deduplicate=False)
        provider = bench.studio(key_window=timedelta(hours=1), settle_delay=timedelta(seconds=1))
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(provider, {"prompt": "a forest"})
        first, second = bench.call(provider, {"prompt": "a forest"}), bench.metered.jobs()
        bench.metered.configure(lookup=True)
        bench.call(provider, {"prompt": "a forest"})
        assert kinds(bench) == [("charged_again", second[-2].id)]
        assert (first.remote_ref, bench.charges) == (second[-1].id, 2)

    def test_the_look_up_that_settles_a_doubt_counts_too(self, bench: "Bench") -> None:
        bench.metered.configure(lookup=False, deduplicate=False)
        provider = bench.provider(key_window=timedelta(hours=1), settle_delay=timedelta(seconds=1))
        bench.doubt(provider)
        bench.metered.fault("accept_then_drop")
        with pytest.raises(CallInDoubt):
            bench.call(provider)
        bench.metered.configure(lookup=True)
        assert bench.call(provider).replayed is True
        assert [kind for kind, _ in kinds(bench)] == ["charged_again"]
        assert bench.charges == 2

    def test_a_replay_without_a_credential_is_no_reason_to_fail(
        self, bench: "Bench", monkeypatch: pytest.MonkeyPatch
    ) -> None:
        provider = self.resend(bench, deduplicate=True)
        monkeypatch.delenv("K")
        assert bench.call(provider).replayed is True
        assert kinds(bench) == []


class TestFuzzy:
    @pytest.mark.parametrize(
        ("finding", "shown"),
        [
            (
                PossibleMatches(
                    matches=(
                        PossibleMatch(remote_ref="job-1", described="at 9:00, model m"),
                        PossibleMatch(remote_ref="job-2", described="at 9:01, model m"),
                    )
                ),
                "job-1 (at 9:00, model m); job-2",
            ),
            (PossibleMatches(), "nothing that could be this request"),
            (Succeeded(answer=Answer(body=b"{}"), remote_ref="job-3"), "job-3 (the look-up calls it succeeded)"),
            (Unfinished(remote_ref="job-4"), "job-4 (the look-up calls it unfinished)"),
            (Rejected(reason="no", remote_ref="job-5"), "job-5 (the look-up calls it rejected)"),
            (NotFound(complete=True), "nothing that could be this request"),
            (LookUpFailed(reason="it is away"), "it is away"),
        ],
        ids=["matches", "none", "succeeded", "unfinished", "rejected", "not-found", "failed"],
    )
    def test_it_shows_possible_matches_and_never_settles(self, bench: "Bench", finding: Finding, shown: str) -> None:
        provider = bench.provider(Fuzzy, look_up_path=None, settle_delay=timedelta(0))
        provider.finding = finding
        bench.expire(seconds=3600)
        error = bench.doubt(provider)
        bench.expire(seconds=3600)
        assert shown in error.message
        assert error.retry_after is None
        assert (bench.states(), bench.task()["status"]) == (["in_doubt"], "held")
        with pytest.raises(Exception, match="is held"):
            bench.call(provider)
        assert bench.states() == ["in_doubt"]
        assert len(bench.posts) == 1
        text = explained(bench)
        assert ("the look-up shows" in text) == shown.startswith("job-")
        assert "calls reconcile" in text

    def test_an_http_api_can_have_one(self) -> None:
        def find(_: Sequence[IdempotencyKey]) -> Finding:
            return PossibleMatches()

        assert HttpProvider(OPENAI, find=find, exact=False).lookup is LookUp.FUZZY
        assert HttpProvider(OPENAI, find=find).lookup is LookUp.EXACT


class TestRefusals:
    def test_a_refusal_that_names_what_it_is_about_keeps_the_reference(
        self, bench: "Bench", ask_openai: Callable[[], Any]
    ) -> None:
        bench.metered.fault("status", status=402, body='{"id": "order-7", "error": {"message": "pay first"}}')
        with pytest.raises(CallRejected) as caught:
            ask_openai()
        assert caught.value.facts["remote_ref"] == "order-7"
        (row,) = bench.rows()
        assert (row["state"], row["remote_ref"]) == ("rejected", "order-7")

    @pytest.fixture
    def ask_openai(self, bench: "Bench") -> Callable[[], Any]:
        provider: Any = HttpProvider(OPENAI, base_url=bench.metered.base_url, api_key_variable="K")
        return lambda: self.ask(bench, provider)

    def ask(self, bench: "Bench", provider: Any) -> Any:
        request: Any = HttpRequest(
            method="POST",
            url=f"{bench.metered.base_url}/chat/completions",
            headers=(("Content-Type", "application/json"),),
            body=b'{"model": "m", "messages": []}',
        )
        return bench.call(provider, request)


def test_a_sighting_is_kept_for_ever(bench: "Bench") -> None:
    TestAfterAResend().resend(bench, deduplicate=True)
    bench.sql.execute(
        "INSERT INTO dagster_idempotent.sightings "
        "(pipeline, task_id, call_key, submission, kind, remote_ref, described) "
        "SELECT pipeline, task_id, call_key, submission, 'possible', 'job-1', 'x' FROM dagster_idempotent.submissions"
    )
    for change in (
        "UPDATE dagster_idempotent.sightings SET described = 'y'",
        "DELETE FROM dagster_idempotent.sightings",
    ):
        with pytest.raises(psycopg.errors.RestrictViolation, match="is refused"):
            bench.sql.execute(change)  # pyright: ignore[reportArgumentType]
