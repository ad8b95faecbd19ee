"""Answers as streams of server-sent events."""

import json
from collections.abc import Mapping, Sequence
from typing import cast

_PIECE = 12


def frame(data: object, *, name: str | None = None) -> bytes:
    """Return one event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


def pieces_of(text: str) -> list[str]:
    """Cut a text as a model would say it."""
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)] or [""]


def chat_chunks(body: bytes) -> Sequence[bytes]:
    """Return a chat completion as OpenAI streams it; the usage stands in the last chunk."""
    completion = cast("Mapping[str, object]", json.loads(body))
    choice = cast("list[Mapping[str, Mapping[str, object]]]", completion["choices"])[0]
    head = {"id": completion["id"], "created": completion["created"], "model": completion["model"]}

    def chunk(delta: Mapping[str, object], *, finish: str | None = None) -> bytes:
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        return frame({**head, "object": "chat.completion.chunk", "choices": choices})

    said = str(choice["message"]["content"])
    return [
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"content": piece}) for piece in pieces_of(said)),
        chunk({}, finish="stop"),
        frame({**head, "object": "chat.completion.chunk", "choices": [], "usage": completion["usage"]}),
        frame("[DONE]"),
    ]
