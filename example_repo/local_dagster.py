"""A Dagster instance of the example's own: its home on PostgreSQL, its processes, and GraphQL as the UI speaks it."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.error import URLError
from urllib.request import Request, urlopen

from dagster_idempotent import embedded

WORKSPACE = Path(__file__).parents[1] / "workspace.yaml"
STORAGE_VARIABLE = "EXAMPLE_DAGSTER_STORAGE_URL"
Found = TypeVar("Found")

# Dagster keeps its own runs and events in the same PostgreSQL as the ledger, through dagster-postgres.
DAGSTER_YAML = f"""\
storage:
  postgres:
    postgres_url:
      env: {STORAGE_VARIABLE}
run_monitoring:
  enabled: true
run_retries:
  enabled: true
  max_retries: 0
run_coordinator:
  module: dagster._core.run_coordinator
  class: QueuedRunCoordinator
  config:
    dequeue_interval_seconds: 1
telemetry:
  enabled: false
"""


def make_home(folder: Path, postgres_url: str) -> dict[str, str]:
    """Write a Dagster home and return the environment in which its processes run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dagster.yaml").write_text(DAGSTER_YAML, encoding="utf-8")
    root = str(WORKSPACE.parent)
    return {
        **os.environ,
        "DAGSTER_HOME": str(folder),
        STORAGE_VARIABLE: embedded.sqlalchemy_url(postgres_url),
        embedded.URL_VARIABLE: postgres_url,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")])),
        "PYTHONUNBUFFERED": "1",
    }


class Processes:
    """Processes that end, with all their children, when the block is left."""

    def __init__(self, environment: Mapping[str, str], logs: Path) -> None:
        self._environment, self._logs = environment, logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for name in list(self._running):
            self.stop(name)

    def start(self, name: str, *command: str) -> None:
        """Start a program of this virtual environment in a session of its own, logging to a file."""
        program = Path(sys.executable).parent / command[0]
        self._logs.mkdir(parents=True, exist_ok=True)
        with (self._logs / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(  # noqa: S603 - programs of this environment
                [str(program), *command[1:]],
                env=dict(self._environment),
                cwd=WORKSPACE.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self, name: str) -> None:
        """End a process and its session: politely, then for good."""
        process = self._running.pop(name)
        for number, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            try:
                os.killpg(process.pid, number)
                process.wait(patience)
            except ProcessLookupError:
                break
            except subprocess.TimeoutExpired:
                continue
        process.wait()

    def running(self) -> Mapping[str, int]:
        """Return the process id of each program, which is also its session's."""
        return {name: process.pid for name, process in self._running.items()}

    def check(self) -> None:
        """Raise RuntimeError with the end of its log where a process has ended by itself."""
        for name, process in self._running.items():
            if process.poll() is not None:
                log = (self._logs / f"{name}.log").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"{name} ended with status {process.returncode}. Its log ends:\n{log[-3000:]}")


class Webserver:
    """Asks a Dagster webserver what the UI asks it."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/graphql"

    def ask(self, query: str, **variables: object) -> Any:  # noqa: ANN401 - GraphQL data, read field by field
        """Return the data of a query or mutation; raises RuntimeError with its errors."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = Request(self._url, data=body, headers={"Content-Type": "application/json"})  # noqa: S310 - loopback
        with urlopen(request, timeout=60) as response:  # noqa: S310 - loopback
            answer = json.load(response)
        if answer.get("errors"):
            raise RuntimeError(f"GraphQL: {answer['errors'][0]['message']}")
        return answer["data"]

    def is_ready(self) -> bool:
        """Whether it answers and its code location has loaded; raises RuntimeError where the location failed to."""
        try:
            data = self.ask(
                "{ workspaceOrError { ... on Workspace { locationEntries { loadStatus"
                " locationOrLoadError { __typename ... on PythonError { message } } } } } }"
            )
        except (URLError, ConnectionError, TimeoutError):
            return False
        for entry in data["workspaceOrError"]["locationEntries"]:
            found = entry["locationOrLoadError"]
            if found and found["__typename"] == "PythonError":
                raise RuntimeError(f"The example did not load: {found['message']}")
        return all(entry["loadStatus"] == "LOADED" for entry in data["workspaceOrError"]["locationEntries"])


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(what: str, probe: Callable[[], Found | None], *, check: Callable[[], None], seconds: float) -> Found:
    """Return what `probe` finds, asking again until it does; raises TimeoutError naming what was waited for."""
    deadline = time.monotonic() + seconds
    while True:
        found = probe()
        if found:
            return found
        check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"Waited {seconds:.0f} s for {what}.")
        time.sleep(0.2)
