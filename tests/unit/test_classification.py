import gzip
import json

import pytest
from hypothesis import given, settings, strategies as st

from dagster_idempotent.providers.classification import classify
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.outcome import InDoubt, NotSent, Outcome, Rejected, Succeeded
from dagster_idempotent.providers.profiles import ANTHROPIC, GENERIC, OPENAI, STRIPE, Profile
from dagster_idempotent.providers.single_send import BodyLost, Response

PROFILES = [GENERIC, OPENAI, ANTHROPIC, STRIPE]
JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
REFUSALS = (400, 401, 402, 403, 404, 405, 411, 413, 415, 422, 425)
DOUBTS = (301, 302, 303, 307, 308, 406, 408, 409, 410, 418, 500, 501, 502, 503, 504, 520, 529)
every_profile = pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)


def response(status: int, body: bytes = b'{"id": "thing-1"}', kind: str = JSON, **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Response(status=status, headers=(("content-type", kind), *named.items()), body=body)


def outcome(profile: Profile, found: Response | NotSent | InDoubt, path: str = "/v1/things") -> Outcome:
    return classify(profile, found, path=path)


class TestStatus:
    @every_profile
    @pytest.mark.parametrize("status", REFUSALS)
    def test_a_refusal_is_rejected_and_says_why(self, profile: Profile, status: int) -> None:
        found = outcome(profile, response(status, b'{"error": {"message": "no such model"}}'))

        assert isinstance(found, Rejected)
        assert "no such model" in found.reason
        assert profile.refusals[status] in found.reason

    @every_profile
    @pytest.mark.parametrize("status", DOUBTS)
    def test_what_is_no_refusal_and_no_success_is_in_doubt(self, profile: Profile, status: int) -> None:
        assert isinstance(outcome(profile, response(status)), InDoubt)

    @pytest.mark.parametrize(
        ("profile", "kind"), [(GENERIC, InDoubt), (OPENAI, Rejected), (ANTHROPIC, Rejected), (STRIPE, Rejected)]
    )
    def test_429_is_rejected_only_where_limits_are_documented_at_admission(
        self, profile: Profile, kind: type[Outcome]
    ) -> None:
        assert type(outcome(profile, response(429))) is kind

    def test_a_declined_card_is_rejected_and_keeps_its_reference(self) -> None:
        body = {"error": {"type": "card_error", "charge": "ch_9", "message": "declined"}}

        found = outcome(STRIPE, response(402, json.dumps(body).encode()))

        assert isinstance(found, Rejected)
        assert found.remote_ref == "ch_9"
        assert "ch_9" in found.reason

    def test_a_duplicate_is_in_doubt_because_the_first_may_have_landed(self) -> None:
        found = outcome(STRIPE, response(409))

        assert isinstance(found, InDoubt)
        assert "duplicate" in found.reason

    def test_a_redirection_is_in_doubt_and_not_followed(self) -> None:
        found = outcome(GENERIC, response(307, location="https://elsewhere.example/"))

        assert isinstance(found, InDoubt)
        assert "never followed" in found.reason


class TestSuccess:
    @every_profile
    @pytest.mark.parametrize("status", [200, 201, 202])
    def test_a_whole_answer_succeeds_with_its_reference(self, profile: Profile, status: int) -> None:
        found = outcome(profile, response(status))

        assert isinstance(found, Succeeded)
        assert found.remote_ref == "thing-1"
        assert found.cost is None

    @every_profile
    @pytest.mark.parametrize("status", [200, 204])
    def test_an_empty_answer_is_in_doubt(self, profile: Profile, status: int) -> None:
        assert isinstance(outcome(profile, response(status, b"")), InDoubt)

    @every_profile
    @pytest.mark.parametrize("body", [b"{", b"<html>", b"\xff\xfe", b"[" * 100_000])
    def test_an_answer_that_is_not_the_json_it_says_is_in_doubt(self, profile: Profile, body: bytes) -> None:
        assert isinstance(outcome(profile, response(200, body)), InDoubt)

    @every_profile
    def test_an_error_in_a_200_is_in_doubt(self, profile: Profile) -> None:
        body = b'{"id": "thing-1", "error": {"message": "it broke"}}'

        found = outcome(profile, response(200, body))

        assert isinstance(found, InDoubt)
        assert found.remote_ref == "thing-1"
        assert "it broke" in found.reason

    def test_an_error_that_is_null_is_no_error(self) -> None:
        assert isinstance(outcome(OPENAI, response(200, b'{"id": "resp-1", "error": null}')), Succeeded)

    @every_profile
    def test_a_web_page_in_the_place_of_an_answer_is_in_doubt(self, profile: Profile) -> None:
        assert isinstance(outcome(profile, response(200, b"<html>log in</html>", "text/html")), InDoubt)

    @pytest.mark.parametrize(
        ("profile", "path", "kind"),
        [
            (OPENAI, "/v1/audio/speech", Succeeded),
            (OPENAI, "/v1/chat/completions", InDoubt),
            (GENERIC, "/render", Succeeded),
        ],
    )
    def test_bytes_are_an_answer_where_the_endpoint_answers_bytes(
        self, profile: Profile, path: str, kind: type[Outcome]
    ) -> None:
        assert type(outcome(profile, response(200, b"ID3\x04sound", "audio/mpeg"), path)) is kind

    def test_a_packed_answer_is_read_and_kept_packed(self) -> None:
        body = gzip.compress(b'{"id": "thing-1"}', mtime=0)

        found = outcome(OPENAI, response(200, body, content_encoding="gzip"))

        assert isinstance(found, Succeeded)
        assert found.answer.body == body
        assert found.remote_ref == "thing-1"

    @pytest.mark.parametrize(
        ("body", "encoding"),
        [(gzip.compress(b'{"id": "thing-1"}', mtime=0)[:-4], "gzip"), (b"not gzip", "gzip"), (b"\x8b\x02", "br")],
    )
    def test_a_packing_that_cannot_be_undone_is_in_doubt(self, body: bytes, encoding: str) -> None:
        assert isinstance(outcome(OPENAI, response(200, body, content_encoding=encoding)), InDoubt)

    def test_credentials_cookies_connection_and_retry_hints_are_not_kept(self) -> None:
        dropped = {
            "set_cookie": "session=1",
            "x_api_key": "k",
            "connection": "x-hop",
            "x_hop": "1",
            "transfer_encoding": "chunked",
            "retry_after": "5",
            "x_should_retry": "true",
            "content_length": "999",
        }

        found = outcome(OPENAI, response(200, x_request_id="req-7", **dropped))

        assert isinstance(found, Succeeded)
        assert HttpAnswer.stored(found.answer).headers == (("content-type", JSON), ("x-request-id", "req-7"))
        assert found.answer.head["request_id"] == "req-7"


class TestStreams:
    CHUNK = b'data: {"id": "chatcmpl-1", "choices": []}\n\n'

    def test_a_stream_with_its_terminal_event_succeeds(self) -> None:
        found = outcome(OPENAI, response(200, self.CHUNK + b"data: [DONE]\n\n", EVENTS))

        assert isinstance(found, Succeeded)
        assert found.remote_ref == "chatcmpl-1"
        assert (found.answer.head["stream"], found.answer.head["terminal"]) == (True, True)

    @pytest.mark.parametrize(
        ("profile", "body"),
        [
            (OPENAI, CHUNK),
            (OPENAI, CHUNK + b"data: [DONE]"),
            (OPENAI, b"\n\n"),
            (ANTHROPIC, b'event: message_start\ndata: {"type": "message_start", "message": {"id": "m-1"}}\n\n'),
            (GENERIC, CHUNK),
        ],
    )
    def test_a_stream_that_ends_cleanly_without_its_terminal_event_is_in_doubt(
        self, profile: Profile, body: bytes
    ) -> None:
        found = outcome(profile, response(200, body, EVENTS))

        assert isinstance(found, InDoubt)
        assert "terminal event" in found.reason

    @pytest.mark.parametrize("end", ["response.completed", "response.incomplete"])
    def test_a_response_stream_ends_by_the_event_that_ends_it(self, end: str) -> None:
        body = f'event: {end}\ndata: {{"type": "{end}", "response": {{"id": "resp-1"}}}}\n\n'.encode()

        assert isinstance(outcome(OPENAI, response(200, body, EVENTS)), Succeeded)

    @pytest.mark.parametrize(
        ("profile", "event"),
        [
            (OPENAI, b'data: {"error": {"message": "overloaded"}}\n\n'),
            (OPENAI, b'event: response.failed\ndata: {"type": "response.failed", "why": "overloaded"}\n\n'),
            (ANTHROPIC, b'event: error\ndata: {"type": "error", "error": {"type": "overloaded"}}\n\n'),
        ],
    )
    def test_a_stream_that_says_that_it_failed_is_in_doubt(self, profile: Profile, event: bytes) -> None:
        found = outcome(profile, response(200, event, EVENTS))

        assert isinstance(found, InDoubt)
        assert "overloaded" in found.reason


class TestLost:
    def lost(self, status: int, body: bytes, **headers: str) -> BodyLost:
        return BodyLost(reason="connection reset", response=response(status, body, **headers))

    @every_profile
    def test_an_accepted_answer_that_was_lost_is_in_doubt_with_the_reference_in_its_half(
        self, profile: Profile
    ) -> None:
        found = outcome(profile, self.lost(200, b'{"id": "thing-1", "choices": [{"mess'))

        assert isinstance(found, InDoubt)
        assert found.remote_ref == "thing-1"
        assert "accepted" in found.reason

    def test_without_a_reference_the_providers_id_of_the_request_is_kept(self) -> None:
        found = outcome(OPENAI, self.lost(200, b"{", x_request_id="req-7"))

        assert isinstance(found, InDoubt)
        assert found.remote_ref == "req-7"

    @pytest.mark.parametrize(("status", "kind"), [(400, Rejected), (302, InDoubt), (500, InDoubt), (429, InDoubt)])
    def test_a_lost_body_of_another_status_goes_by_the_status(self, status: int, kind: type[Outcome]) -> None:
        assert type(outcome(GENERIC, self.lost(status, b"{"))) is kind

    @every_profile
    def test_not_sent_and_in_doubt_stay_what_they_are(self, profile: Profile) -> None:
        for proved in (NotSent(reason="refused"), InDoubt(reason="reset")):
            assert outcome(profile, proved) is proved

    def test_no_reason_holds_a_character_that_a_ledger_cannot_keep(self) -> None:
        for found in (outcome(GENERIC, response(400, b"a\0b", "text/plain")), outcome(GENERIC, response(500, b"\0"))):
            assert isinstance(found, Rejected | InDoubt)
            assert "\0" not in found.reason


KINDS = st.sampled_from([JSON, EVENTS, "text/html", "text/plain", "application/problem+json", "", ";", "a" * 300])
ENCODINGS = st.sampled_from(["", "gzip", "deflate", "br", "identity"])
FLAGS = st.booleans()
STATUSES = st.integers(min_value=200, max_value=599)


class TestAnything:
    @every_profile
    @settings(deadline=None)  # a busy machine is no failure
    @given(came=st.builds(response, STATUSES, st.binary(max_size=400), KINDS, content_encoding=ENCODINGS), lost=FLAGS)
    def test_an_answer_of_any_kind_has_an_outcome(self, profile: Profile, came: Response, *, lost: bool) -> None:
        found = outcome(profile, BodyLost(reason="cut", response=came) if lost else came)
        status = came.status

        assert isinstance(found, Succeeded | Rejected | InDoubt)
        if lost or status >= 300:
            assert not isinstance(found, Succeeded)
        if status < 300 or status >= 500:
            assert not isinstance(found, Rejected)
        if isinstance(found, Succeeded):
            assert HttpAnswer.stored(found.answer).to_store(**found.answer.head) == found.answer
