"""A command line run as its users run it: exit code, stdout and stderr apart."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner
from psycopg.conninfo import conninfo_to_dict

from dagster_idempotent.cli import main


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Transcript]


@pytest.fixture
def cli(ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the test's own ledger."""
    parts = conninfo_to_dict(ledger_url)
    monkeypatch.setenv("DAGSTER_IDEMPOTENT_POSTGRES_URL", f"postgresql:///?{urlencode(parts)}")

    def run(*arguments: str, env: dict[str, str] | None = None) -> Transcript:
        result = CliRunner().invoke(main, list(arguments), env=env, prog_name="dagster-idempotent")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Transcript(code=result.exit_code, out=result.stdout, err=result.stderr)

    return run
