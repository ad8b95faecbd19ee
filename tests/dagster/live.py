"""`dagster dev` as a person starts it, on loopback: its processes, its web server, and its instance."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from example_repo.local_dagster import Processes, Webserver, free_port, make_home, wait_for

PATIENCE = 180.0
HERE = Path(__file__).parent
RELOAD = """
mutation ($name: String!) { reloadRepositoryLocation(repositoryLocationName: $name) {
  __typename ... on WorkspaceLocationEntry { locationOrLoadError { __typename ... on PythonError { message } } } } }
"""
TERMINATE = """
mutation ($id: String!) { terminateRun(runId: $id) { __typename ... on PythonError { message } } }
"""
START_SENSOR = """
mutation ($selector: SensorSelector!) {
  startSensor(sensorSelector: $selector) { __typename ... on PythonError { message } } }
"""


@dataclass(kw_only=True)
class Live:
    """A running deployment with one code location, called `live`."""

    processes: Processes
    port: int
    instance: dg.DagsterInstance
    workspace: Path
    code: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Become `dagster dev`: web server, daemon and code server; returns when it answers."""
        self.processes.start(
            "dev", "dagster", "dev", "-w", str(self.workspace), "-h", "127.0.0.1", "-p", str(self.port)
        )
        self.wait("the web server", Webserver(self.port).is_ready)

    def start_second_daemon(self) -> None:
        self.processes.start("second_daemon", "dagster-daemon", "run", "-w", str(self.workspace))

    def ask(self, query: str, **variables: object) -> Any:
        """Ask what the UI asks, where no page shows it."""
        return Webserver(self.port).ask(query, **variables)

    def reload(self) -> None:
        """Press "Reload" on the code location."""
        answer = self.ask(RELOAD, name="live")["reloadRepositoryLocation"]
        assert answer["__typename"] == "WorkspaceLocationEntry", answer
        assert answer["locationOrLoadError"]["__typename"] == "RepositoryLocation", answer

    def start_sensor(self, name: str) -> None:
        """Turn a sensor on."""
        selector = {"repositoryLocationName": "live", "repositoryName": "__repository__", "sensorName": name}
        answer = self.ask(START_SENSOR, selector=selector)["startSensor"]
        assert answer["__typename"] == "Sensor", answer

    def terminate(self, run_id: str) -> None:
        """Press "Terminate" on a run's page."""
        answer = self.ask(TERMINATE, id=run_id)["terminateRun"]
        assert answer["__typename"] == "TerminateRunSuccess", answer

    def kill_daemons(self) -> None:
        """Kill every daemon without a word; `dagster dev` then ends what is left of itself."""
        killed = [
            pid for pid in self._pids() if b"dagster._daemon" in _command(pid) or b"dagster-daemon" in _command(pid)
        ]
        assert killed
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        for name in list(self.processes.running()):
            self.processes.stop(name)

    def kill_step(self, run: dg.DagsterRun, step: str) -> None:
        os.kill(self._pid_of_step(run, step), signal.SIGKILL)

    def runs(self) -> list[dg.DagsterRun]:
        """List the runs, the oldest first."""
        return list(reversed(list(self.instance.get_runs())))

    def wait(self, what: str, probe: Any, *, seconds: float = PATIENCE) -> Any:
        return wait_for(what, probe, check=self.processes.check, seconds=seconds)

    def wait_run(self, run: dg.DagsterRun, status: dg.DagsterRunStatus) -> dg.DagsterRun:
        """Return a run that ended; fail where it ended otherwise."""

        def ended() -> dg.DagsterRun | None:
            found = self.instance.get_run_by_id(run.run_id)
            return found if found is not None and found.is_finished else None

        found = self.wait(f"the end of run {run.run_id}", ended)
        assert found.status is status, [record.user_message for record in self.instance.all_logs(run.run_id)][-3:]
        return found

    def _pids(self) -> list[int]:
        """List the processes of the sessions that we started."""
        sessions = set(self.processes.running().values())
        found: list[int] = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.getsid(int(entry.name)) in sessions:
                        found.append(int(entry.name))
                except ProcessLookupError:
                    continue
        return found

    def _pid_of_step(self, run: dg.DagsterRun, step: str) -> int:
        for record in reversed(self.instance.all_logs(run.run_id)):
            event = record.dagster_event
            if event is not None and event.step_key == step:
                found = getattr(event.event_specific_data, "metadata", None) or {}
                if "pid" in found:
                    return int(str(found["pid"].value))
        raise AssertionError(f"no process of step {step} in the log of run {run.run_id}")


@contextmanager
def live_dagster(
    folder: Path, postgres_url: str, code: str, monkeypatch: pytest.MonkeyPatch, *, run_retries: int = 0
) -> Iterator[Live]:
    """Start `dagster dev` on a copy of a code location; whatever it started ends with the block."""
    place = folder.with_name("live")
    place.mkdir()
    copied = place / code
    shutil.copy(HERE / code, copied)
    workspace = place / "workspace.yaml"
    workspace.write_text(
        f"load_from:\n  - python_file: {{relative_path: {copied}, location_name: live, working_directory: {HERE}}}\n"
    )
    environment = make_home(place / "home", postgres_url)
    settings = place / "home" / "dagster.yaml"
    settings.write_text(settings.read_text().replace("max_retries: 0", f"max_retries: {run_retries}"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Processes(environment, place / "logs") as processes:
        started = Live(
            processes=processes,
            port=free_port(),
            instance=dg.DagsterInstance.get(),
            workspace=workspace,
            code=copied,
        )
        started.start()
        yield started
        started.instance.dispose()


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
