"""The page about side effects, run as it stands: every effect happens once, however often its job runs."""

import importlib.util
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any

import dagster as dg
import psycopg
import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider

PAGE = Path(__file__).parents[2] / "docs/how-to/side-effects.md"
WEEK = "2026-08-03"
TABLES = """
CREATE TABLE digest_lines (pipeline text, task_id text, line integer, text text);
CREATE TABLE drafts (pipeline text, task_id text, sha256 text);
CREATE TABLE digest_counter (published integer);
INSERT INTO digest_counter VALUES (0);
CREATE TABLE accounts (name text PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0));
INSERT INTO accounts VALUES ('A', 20), ('B', 0);
"""
# What Dagster says about itself, not about us.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Property `ScheduleDefinition.environment_vars` is deprecated"),
    pytest.mark.filterwarnings("ignore:InitResourceContext.dagster_run is deprecated"),
    pytest.mark.filterwarnings("ignore:Function `AssetSelection.sources` is deprecated"),
    pytest.mark.filterwarnings("ignore:Parameter `owners` of initializer `SensorDefinition"),
]


@pytest.fixture
def hook() -> Iterator[tuple[str, list[str]]]:
    """Give a webhook's address and the keys that arrive there."""
    arrived: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            arrived.append(self.headers["Idempotency-Key"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the standard library's signature
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", arrived
        server.shutdown()
        thread.join()


@pytest.fixture
def page(
    tmp_path: Path,
    ledger_url: str,
    metered_provider: MeteredProvider,
    hook: tuple[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> ModuleType:
    """Load the code of the page as one module."""
    monkeypatch.setenv("DAGSTER_IDEMPOTENT_POSTGRES_URL", ledger_url)
    monkeypatch.setenv("TRANSLATOR_URL", metered_provider.base_url)
    monkeypatch.setenv("TRANSLATOR_KEY", "made-up")
    monkeypatch.setenv("SITE_HOOK", hook[0])
    monkeypatch.setenv("DIGESTS", str(tmp_path / "digests"))
    place = tmp_path / "side_effects_page.py"
    place.write_text("\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)))
    spec = importlib.util.spec_from_file_location("side_effects_page", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_effect_of_the_page_happens_once_however_often_its_jobs_run(
    page: ModuleType,
    sql: psycopg.Connection[Any],
    metered_provider: MeteredProvider,
    hook: tuple[str, list[str]],
    tmp_path: Path,
) -> None:
    sql.execute(TABLES)
    with dg.instance_for_test() as instance:
        for _ in range(2):
            for name in ("weekly_digest", "payments", "counting"):
                job = page.defs.resolve_job_def(name)
                assert job.execute_in_process(instance=instance, partition_key=WEEK).success
        shown = instance.fetch_materializations(dg.AssetKey("published_digest"), limit=10).records
    (reported,) = shown
    assert reported.partition_key == WEEK
    assert hook[1] == ["weekly_digest:2026-W32-0:site"]
    assert sorted(path.name for path in tmp_path.rglob("digests/**/*") if path.is_file()) == [
        "2026-W32-0.file.json",
        "lines.txt",
    ]
    assert metered_provider.charges == 1
    balances = {row["name"]: row["balance"] for row in sql.execute("SELECT * FROM accounts")}
    assert balances == {"A": 10, "B": 10}
    # Once by the channel, once by the op of one's own.
    assert sql.execute("SELECT published FROM digest_counter").fetchall() == [{"published": 2}]
    for table in ("digest_lines", "drafts"):
        assert sql.execute(f"SELECT FROM {table}").rowcount == 1  # pyright: ignore[reportArgumentType]
    assert {row["state"] for row in sql.execute("SELECT state FROM dagster_idempotent.outbox")} == {"delivered"}
