"""Bad input is refused by an error that names the field, before anything is sent, and nothing is lost by it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx
import psycopg
import pytest

from dagster_idempotent import GuardedChatCompletionsResource, GuardedOpenAIResource
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import CallKey
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.errors import (
    ConfigurationError,
    CredentialMissing,
    IdempotentError,
    InvalidPayload,
    PayloadMismatch,
    UnknownFingerprint,
)
from dagster_idempotent.providers import clients
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.testing.claimed_work import exchange_of

if TYPE_CHECKING:
    from tests.integration.conftest import Desk

KEY = "METERED_PROVIDER_KEY"
GOOD: Mapping[str, object] = {"model": "m", "messages": [{"role": "user", "content": "Fresh news"}]}
MB = 1024 * 1024


def itself() -> dict[str, object]:
    found: dict[str, object] = {"model": "m"}
    found["messages"] = [found]
    return found


@pytest.fixture(autouse=True)
def unharmed(desk: "Desk") -> Iterator[None]:
    """Whatever a test refuses, nothing has been sent for it, and the task goes on with its next, good call."""
    yield
    charges = desk.metered.charges
    Guard(desk.work, chat(desk)).call(CallKey("afterwards"), GOOD)
    assert desk.metered.charges - charges == 1


@pytest.fixture
def sent(desk: "Desk") -> Callable[[], int]:
    before = len(desk.metered.requests())
    return lambda: len(desk.metered.requests()) - before


def chat(desk: "Desk", **settings: Any) -> ChatCompletionsProvider:
    return ChatCompletionsProvider(base_url=desk.metered.base_url, api_key_variable=KEY, **settings)


def post(desk: "Desk", *, path: str = "/chat/completions", call: str = "summary", **content: Any) -> httpx.Response:
    provider = desk.provider("httpx")
    with clients.httpx_client(exchange_of(desk.work, provider, call), provider, httpx) as client:
        return client.post(path, **content)


def no_row(desk: "Desk", call: str = "summary") -> bool:
    with psycopg.connect(desk.work.database.url) as connection:
        query = "SELECT FROM dagster_idempotent.submissions WHERE call_key = %s"
        return connection.execute(query, [call]).rowcount == 0


@contextmanager
def transcriber() -> Iterator[tuple[str, list[bytes]]]:
    """Serve one answer for whatever is posted; keep the bodies."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            answer = b'{"id": "t-1", "text": "hello"}'
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", bodies
        server.shutdown()
        thread.join()


class TestPayloads:
    @pytest.mark.parametrize(
        ("request_", "field", "found"),
        [
            ({**GOOD, "user": object()}, "/user", "object"),
            ({**GOOD, "at": datetime(2026, 8, 3, tzinfo=UTC)}, "/at", "datetime"),
            ({**GOOD, "price": Decimal("0.1")}, "/price", "Decimal"),
            ({**GOOD, "tags": {"a"}}, "/tags", "set"),
            ({**GOOD, "image": b"png"}, "/image", "bytes"),
            ({**GOOD, "a/b": {"x~y": [1, {2}]}}, "/a~1b/x~0y/1", "set"),
            ({**GOOD, "temperature": float("nan")}, "/temperature", "nan"),
            ({**GOOD, "temperature": float("-inf")}, "/temperature", "-inf"),
            (itself(), "/messages/0", "100 deep"),
        ],
        ids=["object", "datetime", "decimal", "set", "bytes", "escaped", "nan", "infinity", "itself"],
    )
    def test_what_json_cannot_carry_is_named_by_its_place(
        self, desk: "Desk", sent: Callable[[], int], request_: Mapping[str, object], field: str, found: str
    ) -> None:
        with pytest.raises(InvalidPayload, match="nothing was sent") as caught:
            Guard(desk.work, chat(desk)).call(CallKey("summary"), request_)
        assert str(caught.value.facts["field"]).startswith(field)
        assert found in caught.value.message
        assert sent() == 0
        assert no_row(desk)

    @pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity"])
    def test_a_body_with_a_number_that_is_none_is_named_by_its_place(
        self, desk: "Desk", sent: Callable[[], int], number: bytes
    ) -> None:
        body = b'{"model": "m", "messages": [], "temperature": %s}' % number
        with pytest.raises(InvalidPayload) as caught:
            post(desk, content=body, headers={"Content-Type": "application/json"})
        assert caught.value.facts["field"] == "/json/temperature"
        assert sent() == 0

    def test_50_mb_are_refused_with_the_field_that_holds_them(self, desk: "Desk", sent: Callable[[], int]) -> None:
        large = {**GOOD, "messages": [{"role": "user", "content": "x" * (50 * MB)}]}
        with pytest.raises(InvalidPayload, match="Upload it first") as caught:
            Guard(desk.work, chat(desk)).call(CallKey("summary"), large)
        assert caught.value.facts["field"] == "/messages"
        with pytest.raises(InvalidPayload, match="`max_request`") as caught:
            post(desk, content=b"x" * (50 * MB))
        assert caught.value.facts["field"] == "body"
        assert len(caught.value.message) < 1000
        assert sent() == 0
        assert no_row(desk)

    def test_a_larger_limit_lets_a_large_body_out(self, desk: "Desk", sent: Callable[[], int]) -> None:
        provider = desk.provider("httpx", max_request=64 * MB)
        with clients.httpx_client(exchange_of(desk.work, provider, "summary"), provider, httpx) as client:
            content = {"model": "m", "messages": [{"role": "user", "content": "x" * (2 * MB)}]}
            first = client.post("/chat/completions", json=content)
            assert client.post("/chat/completions", json=content).content == first.content
        assert sent() == 1

    def test_a_multipart_is_one_request_whatever_its_boundary_and_its_parts_are_compared(self, desk: "Desk") -> None:
        with transcriber() as (base_url, bodies):
            provider = HttpProvider(base_url=base_url, api_key_variable=KEY)

            def transcribe(language: str, sound: bytes) -> httpx.Response:
                exchange = exchange_of(desk.work, provider, "summary")
                with clients.httpx_client(exchange, provider, httpx) as client:
                    files = {"file": ("a.wav", sound, "audio/wav")}
                    return client.post("/audio/transcriptions", data={"language": language}, files=files)

            first = transcribe("en", b"RIFF")
            assert first.json() == {"id": "t-1", "text": "hello"}
            assert transcribe("en", b"RIFF").content == first.content
            with pytest.raises(PayloadMismatch, match="/parts/0"):
                transcribe("de", b"RIFF")
            with pytest.raises(PayloadMismatch, match="/parts/1"):
                transcribe("en", b"RIFX")
        (body,) = bodies
        assert b"RIFF" in body


