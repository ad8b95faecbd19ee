"""Episodes, several a week: planned, shot by remote jobs, assembled into an animated picture, approved, published.

The graph is put together from the op factories. Each shot is a call of its own, by its name, in an op of its own: a
killed worker, a retry or a reassembly asks for the same jobs and pays for none of them again. Nothing is published
before a person has approved the episode (gate `publish`).

`episodes` plans a task at each tick; `episodes_generate` and `episodes_reassemble` take the id of a task that exists.
"""

import json
from collections.abc import Callable, Generator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import dagster as dg
from pydantic import BaseModel, Field

from dagster_idempotent import (
    Budget,
    FileChannel,
    Message,
    Pipeline,
    Raw,
    Task,
    allocate_op,
    collect_op,
    deliver_op,
    idempotent_schedule,
    persist_op,
    transform_op,
    write_artifact,
)
from dagster_idempotent.definitions.declared import Declared, declare
from example_repo.animation import animated
from example_repo.settings import ASSEMBLED, DELIVERIES
from example_repo.studio import StudioResource

SCENES = ("a forest at dawn", "a river", "a town in the rain", "the sea at night")


class Shot(BaseModel):
    """One shot, as it went into the episode."""

    name: str
    job: str
    sha256: str


class Episode(BaseModel):
    """What an episode has to be before it counts as the result."""

    title: str = Field(min_length=1)
    shots: list[Shot] = Field(min_length=1)
    picture: str
    picture_sha256: str


episode = Pipeline(
    "episodes",
    output=Episode,
    approval="publish",
    budget=Budget(per_task="1.00 USD"),
    sender_lease="12s",
    send_window="5s",
)


class Site(FileChannel):
    """Publishes an episode: its picture, and beside it what it is made of."""

    def deliver(self, message: Message, *, window: timedelta) -> str:
        """Copy the picture to the site; doing it twice is harmless."""
        made = Episode.model_validate_json(message.payload)
        write_artifact(DELIVERIES, "episodes", message.task_id, "episode.png", Path(made.picture).read_bytes())
        return super().deliver(message, window=window)


def plan(task: Task) -> str:
    """Plan the episode of one release: which shots it needs. A retry reuses the stored plan."""
    scenes = [SCENES[(task.sequence + number) % len(SCENES)] for number in range(3)]
    shots = [{"name": f"shot-{number:02}", "prompt": f"{task}: {scene}"} for number, scene in enumerate(scenes, 1)]
    return json.dumps({"title": f"Episode {task.task_id}", "shots": shots})


def storyboard(raw: Raw) -> list[dict[str, str]]:
    """Read the shots from the stored plan."""
    return json.loads(raw.text())["shots"]


@dg.op(out=dg.DynamicOut(dict))
def each_shot(shots: list[dict[str, str]]) -> Generator[dg.DynamicOutput[dict[str, str]]]:
    """Give every shot to an op of its own."""
    for shot in shots:
        yield dg.DynamicOutput(shot, mapping_key=shot["name"].replace("-", "_"))


def shoot(context: dg.OpExecutionContext, shot: dict[str, Any], studio: StudioResource) -> str:
    """Have the studio make one shot: one paid job, polled until it is done, and never submitted twice."""
    made = studio.get_calls(context).call(shot["name"], {"prompt": shot["prompt"]})
    context.log.info("%s is job %s: %d bytes.", shot["name"], made.remote_ref, len(made.body))
    return shot["name"]


def assemble(
    context: dg.OpExecutionContext, task: Task, raw: Raw, made: list[Any], studio: StudioResource
) -> dict[str, object]:
    """Make the animated picture from the stored shots; they are replayed, by name, and cost nothing here."""
    plan_of = json.loads(raw.text())
    calls = studio.get_calls(context)
    shots = {each["name"]: calls.call(each["name"], {"prompt": each["prompt"]}) for each in plan_of["shots"]}
    context.log.info("Assembling %d shots.", len(made))
    picture = animated([shot.body for shot in shots.values()])
    digest = write_artifact(ASSEMBLED, "episodes", task.task_id, "episode.png", picture)
    return {
        "title": plan_of["title"],
        "shots": [
            {"name": name, "job": shot.remote_ref, "sha256": sha256(shot.body).hexdigest()}
            for name, shot in shots.items()
        ],
        "picture": str(ASSEMBLED / "episodes" / task.task_id / "episode.png"),
        "picture_sha256": digest,
    }


class ExistingTask(dg.Config):
    """Names a task that exists; nothing but `episodes` ever creates one."""

    task_id: str = Field(description="The task to work on, such as 2026-W32-0.")


@dg.op
def existing_task(config: ExistingTask) -> str:
    """Take the id of a task that exists; the next op stops where it does not."""
    return config.task_id


channels = {"site": Site(DELIVERIES)}
providers = {"studio": StudioResource}
allocate = allocate_op(episode)
plan_op = collect_op(episode, plan, name="plan", providers=providers)
storyboard_op = transform_op(episode, storyboard, name="storyboard", providers=providers)
shoot_op = transform_op(episode, shoot, name="shoot", inputs={"shot": dict})
assemble_op = transform_op(episode, assemble, name="assemble", inputs={"made": list})
persist = persist_op(episode, channels=channels, providers=providers)
deliver = deliver_op(episode, channels)


def one_shot(planned: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - as below
    """Return the op of one shot, for the dynamic map."""
    return lambda shot: shoot_op(planned, shot)


def assembled(task: Any) -> Any:  # noqa: ANN401 - handles, while a graph is put together
    """Plan, shoot and assemble: the part that all three jobs share."""
    planned = plan_op(task)
    shots = each_shot(storyboard_op(planned)).map(one_shot(planned))
    return planned, assemble_op(planned, shots.collect())


@dg.job(name="episodes")  # pyright: ignore[reportUnknownMemberType] - an annotation of Dagster
def episodes_job() -> None:
    """Make this release's episode: the only job that creates a task."""
    planned, candidate = assembled(allocate())
    deliver(planned, persist(planned, candidate))


@dg.job  # pyright: ignore[reportUnknownMemberType] - an annotation of Dagster
def episodes_generate() -> None:
    """Go on with an episode that exists: what is paid is replayed, what is missing is made."""
    planned, candidate = assembled(existing_task())
    deliver(planned, persist(planned, candidate))


@dg.job  # pyright: ignore[reportUnknownMemberType] - an annotation of Dagster
def episodes_reassemble() -> None:
    """Make the picture of an episode again from its stored shots; it pays for nothing on a completed task."""
    assembled(existing_task())


# Sensors and operator jobs know a graph of one's own by what it was made of.
declare(episodes_job, Declared(pipeline=episode, channels=channels, providers=providers))

# Tuesday and Friday, 09:00 UTC: two tasks a week, such as 2026-W32-0 and 2026-W32-1.
episodes_schedule = idempotent_schedule(episodes_job, cron_schedule="0 9 * * 2,5")
