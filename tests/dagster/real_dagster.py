"""Dagster as it runs in production: scheduler, backfill and retry daemons, GraphQL.

With quick_storage.py and sensor_daemon.py the only place that imports private modules of Dagster.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.events import DagsterEvent
from dagster._core.instance_for_test import instance_for_test
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.test_utils import create_test_daemon_workspace_context, freeze_time
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.auto_run_reexecution.auto_run_reexecution import consume_new_runs_for_automatic_reexecution
from dagster._daemon.backfill import execute_backfill_iteration
from dagster._grpc.types import ExecuteRunArgs
from dagster._scheduler.scheduler import launch_scheduled_runs
from dagster._serdes import serialize_value
from dagster_graphql.client import query
from dagster_graphql.test.utils import execute_dagster_graphql

CODE = Path(__file__).with_name("code_location.py")
REPOSITORY = "__repository__"
ASSET_JOB = "__ASSET_JOB"
PARTITION_OF_JOB = """
query($selector: PipelineSelector!, $name: String!) {
  pipelineOrError(params: $selector) { ... on Pipeline { partition(partitionName: $name) {
    runConfigOrError { ... on PartitionRunConfig { yaml } }
    tagsOrError { ... on PartitionTags { results { key value } } } } } } }
"""
RUN_AS_SHOWN = """
query($id: ID!) { runOrError(runId: $id) { ... on Run { rootRunId runConfigYaml tags { key value } } } }
"""
QUIET = logging.getLogger("dagster_idempotent.tests.daemon")


@dataclass(frozen=True, kw_only=True)
class Dagster:
    """One deployment: an instance, and the code locations that its daemons and its web server have loaded."""

    instance: dg.DagsterInstance
    workspace: Any

    # What the daemons do.

    def tick(self, schedule: str, when: datetime, *, location: str = "first") -> None:
        """Start a schedule at `when` and let the scheduler daemon evaluate it."""
        self.start_schedule(schedule, when, location=location)
        self.evaluate(when)

    def start_schedule(self, schedule: str, when: datetime, *, location: str = "first") -> None:
        with freeze_time(when.astimezone(UTC)):
            self.instance.start_schedule(self.repository(location).get_schedule(schedule))

    def stop_schedule(self, schedule: str, *, location: str = "first") -> None:
        found = self.repository(location).get_schedule(schedule)
        self.instance.stop_schedule(found.get_remote_origin_id(), found.selector_id, found)

    def evaluate(self, when: datetime) -> None:
        """Run one iteration of the scheduler daemon's loop at `when`, by a daemon that has just been started."""
        _evaluate(self.workspace, when)
        self.work_off_queue()

    def evaluate_and_die(self, schedule: str, when: datetime, window: str) -> None:
        """Let another scheduler daemon evaluate a schedule and be killed where Dagster says `window`."""
        command = [sys.executable, __file__, self.instance.root_directory, schedule, when.isoformat(), window]
        assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL

    def start_worker(self, run: dg.DagsterRun) -> subprocess.Popen[bytes]:
        """Start the process that executes a queued run, with a further process for each of its steps."""
        starting = DagsterEvent(event_type_value=dg.DagsterEventType.PIPELINE_STARTING.value, job_name=run.job_name)
        self.instance.report_dagster_event(starting, run_id=run.run_id)
        assert run.job_code_origin is not None
        order = ExecuteRunArgs(run.job_code_origin, run.run_id, self.instance.get_ref())
        with Path(self.instance.root_directory, f"{run.run_id}.log").open("wb") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dagster", "api", "execute_run", serialize_value(order)],
                env={**os.environ, "TEST_PROCESSES": "1"},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pid_of_step(self, run: dg.DagsterRun, step: str) -> int:
        """Return the process of a step, from the event log."""
        logs = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_WORKER_STARTED)
        events = [record.dagster_event for record in logs if record.dagster_event is not None]
        (started,) = [event for event in events if event.step_key == step]
        return int(str(started.engine_event_data.metadata["pid"].value))

    def report_lost(self, run: dg.DagsterRun) -> None:
        """Mark a run whose worker is gone as failed, as run monitoring does."""
        self.instance.report_run_failed(self.run(run.run_id))

    def messages(self, run: dg.DagsterRun) -> list[str]:
        """List what was logged in a run."""
        return [record.user_message for record in self.instance.all_logs(run.run_id)]

    def evaluate_together(self, when: datetime, daemons: int) -> None:
        """Let several scheduler daemons evaluate the same tick at the same time."""
        barrier = threading.Barrier(daemons)
        with freeze_time(when.astimezone(UTC)), ThreadPoolExecutor(daemons) as pool:

            def daemon() -> None:
                barrier.wait()
                _iterate(self.workspace, when)

            for each in [pool.submit(daemon) for _ in range(daemons)]:
                each.result()
        self.work_off_queue()

    def work_off_queue(self) -> None:
        """Launch what is queued, one run after the other, as the daemon of the queue does."""
        for run in self.runs():
            if run.status is dg.DagsterRunStatus.QUEUED:
                self.instance.launch_run(run.run_id, self.workspace.create_request_context())

    def retry_failed_runs(self) -> None:
        """Run one iteration of the daemon that retries failed runs."""
        list(consume_new_runs_for_automatic_reexecution(self.workspace, self.instance.get_run_records(), QUIET))
        self.work_off_queue()

    def backfill(self, params: Mapping[str, Any]) -> str:
        """Start a backfill as its page does, and let the backfill daemon finish it."""
        found = self.graphql(query.LAUNCH_PARTITION_BACKFILL_MUTATION, {"backfillParams": params})
        launched = found["launchPartitionBackfill"]
        assert launched["__typename"] == "LaunchBackfillSuccess", launched
        return self.finish_backfill(launched["backfillId"])

    def finish_backfill(self, backfill_id: str) -> str:
        """Let the backfill daemon finish a backfill that somebody started."""
        for _ in range(20):
            for error in execute_backfill_iteration(self.workspace, QUIET):
                assert error is None, error
            self.work_off_queue()
            backfill = self.instance.get_backfill(backfill_id)
            if backfill is not None and backfill.status.value.startswith(("COMPLETED", "FAILED", "CANCELED")):
                return backfill_id
        raise AssertionError(f"the backfill {backfill_id} did not end: {backfill}")

    def backfill_job(self, job: str, partitions: Sequence[str], *, location: str = "first", **more: Any) -> str:
        repository = {"repositoryLocationName": location, "repositoryName": REPOSITORY}
        names = {"partitionSetName": f"{job}_partition_set", "repositorySelector": repository}
        return self.backfill({"selector": names, "partitionNames": list(partitions), **more})

    def backfill_asset(self, asset: str, partitions: Sequence[str]) -> str:
        return self.backfill({"assetSelection": [{"path": [asset]}], "partitionNames": list(partitions)})

    # What a person does in the UI.

    def launch(
        self,
        job: str,
        *,
        partition: str | None = None,
        config: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
        location: str = "first",
        queue_only: bool = False,
    ) -> dg.DagsterRun:
        """Launch from the Launchpad, with the config and tags that it prefills for a partition."""
        selector = _selector(job, location)
        filled: dict[str, str] = {}
        run_config: Any = config or {}
        if partition is not None:
            shown = self.graphql(PARTITION_OF_JOB, {"selector": selector, "name": partition})
            chosen = shown["pipelineOrError"]["partition"]
            filled = {tag["key"]: tag["value"] for tag in chosen["tagsOrError"]["results"]}
            run_config = config or chosen["runConfigOrError"]["yaml"]
        metadata = {"tags": _tags(filled | dict(tags or {}))}
        params = {"selector": selector, "runConfigData": run_config, "executionMetadata": metadata}
        return self._launch(params, queue_only=queue_only)

    def materialise(self, asset: str, partition: str, *, location: str = "first") -> dg.DagsterRun:
        """Press Materialize on an asset's page and choose one partition."""
        tags = {"dagster/partition": partition}
        if "|" in partition:
            subject, _, time = partition.partition("|")
            tags |= {"dagster/partition/subject": subject, "dagster/partition/time": time}
        selector = {**_selector(ASSET_JOB, location), "assetSelection": [{"path": [asset]}]}
        return self._launch({"selector": selector, "runConfigData": {}, "executionMetadata": {"tags": _tags(tags)}})

    def reexecute(self, run: dg.DagsterRun, strategy: str, *, queue_only: bool = False) -> dg.DagsterRun:
        """Choose "Re-execute all" (ALL_STEPS) or "Re-execute from failure" (FROM_FAILURE) on a run's page."""
        params = {"parentRunId": run.run_id, "strategy": strategy}
        found = self.graphql(query.LAUNCH_PIPELINE_REEXECUTION_MUTATION, {"reexecutionParams": params})
        return self._launched(found["launchPipelineReexecution"], queue_only=queue_only)

    def reexecute_steps(self, run: dg.DagsterRun, steps: Sequence[str], *, location: str = "first") -> dg.DagsterRun:
        """Choose "Re-execute selected" on a run's page, which sends back what the page was shown."""
        shown = self.graphql(RUN_AS_SHOWN, {"id": run.run_id})["runOrError"]
        tags = [tag for tag in shown["tags"] if not tag["key"].startswith("dagster/will_retry")]
        params = {
            "selector": _selector(run.job_name, location),
            "runConfigData": shown["runConfigYaml"],
            "stepKeys": list(steps),
            "executionMetadata": {
                "parentRunId": run.run_id,
                "rootRunId": shown["rootRunId"] or run.run_id,
                "tags": tags,
            },
        }
        found = self.graphql(query.LAUNCH_PIPELINE_REEXECUTION_MUTATION, {"executionParams": params})
        return self._launched(found["launchPipelineReexecution"])

    # What a test reads.

    def runs(self) -> list[dg.DagsterRun]:
        """List the runs, the oldest first."""
        return list(reversed(list(self.instance.get_runs())))

    def run(self, run_id: str) -> dg.DagsterRun:
        found = self.instance.get_run_by_id(run_id)
        assert found is not None
        return found

    def failures(self, run: dg.DagsterRun) -> list[str]:
        """List what its failed steps said, the causes included."""
        texts: list[str] = []
        for record in self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
            assert record.dagster_event is not None
            texts.append(str(record.dagster_event.step_failure_data.error_display_string))
        return texts

    def failure_metadata(self, run: dg.DagsterRun) -> dict[str, Any]:
        """Return the metadata that the failed step of a run shows."""
        (record,) = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE)
        assert record.dagster_event is not None
        failure = record.dagster_event.step_failure_data.user_failure_data
        assert failure is not None
        return {name: value.value for name, value in failure.metadata.items()}

    def metadata(self, run: dg.DagsterRun) -> dict[str, dict[str, Any]]:
        """Return the metadata that each op's output shows in a run, by op."""
        found: dict[str, dict[str, Any]] = {}
        for record in self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_OUTPUT):
            event = record.dagster_event
            assert event is not None
            assert event.step_key is not None
            shown = event.step_output_data.metadata
            found[event.step_key.rpartition(".")[2]] = {name: value.value for name, value in shown.items()}
        return found

    def repository(self, location: str) -> Any:
        return self.workspace.create_request_context().get_code_location(location).get_repository(REPOSITORY)

    def graphql(self, text: str, variables: Mapping[str, Any]) -> Any:
        return execute_dagster_graphql(self.workspace.create_request_context(), text, variables).data

    def _launch(self, params: Mapping[str, Any], *, queue_only: bool = False) -> dg.DagsterRun:
        found = self.graphql(query.LAUNCH_PIPELINE_EXECUTION_MUTATION, {"executionParams": params})
        return self._launched(found["launchPipelineExecution"], queue_only=queue_only)

    def _launched(self, answer: Mapping[str, Any], *, queue_only: bool = False) -> dg.DagsterRun:
        assert answer["__typename"] == "LaunchRunSuccess", answer
        if not queue_only:
            self.work_off_queue()
        return self.run(answer["run"]["runId"])


