"""One ledger and one provider for all tests of a module, and runs that follow one another until a task is done."""

import os
import threading
from collections.abc import Container, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql as psql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row

from dagster_idempotent.testing.metered_provider import MeteredProvider


@contextmanager
def ledger_and_provider(postgres_url: str, ledger_template: str, name: str, folder: Path) -> Generator[dict[str, Any]]:
    """Give both to all tests of a module: one pair for each of its hundreds would cost more than the tests."""
    name = f"{name}_{os.getpid()}"
    url = make_conninfo("", **(conninfo_to_dict(postgres_url) | {"dbname": name}))
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        copy = psql.SQL("CREATE DATABASE {} TEMPLATE {}")
        admin.execute(copy.format(psql.Identifier(name), psql.Identifier(ledger_template)))
        with (
            MeteredProvider.start(folder / "provider") as provider,
            psycopg.connect(url, autocommit=True, row_factory=dict_row) as sql,
        ):
            yield {"provider": provider, "url": url, "sql": sql}
        admin.execute(psql.SQL("DROP DATABASE {} WITH (FORCE)").format(psql.Identifier(name)))


def server_of(url: str) -> Path | tuple[str, int]:
    """Return where a proxy finds the server of a database."""
    parts = conninfo_to_dict(url)
    host, port = str(parts["host"]), int(parts.get("port") or 5432)
    return Path(host) / f".s.PGSQL.{port}" if host.startswith("/") else (host, port)


def finish(worker: Any, subject: str, *, attempts: int, waits: Container[str]) -> str:
    """Let a worker be Dagster runs, one after the other, until one has done the task; return its id."""
    pause = threading.Event()
    for attempt in range(attempts):
        worker.tell("whole_task", subject=subject, owner=f"{subject}-again-{attempt}", finished=["*"])
        answer = worker.answer()
        if "value" in answer and answer["value"]["messages"] == ["delivered"]:
            worker.close()
            return answer["value"]["task_id"]
        if "error" in answer:
            assert answer["error"] in waits, answer
        pause.wait(min(0.2, float(answer.get("facts", {}).get("retry_after") or 0.05)))
    pytest.fail(f"{subject} was not finished by {attempts} runs")
