"""What an operator chose for an import, and the rules that follow from it and from the pipeline."""

from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from dagster_idempotent.domain.currencies import ISO_4217
from dagster_idempotent.domain.legacy import WithoutIdentity
from dagster_idempotent.domain.legacy_plan import Rules
from dagster_idempotent.domain.period import PeriodKind, zone
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.legacy_import.reading import Adapter, read_weeks
from dagster_idempotent.errors import ConfigurationError, PipelineConflict
from dagster_idempotent.store import allocation
from dagster_idempotent.store.database import Database


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """What is imported, how, and on whose word.

    `pipeline` is declared, or the name of one that the ledger knows. `collection` names the folder in the metadata, by
    default after it. With `move_to`, a directory whose record is a task is renamed to `<move_to>/<task id>`.
    `currencies` are accepted beside those of ISO 4217 and the pipeline's own.
    """

    pipeline: Pipeline[BaseModel] | str
    folder: Path
    actor: str
    reason: str
    collection: str = ""
    move_to: Path | None = None
    without_identity: WithoutIdentity = WithoutIdentity.REFUSE
    currencies: frozenset[str] = frozenset()
    adapter: Adapter = read_weeks

    @property
    def name(self) -> str:
        """The pipeline's name."""
        return self.pipeline if isinstance(self.pipeline, str) else self.pipeline.name

    @property
    def collection_name(self) -> str:
        """The name of the folder in the import metadata."""
        return self.collection or self.folder.resolve().name


def rules_for(database: Database, what: Import, *, register: bool) -> Rules:
    """Return what decides about every record; a declared pipeline is registered first if asked for."""
    rules = rules_of(database, what.pipeline, register=register, actor=what.actor)
    currencies = ISO_4217 | rules.currencies | what.currencies
    return replace(rules, currencies=currencies, without_identity=what.without_identity)


def rules_of(database: Database, pipeline: Pipeline[BaseModel] | str, *, register: bool, actor: str) -> Rules:
    """Return the rules of a pipeline's numbering; a declared one is registered first if asked for."""
    if isinstance(pipeline, Pipeline):
        if register:
            Allocator(database, actor=actor).register(pipeline)
        currencies = frozenset({pipeline.currency} if pipeline.currency else ())
        return Rules(pipeline=pipeline.name, kind=pipeline.period, timezone=pipeline.timezone, currencies=currencies)
    row = database.run(lambda c: allocation.get_pipeline(c, pipeline))
    if row is None:
        raise ConfigurationError(
            f"The ledger knows no pipeline {pipeline!r}. Expected one whose period and timezone are fixed, since they "
            "number the tasks. Check the name; for one that has never run, give its timezone.",
            field="pipeline",
        )
    currencies = frozenset({row["currency"]} if row["currency"] else ())
    return Rules(
        pipeline=pipeline, kind=PeriodKind(row["period_kind"]), timezone=zone(row["timezone"]), currencies=currencies
    )


def is_known(database: Database, pipeline: str, timezone: str) -> bool:
    """Whether the ledger knows a pipeline; raises PipelineConflict where it knows it in another timezone."""
    row = database.run(lambda c: allocation.get_pipeline(c, pipeline))
    if row is None:
        return False
    if row["timezone"] != timezone:
        raise PipelineConflict(
            f"Pipeline {pipeline!r} numbers its tasks in {row['timezone']}, the import was given {timezone}. Leave the "
            "timezone out: it is fixed.",
            pipeline=pipeline,
        )
    return True