@contextmanager
def deployment(
    home: Path,
    *,
    code: Path = CODE,
    locations: Sequence[str] = ("first",),
    run_retries: int | None = None,
) -> Iterator[Dagster]:
    """Start a deployment in the folder `home`; its runs end before a launch returns."""
    overrides: dict[str, Any] = {}
    if run_retries is not None:
        overrides["run_retries"] = {"enabled": True, "max_retries": run_retries}
    with ExitStack() as stack:
        home.mkdir(exist_ok=True)
        instance = stack.enter_context(
            instance_for_test(overrides=overrides, temp_dir=str(home), synchronous_run_launcher=True)
        )
        workspace = stack.enter_context(_workspace(instance, code, locations))
        yield Dagster(instance=instance, workspace=workspace)


def _workspace(instance: dg.DagsterInstance, code: Path, locations: Sequence[str]) -> AbstractContextManager[Any]:
    target = InProcessWorkspaceLoadTarget([_origin(code, name) for name in locations])
    return create_test_daemon_workspace_context(target, instance)


def _evaluate(workspace: Any, when: datetime, crash: Mapping[str, Any] | None = None) -> None:
    with freeze_time(when.astimezone(UTC)):
        _iterate(workspace, when, crash)


def _iterate(workspace: Any, when: datetime, crash: Mapping[str, Any] | None = None) -> None:
    for error in launch_scheduled_runs(
        workspace, QUIET, when.astimezone(UTC), iteration_times={}, debug_crash_flags=crash
    ):
        assert error is None, error


def _origin(code: Path, name: str) -> InProcessCodeLocationOrigin:
    loadable = LoadableTargetOrigin(
        executable_path=sys.executable, python_file=str(code), working_directory=os.fspath(code.parent)
    )
    return InProcessCodeLocationOrigin(loadable, location_name=name)


def _selector(job: str, location: str) -> dict[str, str]:
    return {"repositoryLocationName": location, "repositoryName": REPOSITORY, "pipelineName": job}


def _tags(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in tags.items()]


if __name__ == "__main__":
    home_folder, schedule_name, instant, crash_window = sys.argv[1:]
    with dg.DagsterInstance.from_config(home_folder) as own, _workspace(own, CODE, ["first"]) as loaded:
        _evaluate(loaded, datetime.fromisoformat(instant), {schedule_name: {crash_window: signal.SIGKILL}})
