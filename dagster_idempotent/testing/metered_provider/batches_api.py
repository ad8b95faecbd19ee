"""OpenAI's batches: a file of requests is uploaded, a batch of it is paid for, its output is another file."""

import email
import email.policy
import json
import time
import uuid
from collections.abc import Mapping
from typing import cast

from dagster_idempotent.testing.metered_provider.answers import Answer, chat_completion
from dagster_idempotent.testing.metered_provider.job_book import JobState

_WORDS = {
    "queued": "validating",
    "running": "in_progress",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}


def batch(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:  # noqa: ARG001 - as every endpoint
    """Answer the creation of a batch."""
    batch_id = f"batch_{uuid.uuid4().hex[:24]}"
    body = {
        "id": batch_id,
        "object": "batch",
        "endpoint": payload["endpoint"],
        "input_file_id": payload["input_file_id"],
        "completion_window": payload.get("completion_window", "24h"),
        "metadata": payload.get("metadata"),
        "created_at": int(time.time()),
        "status": "validating",
        "number": number,
    }
    return Answer(request_id=batch_id, body=json.dumps(body).encode())


def batch_problem(payload: Mapping[str, object]) -> str | None:
    """Return what is wrong with the creation of a batch; None where nothing is."""
    missing = [name for name in ("endpoint", "input_file_id") if not isinstance(payload.get(name), str)]
    return f"expected {' and '.join(missing)}" if missing else None


def batch_view(submitted: bytes, state: JobState, *, requests: int) -> Mapping[str, object]:
    """Return a batch as `GET /v1/batches/{id}` shows it."""
    body = cast("dict[str, object]", json.loads(submitted))
    done = requests if state.status == "succeeded" else int((state.progress or 0) * requests)
    error = {"object": "list", "data": [{"code": "invalid", "message": state.error}]} if state.error else None
    return {
        **body,
        "status": _WORDS[state.status],
        "errors": error,
        "output_file_id": f"output-{body['id']}" if state.status == "succeeded" else None,
        "error_file_id": None,
        "request_counts": {"total": requests, "completed": done, "failed": 0},
    }


def batch_output(submitted: bytes, uploaded: bytes, state: JobState) -> bytes:
    """Return the output file of a batch: an answer for each line of its input; always the same."""
    if state.result is not None:
        return state.result
    number = cast("int", json.loads(submitted)["number"])
    lines: list[str] = []
    for line in uploaded.splitlines():
        if not line.strip():
            continue
        asked = cast("dict[str, object]", json.loads(line))
        answer = chat_completion(number, cast("Mapping[str, object]", asked["body"]), content=f"answer {number}")
        body = json.loads(answer.body) | {"id": f"chatcmpl-{number}-{asked['custom_id']}", "created": 0}
        response = {"status_code": 200, "request_id": f"req-{number}", "body": body}
        lines.append(json.dumps({"id": "r", "custom_id": asked["custom_id"], "response": response, "error": None}))
    return ("\n".join(lines) + "\n").encode()


def uploaded_file(content_type: str, body: bytes) -> bytes | None:
    """Return the part `file` of an upload; None where there is none."""
    whole = f"content-type: {content_type}\r\n\r\n".encode() + body
    message = email.message_from_bytes(whole, policy=email.policy.HTTP)
    if not message.is_multipart():
        return None
    for part in message.iter_parts():
        if part.get_param("name", header="content-disposition") == "file":
            found = part.get_payload(decode=True)
            return found if isinstance(found, bytes) else None
    return None
