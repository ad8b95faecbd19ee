"""OpenAI's `POST /responses`, as far as its SDK needs it."""

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import cast

from dagster_idempotent.testing.metered_provider.answers import Answer, said_in_answer, text_of, tokens
from dagster_idempotent.testing.metered_provider.streams import frame, pieces_of


def response(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:
    """Answer a request for a model response."""
    request_id = f"resp_{uuid.uuid4().hex}"
    given = payload.get("input")
    prompt = given if isinstance(given, str) else text_of(given)
    said = said_in_answer(number, payload, prompt) if content is None else content
    used = {"input_tokens": tokens(prompt), "output_tokens": tokens(said)}
    text: dict[str, object] = {"type": "output_text", "text": said, "annotations": [], "logprobs": []}
    message: dict[str, object] = {
        "id": f"msg_{uuid.uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    body: dict[str, object] = {
        "id": request_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": "completed",
        "error": None,
        "incomplete_details": None,
        "instructions": payload.get("instructions"),
        "metadata": payload.get("metadata") or {},
        "model": str(payload.get("model", "metered-1")),
        "output": [message],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            **used,
            "total_tokens": sum(used.values()),
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }
    return Answer(request_id=request_id, body=json.dumps(body).encode())


def response_events(body: bytes) -> Sequence[bytes]:
    """Return a model response as OpenAI streams it; its last event is `response.completed`."""
    whole = cast("dict[str, object]", json.loads(body))
    item = cast("list[dict[str, object]]", whole["output"])[0]
    part = cast("list[dict[str, object]]", item["content"])[0]
    started: dict[str, object] = {**whole, "status": "in_progress", "output": [], "usage": None}
    place: dict[str, object] = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    steps: list[tuple[str, Mapping[str, object]]] = [
        ("response.created", {"response": started}),
        ("response.output_item.added", {"output_index": 0, "item": {**item, "status": "in_progress", "content": []}}),
        ("response.content_part.added", {**place, "part": {**part, "text": ""}}),
        *(
            ("response.output_text.delta", {**place, "delta": piece, "logprobs": []})
            for piece in pieces_of(str(part["text"]))
        ),
        ("response.output_text.done", {**place, "text": part["text"], "logprobs": []}),
        ("response.content_part.done", {**place, "part": part}),
        ("response.output_item.done", {"output_index": 0, "item": item}),
        ("response.completed", {"response": whole}),
    ]
    return [
        frame({"type": name, "sequence_number": number, **fields}, name=name)
        for number, (name, fields) in enumerate(steps)
    ]
