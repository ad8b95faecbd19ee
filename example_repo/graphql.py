"""The few requests of the Dagster UI that the demo makes: evaluate a tick, launch, re-execute, backfill."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from example_repo.local_dagster import Webserver

LOCATION = "example_repo.definitions"
REPOSITORY = "__repository__"

_TICK = """
mutation ($selector: ScheduleSelector!, $at: Float!) {
  scheduleDryRun(selectorData: $selector, timestamp: $at) {
    __typename
    ... on PythonError { message }
    ... on DryRunInstigationTick {
      evaluationResult { error { message } runRequests { runKey runConfigYaml tags { key value } } }
    }
  }
}
"""
_LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
_REEXECUTE = """
mutation ($params: ReexecutionParams!) {
  launchRunReexecution(reexecutionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
  }
}
"""
_BACKFILL = """
mutation ($params: LaunchBackfillParams!) {
  launchPartitionBackfill(backfillParams: $params) {
    __typename
    ... on LaunchBackfillSuccess { backfillId }
    ... on PythonError { message }
  }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """What a tick asks for."""

    run_key: str
    run_config: str
    tags: dict[str, str]


def evaluate_tick(server: Webserver, schedule: str, at: datetime) -> list[RunRequest]:
    """Evaluate a schedule at an instant, as "Test schedule" does."""
    selector = {"repositoryLocationName": LOCATION, "repositoryName": REPOSITORY, "scheduleName": schedule}
    tick = _only(server.ask(_TICK, selector=selector, at=at.timestamp())["scheduleDryRun"], "DryRunInstigationTick")
    result = tick["evaluationResult"]
    if result["error"]:
        raise RuntimeError(f"The tick failed: {result['error']['message']}")
    return [
        RunRequest(
            run_key=each["runKey"],
            run_config=each["runConfigYaml"],
            tags={tag["key"]: tag["value"] for tag in each["tags"]},
        )
        for each in result["runRequests"]
    ]


def launch(server: Webserver, job: str, request: RunRequest) -> str:
    """Launch what a tick asked for; returns the run id."""
    tags = [{"key": key, "value": value} for key, value in request.tags.items()]
    params = {
        "selector": {**_location(), "jobName": job},
        "runConfigData": request.run_config,
        "executionMetadata": {"tags": tags},
    }
    return _only(server.ask(_LAUNCH, params=params)["launchRun"], "LaunchRunSuccess")["run"]["runId"]


def reexecute_from_failure(server: Webserver, run_id: str) -> str:
    """Press "Re-execute from failure"; returns the new run's id."""
    params = {"parentRunId": run_id, "strategy": "FROM_FAILURE"}
    answer = server.ask(_REEXECUTE, params=params)["launchRunReexecution"]
    return _only(answer, "LaunchRunSuccess")["run"]["runId"]


def backfill(server: Webserver, job: str, partitions: list[str]) -> str:
    """Start a backfill of a job's partitions; returns the backfill's id."""
    selector = {"partitionSetName": f"{job}_partition_set", "repositorySelector": _location()}
    params = {"selector": selector, "partitionNames": partitions}
    answer = server.ask(_BACKFILL, params=params)["launchPartitionBackfill"]
    return _only(answer, "LaunchBackfillSuccess")["backfillId"]


def _location() -> dict[str, str]:
    return {"repositoryLocationName": LOCATION, "repositoryName": REPOSITORY}


def _only(answer: Any, wanted: str) -> dict[str, Any]:  # noqa: ANN401 - GraphQL data
    if answer["__typename"] != wanted:
        raise RuntimeError(f"Dagster answered {answer}, expected {wanted}.")
    return cast("dict[str, Any]", answer)
