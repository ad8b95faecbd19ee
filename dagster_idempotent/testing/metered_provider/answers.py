"""What the provider answers: valid chat completions, each visibly unlike the last."""

import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

_TITLE_LENGTH = 60
_HIGHLIGHTS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An id and the bytes of a response body."""

    request_id: str
    body: bytes


def chat_completion(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:
    """Answer a chat completion request; `content` replaces what the model would have said."""
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    prompt = text_of(payload.get("messages"))
    said = said_in_answer(number, payload, prompt) if content is None else content
    prompt_tokens, completion_tokens = tokens(prompt), tokens(said)
    body = {
        "id": request_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": str(payload.get("model", "metered-1")),
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": said, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }
    return Answer(request_id=request_id, body=json.dumps(body).encode())


def said_in_answer(number: int, payload: Mapping[str, object], prompt: str) -> str:
    """Return what the model says: JSON where the request asks for it."""
    lines = [line.strip() for line in prompt.splitlines() if line.strip()] or ["nothing"]
    title = f"{lines[-1][:_TITLE_LENGTH]} (answer {number}, {uuid.uuid4().hex[:8]})"
    if not _wants_json(payload):
        return title
    return json.dumps({"title": title, "highlights": lines[:_HIGHLIGHTS]})


def _wants_json(payload: Mapping[str, object]) -> bool:
    wanted = _mapping(payload.get("response_format")).get("type")
    return wanted in {"json_object", "json_schema"} or _mapping(payload.get("metadata")).get("format") == "json"


def text_of(messages: object) -> str:
    """Return the text of a list of messages."""
    if not isinstance(messages, list):
        return ""
    return "\n".join(_text_of_content(_mapping(each).get("content")) for each in cast("list[object]", messages))


def _text_of_content(content: object) -> str:
    if isinstance(content, list):
        return "\n".join(str(_mapping(part).get("text", "")) for part in cast("list[object]", content))
    return "" if content is None else str(content)


def _mapping(value: object) -> Mapping[str, object]:
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def tokens(text: str) -> int:
    """Count tokens: words."""
    return max(1, len(text.split()))
