"""The step of launching a task again, as it was launched first: the same partition or key is the same task."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from dagster_idempotent.engine.next_step import NextStep
from dagster_idempotent.engine.sibling_launch import NotKnown, launch_like
from dagster_idempotent.engine.task_facts import Facts


def launch_again(facts: Facts, providers: str, *, when: str) -> NextStep:
    """Return the `dagster` command; the module of `providers` (module:attribute) is where assets are looked for."""
    launch: Mapping[str, Any] = facts.task["launch"] or {}
    if not launch.get("job"):
        found = launch_like(facts.task, facts.siblings)
        if isinstance(found, NotKnown):
            command = f"launch the job of {facts.ref.pipeline} for this task in Dagster ({found.why})"
            return NextStep(when=when, command=command)
        launch, when = found, f"{when} (as tasks like it were launched; it never was)"
    job, partition = launch["job"], launch.get("partition_key")
    if launch.get("assets"):
        return NextStep(when=when, command=_materialize(launch["assets"], partition, providers.partition(":")[0]))
    if partition:
        chosen = shlex.quote(str(partition))
        return NextStep(when=when, command=f"dagster job backfill -j {job} --partitions {chosen} --noprompt")
    config = shlex.quote(json.dumps({"ops": launch.get("ops") or {}}))
    return NextStep(when=when, command=f"dagster job launch -j {job} --config-json {config}{_tags(facts)}")


def _materialize(assets: Sequence[str], partition: str | None, module: str) -> str:
    # The job in which assets are materialised by hand holds all of them, and is no job that can be backfilled.
    command = f"dagster asset materialize --select {shlex.quote(','.join(assets))} -m {shlex.quote(module)}"
    return f"{command} --partition {shlex.quote(partition)}" if partition else command


def _tags(facts: Facts) -> str:
    """Carry the tick's time, which without a partition travels in a tag."""
    if facts.task["scheduled_at"] is None:
        return ""
    tag = {"dagster-idempotent/scheduled_at": facts.task["scheduled_at"].isoformat()}
    if facts.task["subject"]:
        tag["dagster-idempotent/subject"] = facts.task["subject"]
    return f" --tags {shlex.quote(json.dumps(tag))}"
