"""Command line of the metered provider."""

import argparse
import os
import sys
from decimal import Decimal, InvalidOperation
from importlib.util import find_spec
from pathlib import Path

from dagster_idempotent.errors import ConfigurationError, CredentialMissing
from dagster_idempotent.testing.metered_provider.settings import Settings

_DESCRIPTION = """\
A paid provider for tests: it speaks OpenAI's chat completions, responses and batches, Anthropic's messages, Stripe's
charges and payment intents, and has jobs that are polled. It charges each accepted request and keeps its own bill on
disk: that bill, not the ledger of the thing under test, says how often somebody paid.
"""
_MORE = """\
When it is ready it prints one line of JSON (also in FOLDER/address.json):
  {"base_url": "http://127.0.0.1:4010/v1", "control_url": "http://127.0.0.1:4010", "port": 4010, "pid": 99}

Ask for an answer, then read the bill:
  BASE=http://127.0.0.1:4010
  curl $BASE/v1/chat/completions -H 'Authorization: Bearer any' -H 'Idempotency-Key: week-32' \\
       -d '{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
  curl $BASE/bill                                   what was charged
  curl $BASE/requests                               what arrived, charged or not
  curl "$BASE/v1/lookup?client_reference=week-32"   what was accepted under a reference

Make the next request fail, or one request by the header X-Fault:
  curl $BASE/faults -d '{"fault": "accept_then_drop"}'
  curl $BASE/faults -d '{"fault": "status", "status": 500, "charged": true, "times": 3}'
  curl ... -H 'X-Fault: hold'                       then: curl $BASE/held?wait=1; curl -X POST $BASE/release
Faults: accept_then_drop, drop_before_accepting, hold, hold_before_accepting, status, garbage, half_answer,
redirect, answer_with, slow, error_in_200, empty_answer, gzipped; of streams: cut_stream, truncated_stream,
open_stream, error_in_stream. Restrict one with "client_reference", "body_contains" or "path_contains"; only the last
reaches requests that are free, such as "GET /v1/jobs". GET /faults shows the queue.

A job: POST /v1/jobs, GET /v1/jobs/ID, GET /v1/jobs/ID/result, POST /v1/jobs/ID/cancel, GET /v1/jobs?key=KEY
  curl $BASE/jobs -d '{"id": "job_…", "status": "failed", "error": "no light"}'      drives it; polls no longer do

Start it again on the same folder, after a kill -9 too, and bill and numbering go on.
"""


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and serve; returns the exit code."""
    options = _parser().parse_args(arguments)
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        return _complain(
            "starlette and uvicorn are not installed, expected the extra `testing`;"
            " run: pip install 'dagster-idempotent[testing]'"
        )
    # They come with an extra: whoever only asks for --help, or uses the handle, needs neither.
    from dagster_idempotent.testing.metered_provider.server import serve  # noqa: PLC0415

    try:
        serve(
            options.folder,
            port=options.port,
            settings=Settings(
                price=options.price,
                currency=options.currency,
                required_key=_required_key(options.require_key),
                deduplicate=options.deduplicate,
                lookup=options.lookup,
                job_polls=options.job_polls or None,
            ),
            until_stdin_closes=options.until_stdin_closes,
        )
    except ConfigurationError as error:
        return _complain(error.message)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dagster_idempotent.testing.metered_provider",
        description=_DESCRIPTION,
        epilog=_MORE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the bill is kept; made if missing")
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1 (default: any free one)")
    parser.add_argument("--price", type=_price, default=Decimal("0.02"), help="of one request (default: 0.02)")
    parser.add_argument("--currency", default="USD", help="of the price (default: USD)")
    parser.add_argument(
        "--require-key",
        metavar="NAME",
        help="accept only the key in the environment variable NAME (default: any bearer token)",
    )
    parser.add_argument(
        "--deduplicate",
        action="store_true",
        help="honour idempotency keys (default: charge each accepted request);"
        " one request may say X-Deduplicate: on or off",
    )
    parser.add_argument("--no-lookup", dest="lookup", action="store_false", help="play a provider without look-up")
    parser.add_argument(
        "--job-polls",
        type=int,
        default=3,
        help="the poll at which a job has succeeded; 0: only when a test drives it (default: 3)",
    )
    parser.add_argument(
        "--until-stdin-closes", action="store_true", help="end when stdin closes, so with whoever started it"
    )
    return parser


def _price(text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, expected an amount such as 0.02")
    return price


def _required_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise CredentialMissing(
            f"the environment variable {variable} is unset or empty, expected the key to accept; set it",
            variable=variable,
        )
    return key


def _complain(text: str) -> int:
    sys.stderr.write(text + "\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())
