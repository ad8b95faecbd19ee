"""Handing out what the ledger keeps, byte for byte."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from dagster_idempotent.cli.output import print_json, say
from dagster_idempotent.engine.payloads import Payload

Function = TypeVar("Function", bound=Callable[..., object])


def output_option(function: Function) -> Function:
    """Add -o/--output."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path, dir_okay=False),
        help="Write the bytes to this new file and say what they are.  [default: stdout]",
    )(function)


def hand_out(payload: Payload, *, output: Path | None, as_json: bool) -> None:
    """Write a payload to stdout or to a new file, or print it with its facts as JSON."""
    facts: dict[str, object] = {
        "name": payload.name,
        "media_type": payload.media_type,
        "size": len(payload.body),
        "sha256": payload.sha256,
        "uri": payload.uri,
    }
    if output is not None:
        _write(output, payload.body)
        if as_json:
            print_json(facts | {"output": str(output)})
        else:
            kind = f", {payload.media_type}" if payload.media_type else ""
            say(f"{payload.name}: {len(payload.body):,} bytes{kind}, SHA-256 {payload.sha256}")
    elif as_json:
        print_json(facts | _readable(payload.body))
    else:
        click.echo(payload.body, nl=False)


def _write(output: Path, body: bytes) -> None:
    try:
        # Never over a file that is there: it may be the only copy of another week's.
        with output.open("xb") as file:
            file.write(body)
    except FileExistsError as error:
        raise click.UsageError(f"{output} exists already. Name a new file, or delete it first.") from error
    except OSError as error:
        raise click.UsageError(f"{output} cannot be written: {error.strerror}.") from error


def _readable(body: bytes) -> dict[str, object]:
    try:
        return {"text": body.decode("utf-8")}
    except UnicodeDecodeError:
        return {"base64": body}
