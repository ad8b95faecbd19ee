"""What a look-up brings, read without trust: only a complete and well-formed "not found" says anything."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from dagster_idempotent.domain.submission import IdempotencyKey
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.providers.outcome import LookUpFailed, NotFound, Succeeded, Unfinished

COMPLETION = {"id": "c", "choices": [{"message": {"content": "text"}}]}


@contextmanager
def service(status: int, body: bytes) -> Iterator[ChatCompletionsProvider]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        host, port = server.server_address[:2]
        yield ChatCompletionsProvider(base_url=f"http://{host!s}:{port}", api_key_variable="K", look_up_path="/lookup")
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def credential(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("K", "sk-secret")


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (500, b"{}"),
        (404, b'{"requests": [], "complete": true}'),
        (200, b""),
        (200, b"[]"),
        (200, b"<html>"),
        (200, b'{"requests": null, "complete": true}'),
        (200, b'{"requests": {}, "complete": true}'),
        (200, b'{"requests": [null]}'),
        (200, b'{"requests": ["a"]}'),
        (200, b'{"requests": [{}]}'),
        (200, b'{"requests": [{"id": 7, "response": null}]}'),
        (200, b'{"requests": [{"id": "", "response": null}]}'),
        (200, b'{"requests": [{"id": "r", "response": "text"}]}'),
        (200, b'{"requests": [{"id": "r", "response": {"choices": []}}]}'),
        (200, b"[" * 100_000),
        (401, b"no such key: sk-secret"),
    ],
)
def test_what_cannot_be_read_says_nothing(status: int, body: bytes) -> None:
    with service(status, body) as provider:
        found = provider.find([IdempotencyKey("k")])
    assert isinstance(found, LookUpFailed)
    assert "sk-secret" not in found.reason


@pytest.mark.parametrize("complete", ["false", "null", '"true"', "1"])
def test_only_true_is_complete(complete: str) -> None:
    with service(200, f'{{"requests": [], "complete": {complete}}}'.encode()) as provider:
        assert provider.find([IdempotencyKey("k")]) == NotFound(complete=False)


def test_an_empty_and_complete_search_found_nothing() -> None:
    with service(200, b'{"requests": [], "complete": true}') as provider:
        assert provider.find([IdempotencyKey("k"), IdempotencyKey("l")]) == NotFound(complete=True)


def test_a_search_for_no_key_at_all_is_not_asked() -> None:
    with service(500, b"") as provider:
        assert provider.find([]) == NotFound(complete=False)


def test_what_is_found_is_an_answer_or_not_finished() -> None:
    with service(200, json.dumps({"requests": [{"id": "r", "response": None}]}).encode()) as provider:
        assert provider.find([IdempotencyKey("k")]) == Unfinished(remote_ref="r")
    with service(200, json.dumps({"requests": [{"id": "r", "response": COMPLETION}]}).encode()) as provider:
        found = provider.find([IdempotencyKey("k")])
    assert isinstance(found, Succeeded)
    assert provider.decode(found.answer).text == "text"


def test_two_hits_are_told_apart_by_what_the_provider_calls_them() -> None:
    rows = [{"id": name, "response": COMPLETION} for name in ("first", "second", "")]
    with service(200, json.dumps({"requests": rows}).encode()) as provider:
        finding = provider.find([IdempotencyKey("k")])
    assert isinstance(finding, Succeeded)
    assert finding.also == ("second", "a request without an id")
