"""A code location with its operator definitions, run in one process."""

from pathlib import Path
from typing import Any

import dagster as dg
from locations import loaded_anew

from dagster_idempotent import operator_definitions

DECIDER = {"actor": "ada", "reason": "ticket 12"}


class House:
    """A code location with its operator definitions, run in this process."""

    def __init__(self, instance: dg.DagsterInstance, folder: Path) -> None:
        # It reads the test's folder from the environment when it is loaded.
        code_location = loaded_anew(folder)
        self.instance = instance
        self.resources: dict[str, Any] = dict(code_location.defs.resources or {})
        operators = operator_definitions(code_location.blind_job, code_location.weekly_job, code_location.report_asset)
        ours = dg.Definitions(
            jobs=[code_location.blind_job, code_location.weekly_job],
            assets=[code_location.report_asset],
            executor=dg.in_process_executor,
            resources=self.resources,
        )
        self.definitions = dg.Definitions.merge(ours, operators)
        self.repository = self.definitions.get_repository_def()

    def run(self, job: str, *, partition: str | None = None, config: dict[str, Any] | None = None, **tags: str) -> bool:
        return not self.fail(job, partition=partition, config=config, **tags)

    def fail(
        self, job: str, *, partition: str | None = None, config: dict[str, Any] | None = None, **tags: str
    ) -> list[str]:
        """Run a job and return what its failed steps said; nothing where it succeeded."""
        job_def = self.repository.get_job(job)
        result = job_def.execute_in_process(
            instance=self.instance, partition_key=partition, run_config=config, tags=tags, raise_on_error=False
        )
        said = [each.step_failure_data.error_display_string for each in result.all_events if each.is_step_failure]
        assert bool(said) is not result.success
        return said

    def decide(self, verb: str, **config: Any) -> bool:
        return not self.refuse(verb, **config)

    def refuse(self, verb: str, **config: Any) -> list[str]:
        """Launch an operator job and return why it refused; nothing where it decided."""
        return self.fail(f"idempotency_{verb}", config={"ops": {verb: {"config": {**DECIDER, **config}}}})

    def tick(self, sensor: str, cursor: str | None = None) -> Any:
        with dg.build_sensor_context(
            instance=self.instance, cursor=cursor, resources=self.resources, repository_def=self.repository
        ) as context:
            return self.repository.get_sensor_def(sensor).evaluate_tick(context)
