"""What several folders of tests share: worker processes, and waiting for a condition that can be observed."""

import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from dagster_idempotent import embedded
from dagster_idempotent.embedded import place as places

PATIENCE = 30.0
CREW = Path(__file__).parent / "workers" / "crew.py"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Do not look for garbage again and again in what is being loaded for the whole session."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def wait_until(condition: Callable[[], object], *, patience: float = PATIENCE) -> object:
    """Return the first true value of `condition`; fail the test when there is none in time."""
    deadline = time.monotonic() + patience
    pause = threading.Event()
    while not (found := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"{condition} did not come true within {patience} s")
        pause.wait(0.01)
    return found


class WorkerGone(Exception):
    """The worker process ended before it answered."""


class WorkerHandle:
    """One worker process; see tests/workers/crew.py for what it can be told to do."""

    def __init__(self, path: Path, defaults: dict[str, Any]) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        # A worker that hangs fails its test, not the whole run.
        self._socket.settimeout(120)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rw")
        self._defaults = defaults
        self.pid: int = json.loads(self._lines.readline())["pid"]

    def tell(self, do: str, **order: object) -> None:
        self._lines.write(json.dumps({"do": do, **self._defaults, **order}) + "\n")
        self._lines.flush()

    def answer(self) -> dict[str, Any]:
        try:
            line = self._lines.readline()
        except ConnectionResetError:
            line = ""
        if not line:
            raise WorkerGone
        return json.loads(line)

    def ask(self, do: str, **order: object) -> Any:
        self.tell(do, **order)
        answer = self.answer()
        assert "error" not in answer, answer
        return answer["value"]

    def refused(self, do: str, **order: object) -> dict[str, Any]:
        self.tell(do, **order)
        answer = self.answer()
        assert "error" in answer, answer
        return answer

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def pause(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


class Crew:
    """Starts workers; all end with the test."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._workers: list[WorkerHandle] = []

    def worker(self, **defaults: object) -> WorkerHandle:
        worker = WorkerHandle(self._path, defaults)
        self._workers.append(worker)
        return worker

    def connected(self, number: int, **defaults: object) -> list[WorkerHandle]:
        """Give that many workers that have opened their connection to the ledger."""
        workers = [self.worker(**defaults) for _ in range(number)]
        self.at_once(workers, "connect", [{}] * number)
        return workers

    def at_once(self, workers: Sequence[WorkerHandle], do: str, orders: Sequence[dict[str, object]]) -> list[Any]:
        """Tell every worker its order before any answer is read."""
        for worker, order in zip(workers, orders, strict=True):
            worker.tell(do, **order)
        return [worker.answer() for worker in workers]

    def dismiss(self) -> None:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
            worker.close()
        self._workers.clear()


@pytest.fixture(scope="session")
def crew_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("crew") / "socket"
    process = subprocess.Popen([sys.executable, str(CREW), str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield path
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def crew(crew_path: Path) -> Iterator[Crew]:
    crew = Crew(crew_path)
    yield crew
    crew.dismiss()


@pytest.fixture
def until() -> Callable[..., object]:
    return wait_until


@pytest.fixture
def worker_gone() -> type[Exception]:
    return WorkerGone


@pytest.fixture
def sql(ledger_url: str) -> Iterator[psycopg.Connection[dict[str, Any]]]:
    """Give a plain autocommit connection to the test's ledger."""
    with psycopg.connect(ledger_url, autocommit=True, row_factory=dict_row) as connection:
        yield connection


@pytest.fixture(scope="session")
def used_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the data of an embedded server that has run, and stopped."""
    folder = tmp_path_factory.mktemp("used") / "postgres"
    embedded.start(folder, durable=False)
    embedded.stop(folder)
    (data,) = places.find(folder).location.glob("data-*")
    yield data
    embedded.remove(folder)


@pytest.fixture
def used_folder(tmp_path: Path, used_data: Path) -> Iterator[Path]:
    """Give a folder whose embedded server has run before, for tests that are not about a first start."""
    path = tmp_path / "postgres"
    places.make_folder(places.find(path))
    place = places.settle(places.find(path))
    # With its owner, which may be another account than ours.
    subprocess.run(["cp", "-a", str(used_data), str(place.location)], check=True)
    yield path
    embedded.remove(path)
