"""Anthropic's `POST /v1/messages`, as far as its SDK needs it."""

import json
import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from dagster_idempotent.testing.metered_provider.answers import Answer, said_in_answer, text_of, tokens
from dagster_idempotent.testing.metered_provider.streams import frame, pieces_of


def message(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:
    """Answer a request for a message."""
    request_id = f"msg_{uuid.uuid4().hex}"
    prompt = text_of(payload.get("messages"))
    said = said_in_answer(number, payload, prompt) if content is None else content
    body = {
        "id": request_id,
        "type": "message",
        "role": "assistant",
        "model": str(payload.get("model", "metered-1")),
        "content": [{"type": "text", "text": said}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": tokens(prompt), "output_tokens": tokens(said)},
    }
    return Answer(request_id=request_id, body=json.dumps(body).encode())


def message_events(body: bytes) -> Sequence[bytes]:
    """Return a message as Anthropic streams it; the usage of its first event is a placeholder."""
    whole = cast("dict[str, object]", json.loads(body))
    used = cast("dict[str, int]", whole["usage"])
    said = str(cast("list[dict[str, object]]", whole["content"])[0]["text"])
    started: dict[str, object] = {**whole, "content": [], "stop_reason": None, "usage": {**used, "output_tokens": 1}}
    block = {"type": "text", "text": ""}
    deltas = [{"index": 0, "delta": {"type": "text_delta", "text": piece}} for piece in pieces_of(said)]
    ended = {"delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": used}
    steps: list[tuple[str, Mapping[str, object]]] = [
        ("message_start", {"message": started}),
        ("content_block_start", {"index": 0, "content_block": block}),
        ("ping", {}),
        *(("content_block_delta", delta) for delta in deltas),
        ("content_block_stop", {"index": 0}),
        ("message_delta", ended),
        ("message_stop", {}),
    ]
    return [frame({"type": name, **fields}, name=name) for name, fields in steps]
