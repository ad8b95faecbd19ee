"""Jobs and assets of one pipeline, from one graph."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg

from dagster_idempotent.definitions.declared import Declared, declare
from dagster_idempotent.definitions.keys import AnyPartitions, check_partitions, tags_of
from dagster_idempotent.definitions.ops import (
    Channels,
    allocate_op,
    collect_op,
    deliver_op,
    persist_op,
    provider_parameters,
    transform_op,
)
from dagster_idempotent.definitions.signatures import Body
from dagster_idempotent.domain.pipeline import AnyPipeline


def idempotent_graph(
    pipeline: AnyPipeline,
    *,
    collect: Body,
    transform: Body,
    deliver: Channels | None = None,
    name: str | None = None,
    partitions_def: AnyPartitions | None = None,
    allow_straddling: bool = False,
) -> dg.GraphDefinition:
    """Make the graph allocate → collect → transform → persist → deliver; its result is the accepted output."""
    check_partitions(pipeline, partitions_def, allow_straddling=allow_straddling)
    channels = deliver or {}
    providers = provider_parameters(transform)
    named = name or pipeline.name
    # All assets of a code location meet in one job, where the names of ops are unique; their steps keep short names.
    allocating = allocate_op(
        pipeline, name=f"{named}_allocate", partitions_def=partitions_def, allow_straddling=allow_straddling
    )
    collecting = collect_op(pipeline, collect, name=f"{named}_collect", providers=providers)
    transforming = transform_op(
        pipeline, transform, name=f"{named}_transform", providers=providers, returns_candidate=True
    )
    persisting = persist_op(pipeline, channels=channels, name=f"{named}_persist", providers=providers)
    delivering = deliver_op(pipeline, channels, name=f"{named}_deliver") if channels else None

    @dg.graph(name=named, description=transform.__doc__)
    def stages() -> Any:  # noqa: ANN401 - a handle, while the graph is put together
        task = allocating.alias("allocate")()
        collected = collecting.alias("collect")(task)
        result = persisting.alias("persist")(collected, transforming.alias("transform")(collected))
        if delivering is not None:
            # Dagster allows no leaf beside an asset's output, so delivery hands the result through.
            return delivering.alias("deliver")(collected, result)
        return result

    return stages


def idempotent_job(
    pipeline: AnyPipeline,
    *,
    collect: Body,
    transform: Body,
    deliver: Channels | None = None,
    name: str | None = None,
    partitions_def: AnyPartitions | None = None,
    allow_straddling: bool = False,
    config: Mapping[str, Any] | None = None,
    tags: Mapping[str, str] | None = None,
    **options: Any,  # noqa: ANN401 - passed to GraphDefinition.to_job as they are
) -> dg.JobDefinition:
    """Make the job of a pipeline; each partition, each tick, each explicit key is one task.

    `config` is run config for every launch. Further options are those of `GraphDefinition.to_job`.
    """
    graph = idempotent_graph(
        pipeline,
        collect=collect,
        transform=transform,
        deliver=deliver,
        name=f"{name or pipeline.name}_stages",
        partitions_def=partitions_def,
        allow_straddling=allow_straddling,
    )
    job = graph.to_job(
        name=name or pipeline.name,
        config=_config(pipeline, partitions_def, config or {}),
        tags=tags,
        **options,
    )
    declare(job, Declared(pipeline=pipeline, channels=deliver or {}, providers=provider_parameters(transform)))
    return job


def idempotent_asset(
    pipeline: AnyPipeline,
    *,
    collect: Body,
    deliver: Channels | None = None,
    name: str | None = None,
    partitions_def: AnyPartitions | None = None,
    allow_straddling: bool = False,
    **options: Any,  # noqa: ANN401 - passed to AssetsDefinition.from_graph as they are
) -> Callable[[Body], dg.AssetsDefinition]:
    """Make an asset of a transform function: materialised from the UI, a schedule or a backfill, one task a partition.

    Further options are those of `AssetsDefinition.from_graph`.
    """

    def decorate(transform: Body) -> dg.AssetsDefinition:
        asset_name = name or getattr(transform, "__name__", pipeline.name)
        graph = idempotent_graph(
            pipeline,
            collect=collect,
            transform=transform,
            deliver=deliver,
            name=asset_name,
            partitions_def=partitions_def,
            allow_straddling=allow_straddling,
        )
        asset = dg.AssetsDefinition.from_graph(
            graph,
            keys_by_output_name={"result": dg.AssetKey([asset_name])},
            partitions_def=partitions_def,
            **options,
        )
        declare(asset, Declared(pipeline=pipeline, channels=deliver or {}, providers=provider_parameters(transform)))
        return asset

    return decorate


def _config(
    pipeline: AnyPipeline, partitions_def: AnyPartitions | None, config: Mapping[str, Any]
) -> dg.PartitionedConfig[AnyPartitions] | Mapping[str, Any] | None:
    """Return run config that, for partitioned jobs, also tags each run with its identity."""
    if partitions_def is None:
        return config or None
    return dg.PartitionedConfig(
        partitions_def=partitions_def,
        run_config_for_partition_key_fn=lambda _: config,
        tags_for_partition_key_fn=lambda key: tags_of(pipeline, partitions_def, key),
    )
