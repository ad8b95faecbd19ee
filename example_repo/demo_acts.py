"""The acts of the demonstration, each as a person would do it in the Dagster UI."""

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg

from dagster_idempotent.testing.metered_provider import MeteredProvider
from example_repo import graphql
from example_repo.local_dagster import WORKSPACE, Processes, Webserver, wait_for

JOB, SCHEDULE = "weekly_digest", "weekly_digest_schedule"
PATIENCE = 300.0  # for one wait; a busy machine needs minutes for a run


@dataclass(slots=True, kw_only=True)
class Story:
    """What happened to one partition, for the table."""

    partition: str
    runs: int = 0
    killed: bool = False
    task_id: str = ""
    settled_by: str = ""
    cost: str = ""


class Acts:
    """The acts of the demonstration, each as a person would do it in the UI."""

    def __init__(
        self,
        server: Webserver,
        instance: dg.DagsterInstance,
        provider: MeteredProvider,
        processes: Processes,
        note: Callable[[str], None],
    ) -> None:
        self._server, self._instance, self._provider = server, instance, provider
        self._processes, self._note = processes, note
        self._runs: dict[str, str] = {}

    def tick(self, *, kills: int) -> list[Story]:
        """Evaluate this week's tick and launch what it asks for; the first `kills` answers are held back."""
        tick = _this_weeks_tick(datetime.now(UTC))
        requests = graphql.evaluate_tick(self._server, SCHEDULE, tick)
        stories = [Story(partition=request.tags["dagster/partition"]) for request in requests]
        for story in stories[:kills]:
            tenant = story.partition.partition("|")[0]
            self._provider.fault("hold", body_contains=f"tenant: {tenant}")
            story.killed = True
        for story, request in zip(stories, requests, strict=True):
            self._runs[story.partition] = graphql.launch(self._server, JOB, request)
            story.runs += 1
        self._note(f"The tick of {tick:%A %Y-%m-%d %H:%M} UTC launched {len(requests)} runs.")
        return stories

    def kill_and_reexecute(self, stories: list[Story]) -> None:
        """Kill each step whose answer is held back, after the provider accepted; then re-execute its run."""
        doomed = [story for story in stories if story.killed]
        if doomed:
            self._provider.wait_held(len(doomed), timeout=PATIENCE)
            self._note(f"The provider accepted and charged {len(doomed)} call(s); their workers are killed now.")
        for story in doomed:
            os.kill(self._step_pid(self._runs[story.partition]), signal.SIGKILL)
        self._provider.release()
        for story in doomed:
            self._await_end(self._runs[story.partition], dg.DagsterRunStatus.FAILURE)
            self._runs[story.partition] = graphql.reexecute_from_failure(self._server, self._runs[story.partition])
            story.runs += 1
        if doomed:
            self._note("Re-executing from failure; the killed sender counts as alive for up to 12 s.")
        for story in stories:
            self._await_end(self._runs[story.partition], dg.DagsterRunStatus.SUCCESS)
        self._note("Every run has succeeded.")

    def backfill(self, stories: list[Story]) -> int:
        """Backfill the same partitions; returns how many runs replayed the accepted result."""
        # A daemon that starts looks for backfills at once; one that runs, every half minute.
        self._processes.stop("daemon")
        backfill = graphql.backfill(self._server, JOB, [story.partition for story in stories])
        self._processes.start("daemon", "dagster-daemon", "run", "-w", str(WORKSPACE))
        self._note("Backfilling the same partitions.")
        mine = dg.RunsFilter(tags={"dagster/backfill": backfill})

        def all_there() -> list[dg.DagsterRun] | None:
            runs = [record.dagster_run for record in self._instance.get_run_records(mine)]
            return runs if len(runs) == len(stories) else None

        runs = wait_for("the backfill's runs", all_there, check=self._processes.check, seconds=PATIENCE)
        for run in runs:
            self._await_end(run.run_id, dg.DagsterRunStatus.SUCCESS)
        for story in stories:
            story.runs += 1
        self._note("The backfill has succeeded.")
        return sum(self._replayed(run.run_id) for run in runs)

    def _await_end(self, run_id: str, wanted: dg.DagsterRunStatus) -> None:
        def ended() -> dg.DagsterRun | None:
            run = self._instance.get_run_by_id(run_id)
            return run if run is not None and run.is_finished else None

        run = wait_for(f"run {run_id}", ended, check=self._processes.check, seconds=PATIENCE)
        if run.status is not wanted:
            errors = [entry.user_message for entry in self._instance.all_logs(run_id) if entry.level == logging.ERROR]
            raise RuntimeError(f"Run {run_id} ended in {run.status.value}, expected {wanted.value}: {errors[-1:]}")

    def _step_pid(self, run_id: str) -> int:
        """Return the process of the transform step, as Dagster's event log has it."""

        def find() -> int | None:
            for entry in reversed(self._instance.all_logs(run_id)):
                event = entry.dagster_event
                if event is not None and event.step_key == "transform":
                    found: dict[str, Any] = getattr(event.event_specific_data, "metadata", None) or {}
                    if "pid" in found:
                        return int(str(found["pid"].value))
            return None

        return wait_for("the step's process id", find, check=self._processes.check, seconds=PATIENCE)

    def _replayed(self, run_id: str) -> bool:
        for entry in self._instance.all_logs(run_id):
            event = entry.dagster_event
            if event is not None and event.is_successful_output and event.step_key == "persist":
                return event.step_output_data.metadata["accepted"].value == "earlier"
        return False


def _this_weeks_tick(now: datetime) -> datetime:
    monday = now.date() - timedelta(days=now.weekday())
    return datetime(monday.year, monday.month, monday.day, 9, tzinfo=UTC)
