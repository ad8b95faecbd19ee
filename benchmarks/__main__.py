"""`python -m benchmarks`: print a table of ratios, and write it as JSON where asked."""

import argparse
import json
import platform
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

from benchmarks.arms import all_arms
from benchmarks.measuring import Measured, measure
from dagster_idempotent import embedded
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure on an embedded server of its own, which syncs every commit as production does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=15, help="how often each arm has its turn (default 15)")
    parser.add_argument("--operations", type=int, default=200, help="operations of an arm in a round (default 200)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    asked = parser.parse_args(arguments)
    if asked.rounds < 1 or asked.operations < 1:
        parser.error("--rounds and --operations must be at least 1.")
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        measured = _on_own_server(Path(folder) / "postgres", rounds=asked.rounds, operations=asked.operations)
    _print(measured)
    if asked.json is not None:
        facts = {"python": platform.python_version(), "machine": platform.machine(), "rounds": asked.rounds}
        asked.json.write_text(json.dumps({**facts, "arms": [asdict(arm) for arm in measured]}, indent=2) + "\n")
    return 0


def _on_own_server(folder: Path, *, rounds: int, operations: int) -> list[Measured]:
    server = embedded.start(folder, durable=True)
    try:
        database = Database(embedded.create_database(server.url, "benchmark"))
        schema.upgrade(database)
        with closing(database), database.connect() as connection:
            return measure(
                all_arms(database, connection),
                rounds=rounds,
                operations=operations,
                on_round=lambda n: print(f"round {n + 1} of {rounds}", file=sys.stderr),
            )
    finally:
        embedded.remove(folder)


def _print(measured: list[Measured]) -> None:
    print(f"{'arm':32} {'x floor':>8} {'(rounds)':>16} {'µs':>8}")
    for arm in measured:
        spread = f"{arm.lowest:.1f} - {arm.highest:.1f}"
        print(f"{arm.name:32} {arm.times_floor:8.2f} {spread:>16} {arm.microseconds:8.0f}")


if __name__ == "__main__":
    sys.exit(main())
