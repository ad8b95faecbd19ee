"""`python -m dagster_idempotent.embedded`: start, stop and find the embedded server by hand."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dagster_idempotent import embedded
from dagster_idempotent.embedded.server import IDLE_SECONDS, Server
from dagster_idempotent.errors import IdempotentError

_NOT_RUNNING = 3

_DESCRIPTION = """\
A real PostgreSQL for a laptop, a demo or a test. One server a folder, shared by every process that
names the folder; the ledger and Dagster's own storage both live in its database `dagster_idempotent`.
It listens on a socket that only you can open, never on the network.
"""

_EPILOG = f"""\
examples:
  python -m dagster_idempotent.embedded start           start it, or find it running; print its facts
  psql "$(python -m dagster_idempotent.embedded url)"   look inside (starts it if need be)
  python -m dagster_idempotent.embedded status --json   exit code {_NOT_RUNNING} when it does not run
  python -m dagster_idempotent.embedded stop            stop it; its data stays

In dagster.yaml, for the same database:
  storage: {{postgres: {{postgres_url: "$(python -m dagster_idempotent.embedded url --sqlalchemy)"}}}}

The server outlives the command that started it. It stops by itself after {IDLE_SECONDS / 60:.0f} minutes
without a client, or when its folder is removed. If ${embedded.URL_VARIABLE} is set,
`url` prints that and starts nothing.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 done, 1 failed, 3 `status` found no server."""
    options = _parser().parse_args(arguments)
    folder: Path | None = options.folder
    try:
        match options.command:
            case "start":
                idle = options.idle_minutes * 60 or None
                _show(embedded.start(folder, idle_timeout=idle), as_json=options.json)
            case "stop":
                _say("stopped" if embedded.stop(folder) else "no server was running")
            case "status":
                server = embedded.status(folder)
                if server is None:
                    _say(f"no server is running in {folder or embedded.default_folder()}")
                    return _NOT_RUNNING
                _show(server, as_json=options.json)
            case _:
                url = embedded.resolve_url(folder)
                _print(embedded.sqlalchemy_url(url) if options.sqlalchemy else url)
    except IdempotentError as error:
        _say(str(error))
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dagster_idempotent.embedded",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--folder",
        type=Path,
        help="where it keeps data, log and locks (default: $DAGSTER_HOME/postgres, else your data folder)",
    )
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print one JSON object")
    commands = parser.add_subparsers(dest="command", required=True, metavar="start|stop|status|url")
    start = commands.add_parser("start", parents=[common, as_json], help="start it unless it runs, print its facts")
    start.add_argument(
        "--idle-minutes",
        type=float,
        default=IDLE_SECONDS / 60,
        help="stop after so many minutes without a client; 0: never (default: %(default)g)",
    )
    commands.add_parser("stop", parents=[common], help="stop it; the data stays")
    commands.add_parser("status", parents=[common, as_json], help="print the facts of the running server")
    url = commands.add_parser("url", parents=[common], help="print the URL, starting the server if need be")
    url.add_argument("--sqlalchemy", action="store_true", help="in the spelling for dagster.yaml")
    return parser


def _show(server: Server, *, as_json: bool) -> None:
    facts = {
        "url": server.url,
        "folder": str(server.folder),
        "pid": server.pid,
        "version": server.version,
        "source": str(server.source),
        "sockets": str(server.sockets),
    }
    if as_json:
        _print(json.dumps(facts))
    else:
        for name, value in facts.items():
            _print(f"{name + ':':<9}{value}")


def _print(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
