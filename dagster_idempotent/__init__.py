"""Scheduled, paid work in Dagster that is safe to retry: one task, one result, one charge.

The names below are the public API. They are loaded when they are first used, so that the command line and the
metered provider start without loading Dagster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dagster_idempotent.definitions.alerts import Attention, AttentionKind
    from dagster_idempotent.definitions.asset_channel import AssetChannel
    from dagster_idempotent.definitions.component import IdempotentJobComponent
    from dagster_idempotent.definitions.jobs import idempotent_asset, idempotent_graph, idempotent_job
    from dagster_idempotent.definitions.operator_definitions import operator_definitions
    from dagster_idempotent.definitions.ops import allocate_op, collect_op, deliver_op, persist_op, transform_op
    from dagster_idempotent.definitions.partitions import by_subject, iso_week_partitions
    from dagster_idempotent.definitions.resources import (
        AllocatorResource,
        GuardedChatCompletionsResource,
        GuardedProviderResource,
        LedgerResource,
    )
    from dagster_idempotent.definitions.schedules import idempotent_schedule
    from dagster_idempotent.definitions.sdk_resources import (
        GuardedAnthropicResource,
        GuardedHttpResource,
        GuardedOpenAIResource,
        GuardedStripeResource,
    )
    from dagster_idempotent.domain.backoff import Backoff
    from dagster_idempotent.domain.identity import Identity
    from dagster_idempotent.domain.money import Budget, Money
    from dagster_idempotent.domain.outbox import DeliveryPolicy, Message
    from dagster_idempotent.domain.pipeline import Pipeline
    from dagster_idempotent.domain.task import Raw, Task
    from dagster_idempotent.engine.call_keys import call_key
    from dagster_idempotent.engine.call_map import map_calls
    from dagster_idempotent.engine.calls import Calls
    from dagster_idempotent.engine.channels.file import FileChannel
    from dagster_idempotent.engine.channels.http import HttpChannel
    from dagster_idempotent.engine.channels.paid import PaidChannel
    from dagster_idempotent.engine.channels.sql import SqlChannel
    from dagster_idempotent.engine.effects import EffectTransaction
    from dagster_idempotent.engine.files import write_artifact
    from dagster_idempotent.engine.tables import replace_rows
    from dagster_idempotent.errors import DeliveryInDoubt, DeliveryNotSent
    from dagster_idempotent.providers.job_api import JobApi
    from dagster_idempotent.providers.openai_batches import Batch, BatchResult, OpenAIBatches
    from dagster_idempotent.providers.remote_job import JobResult, JsonJobApi

__version__ = "0.1.0"
__all__ = [
    "AllocatorResource",
    "AssetChannel",
    "Attention",
    "AttentionKind",
    "Backoff",
    "Batch",
    "BatchResult",
    "Budget",
    "Calls",
    "DeliveryInDoubt",
    "DeliveryNotSent",
    "DeliveryPolicy",
    "EffectTransaction",
    "FileChannel",
    "GuardedAnthropicResource",
    "GuardedChatCompletionsResource",
    "GuardedHttpResource",
    "GuardedOpenAIResource",
    "GuardedProviderResource",
    "GuardedStripeResource",
    "HttpChannel",
    "IdempotentJobComponent",
    "Identity",
    "JobApi",
    "JobResult",
    "JsonJobApi",
    "LedgerResource",
    "Message",
    "Money",
    "OpenAIBatches",
    "PaidChannel",
    "Pipeline",
    "Raw",
    "SqlChannel",
    "Task",
    "allocate_op",
    "by_subject",
    "call_key",
    "collect_op",
    "deliver_op",
    "idempotent_asset",
    "idempotent_graph",
    "idempotent_job",
    "idempotent_schedule",
    "iso_week_partitions",
    "map_calls",
    "operator_definitions",
    "persist_op",
    "replace_rows",
    "transform_op",
    "write_artifact",
]

_HOMES = {
    "definitions.alerts": ("Attention", "AttentionKind"),
    "definitions.asset_channel": ("AssetChannel",),
    "definitions.component": ("IdempotentJobComponent",),
    "definitions.jobs": ("idempotent_asset", "idempotent_graph", "idempotent_job"),
    "definitions.operator_definitions": ("operator_definitions",),
    "definitions.ops": ("allocate_op", "collect_op", "deliver_op", "persist_op", "transform_op"),
    "definitions.partitions": ("by_subject", "iso_week_partitions"),
    "definitions.resources": (
        "AllocatorResource",
        "GuardedChatCompletionsResource",
        "GuardedProviderResource",
        "LedgerResource",
    ),
    "definitions.schedules": ("idempotent_schedule",),
    "definitions.sdk_resources": (
        "GuardedAnthropicResource",
        "GuardedHttpResource",
        "GuardedOpenAIResource",
        "GuardedStripeResource",
    ),
    "domain.backoff": ("Backoff",),
    "domain.identity": ("Identity",),
    "domain.money": ("Budget", "Money"),
    "domain.outbox": ("DeliveryPolicy", "Message"),
    "domain.pipeline": ("Pipeline",),
    "domain.task": ("Raw", "Task"),
    "engine.call_keys": ("call_key",),
    "engine.call_map": ("map_calls",),
    "engine.calls": ("Calls",),
    "engine.channels.file": ("FileChannel",),
    "engine.channels.http": ("HttpChannel",),
    "engine.channels.paid": ("PaidChannel",),
    "engine.channels.sql": ("SqlChannel",),
    "engine.effects": ("EffectTransaction",),
    "engine.files": ("write_artifact",),
    "engine.tables": ("replace_rows",),
    "errors": ("DeliveryInDoubt", "DeliveryNotSent"),
    "providers.job_api": ("JobApi",),
    "providers.openai_batches": ("Batch", "BatchResult", "OpenAIBatches"),
    "providers.remote_job": ("JobResult", "JsonJobApi"),
}


def __getattr__(name: str) -> object:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
