"""What a job or an asset of this library was declared with, for the sensors and jobs of its operators."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import dagster as dg
from pydantic import BaseModel

from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.relay import Channel
from dagster_idempotent.errors import ConfigurationError

Declaring = dg.JobDefinition | dg.AssetsDefinition


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A pipeline, where its messages go, and the resources that can look its calls up, by key."""

    pipeline: Pipeline[BaseModel]
    channels: Mapping[str, Channel]
    providers: Mapping[str, Any]


# Operator jobs that this process has loaded; a link to a job that is not there would only annoy.
_operator_jobs: set[str] = set()
_declared: "WeakKeyDictionary[Declaring, Declared]" = WeakKeyDictionary()


def declare(definition: Declaring, declared: Declared) -> None:
    """Remember what a definition was made of."""
    _declared[definition] = declared


def declared_by(definition: Declaring) -> Declared:
    """Return what a definition was made of; raises ConfigurationError where it is none of ours."""
    found = _declared.get(definition)
    if found is None:
        raise ConfigurationError(
            f"{definition!r} was not made by idempotent_job or idempotent_asset, so its pipeline is not known here.",
            field="definitions",
        )
    return found


def note_operator_job(name: str) -> None:
    """Remember that the code location has an operator job."""
    _operator_jobs.add(name)


def operator_jobs_here() -> frozenset[str]:
    """Return the operator jobs of this code location; every process of Dagster loads the whole of it."""
    return frozenset(_operator_jobs)
