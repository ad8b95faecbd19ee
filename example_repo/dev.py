"""The Dagster UI on the example: `make dev`. Runs, events and the ledger are kept in one PostgreSQL."""

import argparse
import os
import sys
from pathlib import Path

from dagster_idempotent import embedded
from dagster_idempotent.store import schema
from dagster_idempotent.store.database import Database
from example_repo import settings
from example_repo.local_dagster import WORKSPACE, make_home


def main() -> None:
    """Start or attach to PostgreSQL, then become `dagster dev`; further arguments go to it."""
    parser = argparse.ArgumentParser(
        prog="python -m example_repo.dev",
        description=__doc__,
        epilog="Materialise or launch weekly_digest on a partition, kill its worker, re-execute it, backfill it; then "
        "look at the bill: curl the control_url in .dagster_idempotent/metered_provider/address.json, path /bill.",
    )
    parser.add_argument("--port", default="3000", help="port of the UI (default: 3000)")
    options, rest = parser.parse_known_args()
    own = embedded.url_from_environment()
    url = own or embedded.start(settings.POSTGRES).url
    database = Database(url)
    schema.upgrade(database)
    database.close()
    environment = make_home(WORKSPACE.parent / ".dagster_home", url)
    program = Path(sys.executable).parent / "dagster"
    _say(options.port, own_server=own is not None)
    command = [str(program), "dev", "-w", str(WORKSPACE), "-h", "127.0.0.1", "-p", options.port, *rest]
    os.chdir(WORKSPACE.parent)
    os.execve(program, command, environment)  # noqa: S606 - a program of this environment takes our place


def _say(port: str, *, own_server: bool) -> None:
    lines = [f"The Dagster UI will be at http://127.0.0.1:{port} in half a minute; Ctrl-C ends it."]
    if not own_server:
        lines += [f"In another terminal: export DAGSTER_IDEMPOTENT_FOLDER={settings.POSTGRES}"]
    lines += ["Runs, ledger and bill are kept for the next time; `make clean` removes them."]
    print("\n".join(lines), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
