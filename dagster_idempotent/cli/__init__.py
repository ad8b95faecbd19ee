"""The command line: parse, call the engine, render."""

from dagster_idempotent.cli.root import main

__all__ = ["main"]
