"""Rendering: tables for people, one JSON document for programs; data on stdout, talk on stderr."""

import csv
import io
import json
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from uuid import UUID

import click

Row = Mapping[str, Any]


def say(text: str) -> None:
    """Talk to a person: stderr, so that stdout stays data."""
    click.echo(text, err=True)


def print_json(document: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(document, default=_plain, ensure_ascii=False, indent=2))


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool, nothing: str) -> None:
    """Print rows as a table of `columns`, or whole as JSON; `nothing` is said where there are none."""
    if as_json:
        print_json([dict(row) for row in rows])
    elif not rows:
        say(nothing)
    else:
        _print_table(columns, [[text_of(row[column]) for column in columns] for row in rows])


def print_facts(facts: Row, *, as_json: bool) -> None:
    """Print one record, a line a field, or as JSON."""
    if as_json:
        print_json(dict(facts))
        return
    width = max((len(name) for name in facts), default=0) + 1
    for name, value in facts.items():
        click.echo(f"{name + ':':<{width}} {text_of(value)}".rstrip())


def print_csv(rows: Sequence[Row], columns: Sequence[str]) -> None:
    """Print rows as CSV with a header."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([text_of(row[column]) for column in columns] for row in rows)
    click.echo(text.getvalue(), nl=False)


def text_of(value: object) -> str:
    """Write a value as a person reads it."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")
        case Decimal():
            return f"{value:f}"
        case dict() | list():
            return json.dumps(value, default=_plain, ensure_ascii=False)
        case _:
            return str(value)


def _print_table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    # Lines of data stay whole in a file or a pipe; only a person's terminal gets a drawn table.
    if sys.stdout.isatty() and find_spec("rich") is not None:
        table = import_module("rich.table").Table(*columns)
        text = import_module("rich.text").Text
        for row in cells:
            table.add_row(*(text(cell) for cell in row))
        import_module("rich.console").Console().print(table)
        return
    flat = [[" ".join(cell.split()) for cell in row] for row in cells]
    widths = [max(len(line[n]) for line in (columns, *flat)) for n in range(len(columns))]
    for line in (columns, *flat):
        click.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip())


def _plain(value: object) -> object:
    match value:
        case datetime() | date():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case Decimal():
            return f"{value:f}"
        case UUID():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case _:
            return str(value)