class TestCallKeys:
    def test_a_key_used_for_another_payload_names_the_fields(self, desk: "Desk", sent: Callable[[], int]) -> None:
        first = post(desk, json=GOOD)
        with pytest.raises(PayloadMismatch, match="a call key of its own") as caught:
            post(desk, json={**GOOD, "model": "n"})
        assert caught.value.facts["fields"] == ("/json/model",)
        assert post(desk, json=GOOD).content == first.content
        assert sent() == 1

    def test_a_key_used_for_another_endpoint_names_it(self, desk: "Desk", sent: Callable[[], int]) -> None:
        post(desk, json=GOOD)
        with pytest.raises(PayloadMismatch, match="/url"):
            post(desk, path="/responses", json=GOOD)
        assert sent() == 1

    def test_a_fingerprint_of_another_version_is_not_guessed_at(self, desk: "Desk", sent: Callable[[], int]) -> None:
        post(desk, json=GOOD)
        with psycopg.connect(desk.work.database.url) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute("UPDATE dagster_idempotent.submissions SET fingerprint_version = 99")
        with pytest.raises(UnknownFingerprint, match="version 99"):
            post(desk, json=GOOD)
        assert sent() == 1


class TestPrices:
    @pytest.mark.parametrize("field", ["upper_bound", "input_price", "output_price"])
    @pytest.mark.parametrize("text", ["-0.50 USD", "0,50 USD", "0.5", "1e3 USD", "NaN USD", "free", "", "0.5 $"])
    def test_a_price_that_is_none_is_named_before_anything_is_sent(self, desk: "Desk", field: str, text: str) -> None:
        resource = GuardedChatCompletionsResource(base_url=desk.metered.base_url, **{field: text})
        with pytest.raises(ConfigurationError, match=field) as caught:
            resource.provider()
        assert caught.value.facts["field"] == field

    @pytest.mark.parametrize("text", ["-1 USD", "one dollar"])
    def test_the_bound_of_an_sdk_resource_too(self, text: str) -> None:
        with pytest.raises(ConfigurationError) as caught:
            GuardedOpenAIResource(upper_bound=text).provider()
        assert caught.value.facts["field"] == "upper_bound"

    def test_two_currencies_make_no_price(self) -> None:
        with pytest.raises(ConfigurationError, match="one currency"):
            GuardedChatCompletionsResource(input_price="1 USD", output_price="1 EUR").provider()

    def test_a_function_that_says_less_than_nothing_is_refused(self, desk: "Desk", sent: Callable[[], int]) -> None:
        provider = desk.provider("httpx", estimate=lambda _: Money.parse("-1 USD"))
        request = HttpRequest(method="POST", url=f"{provider.base_url}/chat/completions", body=b"{}")
        with pytest.raises(ConfigurationError, match="upper_bound is -1 USD"):
            Guard(desk.work, provider).call(CallKey("summary"), request)
        assert sent() == 0
        assert no_row(desk)


class TestCredentials:
    @pytest.mark.parametrize("value", ["", "   ", "\n", "two\nlines", "caf\u00e9"])
    def test_an_empty_or_unusable_one_is_named_and_never_shown(
        self, desk: "Desk", sent: Callable[[], int], monkeypatch: pytest.MonkeyPatch, value: str
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setenv(KEY, value)
            errors: list[IdempotentError] = []
            for ask in (
                lambda: desk.ask("openai"),
                lambda: Guard(desk.work, chat(desk)).call(CallKey("by-hand"), GOOD),
            ):
                with pytest.raises(CredentialMissing, match=KEY) as caught:
                    ask()
                errors.append(caught.value)
        assert [error.facts["variable"] for error in errors] == [KEY, KEY]
        assert not value.strip() or all(value not in str(error) for error in errors)
        assert sent() == 0
        assert desk.row()["state"] == "not_sent"
