"""Answers that are late, half, packed, or not what they seem."""

import asyncio
import gzip
import json
from collections.abc import Mapping

from dagster_idempotent.testing.metered_provider.exchange import Exchange, StreamEnding

Options = Mapping[str, object]


async def slow(exchange: Exchange, options: Options) -> None:
    """Accept, be done at once, and answer after `seconds`."""
    charge = exchange.accept()
    exchange.finish(charge)
    await asyncio.sleep(float(str(options["seconds"])))
    await exchange.answer(charge)


async def error_in_200(exchange: Exchange, options: Options) -> None:
    """Charge, and answer 200 with an error as the body."""
    exchange.finish(exchange.accept())
    error = {"message": str(options["message"]), "type": "server_error", "param": None, "code": None}
    await exchange.respond(200, json.dumps({"error": error}).encode())


async def empty_answer(exchange: Exchange, options: Options) -> None:
    """Charge, and answer a success without a body."""
    exchange.finish(exchange.accept())
    await exchange.respond(int(str(options["status"])), b"")


async def gzipped(exchange: Exchange, _: Options) -> None:
    """Answer as ever, packed by gzip."""
    charge = exchange.accept()
    exchange.finish(charge)
    body = b"".join(exchange.events_of(charge)) if exchange.wants_stream else charge.answer
    kind = "text/event-stream" if exchange.wants_stream else "application/json"
    headers = {"content-type": kind, "content-encoding": "gzip", exchange.request_id_header: charge.request_id}
    await exchange.respond(200, gzip.compress(body, mtime=0), headers=headers)


async def cut_stream(exchange: Exchange, options: Options) -> None:
    """Stream the first `events` and hang up in the middle."""
    await _stream(exchange, StreamEnding.HANG_UP, int(str(options["events"])))


async def truncated_stream(exchange: Exchange, options: Options) -> None:
    """Stream the first `events` and end as if that were all."""
    await _stream(exchange, StreamEnding.CLEAN, int(str(options["events"])))


async def open_stream(exchange: Exchange, _: Options) -> None:
    """Stream all events and keep the connection open after the last."""
    await _stream(exchange, StreamEnding.STAY_OPEN, None)


async def error_in_stream(exchange: Exchange, options: Options) -> None:
    """Stream the first `events`, then say that it failed, and end cleanly."""
    await _stream(exchange, StreamEnding.CLEAN, int(str(options["events"])), failed=True)


async def _stream(exchange: Exchange, ending: StreamEnding, events: int | None, *, failed: bool = False) -> None:
    charge = exchange.accept()
    exchange.finish(charge)
    frames = list(exchange.events_of(charge))[:events]
    if failed:
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "it failed half way"}}
        frames.append(f"event: error\ndata: {json.dumps(error)}\n\n".encode())
    await exchange.respond_stream(frames, charge, ending=ending)
