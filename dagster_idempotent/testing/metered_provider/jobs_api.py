"""`POST /v1/jobs`, and the job that it starts: queued, running, then at its end, as a test or its polls drive it.

The submission is charged like any other paid request. Everything after it is free, and only spoiled by faults that
name its path.
"""

import json
import struct
import time
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import cast

from dagster_idempotent.testing.metered_provider.answers import Answer
from dagster_idempotent.testing.metered_provider.job_book import JobState

MOST_BYTES = 1_000_000_000
_SIDE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The bytes that a finished job made."""

    body: bytes
    media_type: str


def job(number: int, payload: Mapping[str, object], *, content: str | None = None) -> Answer:  # noqa: ARG001 - as every endpoint
    """Answer the submission of a job; what it makes is told by `job_result`."""
    job_id = f"job_{uuid.uuid4().hex[:24]}"
    body = {"id": job_id, "object": "job", "number": number, "created": int(time.time()), "input": payload}
    return Answer(request_id=job_id, body=json.dumps({**body, "status": "queued"}).encode())


def job_problem(payload: Mapping[str, object]) -> str | None:
    """Return what is wrong with a submission; None where nothing is."""
    size = payload.get("bytes", 0)
    if not isinstance(size, int) or not 0 <= size <= MOST_BYTES:
        return f"expected `bytes`, a number of at most {MOST_BYTES}"
    return None if isinstance(payload.get("prompt"), str) else "expected `prompt`, a text"


def job_view(submitted: bytes, state: JobState, *, key: str | None, amount: str, currency: str) -> Mapping[str, object]:
    """Return a job as `GET /v1/jobs/{id}` shows it."""
    body = cast("dict[str, object]", json.loads(submitted))
    ended = state.status in {"succeeded", "failed", "cancelled"}
    return {
        **{name: body[name] for name in ("id", "object", "created", "input")},
        "key": key,
        "status": state.status,
        "progress": 1.0 if state.status == "succeeded" else state.progress,
        "error": {"message": state.error} if state.error else None,
        "cost": {"amount": amount, "currency": currency} if ended else None,
    }


def job_result(submitted: bytes, state: JobState) -> Result:
    """Return what a job made: what a test set, `bytes` of noise, or a picture of the prompt; always the same."""
    if state.result is not None:
        return Result(body=state.result, media_type=state.media_type or "application/octet-stream")
    body = cast("dict[str, object]", json.loads(submitted))
    payload = cast("Mapping[str, object]", body["input"])
    seed = sha256(f"{payload['prompt']} {body['number']}".encode()).digest()
    size = cast("int", payload.get("bytes", 0))
    if size:
        block = sha256(seed).digest() * 32
        return Result(body=(block * (size // len(block) + 1))[:size], media_type="video/mp4")
    return Result(body=_picture(seed), media_type="image/png")


def _picture(seed: bytes) -> bytes:
    """Draw a small PNG whose colours tell the seed."""
    red, green, blue = seed[0], seed[1], seed[2]
    rows = b"".join(
        b"\0" + b"".join(bytes(((red + 2 * x) % 256, (green + 2 * y) % 256, blue)) for x in range(_SIDE))
        for y in range(_SIDE)
    )
    header = struct.pack(">IIBBBBB", _SIDE, _SIDE, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
