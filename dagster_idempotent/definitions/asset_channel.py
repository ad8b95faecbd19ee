"""The asset channel: tells Dagster's asset catalogue of each task's result, without a run (R32, R38)."""

# Dagster's own signatures are partly unknown to a type checker.
# pyright: reportUnknownMemberType=false

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.engine.relay import Channel
from dagster_idempotent.providers.send_window import SendWindow

# By this entry a materialisation is found again. Dagster's tags allow neither ":" nor more than 63 characters.
MESSAGE = "dagster-idempotent/message"
PAGE = 500
# How far apart the clocks of the database and of the relays may be, many times over.
CLOCKS_APART = timedelta(days=1)


class AssetChannel:
    """Reports one materialisation of `asset_key` for each task, looked for under the message's key before it is made.

    It appears at the partition that planned the task, unless `partition` says another (None: no partition). What
    `metadata` returns is shown beside it. A kill while Dagster stores the event may leave it in the event log without
    the asset's "latest materialization" being brought up to date; the next one mends that. The instance is that of the
    run or the sensor that delivers, else that of DAGSTER_HOME.
    """

    deduplicates = True

    def __init__(
        self,
        asset_key: dg.AssetKey | Sequence[str] | str,
        *,
        partition: Callable[[Message], str | None] = lambda message: message.partition_key,
        metadata: Callable[[Message], Mapping[str, Any]] = lambda _: {},
        instance: dg.DagsterInstance | None = None,
    ) -> None:
        self._asset_key = asset_key if isinstance(asset_key, dg.AssetKey) else dg.AssetKey(asset_key)
        self._partition, self._metadata, self._instance = partition, metadata, instance

    def on(self, instance: dg.DagsterInstance) -> "AssetChannel":
        """Return the same channel, reporting to that instance."""
        return AssetChannel(
            self._asset_key, partition=self._partition, metadata=self._metadata, instance=self._instance or instance
        )

    def deliver(self, message: Message, *, window: timedelta) -> str:
        """Report the materialisation unless it is there; return its asset and partition."""
        send_window = SendWindow(window)
        instance = self._instance or dg.DagsterInstance.get()
        partition = self._partition(message)
        receipt = self._asset_key.to_user_string() + (f" [{partition}]" if partition else "")
        if self._is_reported(instance, message, partition):
            return receipt
        materialisation = dg.AssetMaterialization(
            self._asset_key,
            partition=partition,
            metadata={
                **self._metadata(message),
                "dagster-idempotent/pipeline": message.pipeline,
                "dagster-idempotent/task_id": message.task_id,
                MESSAGE: message.key,
            },
        )
        # Whoever looks after this process was given up on must find all that it ever reports.
        send_window.before_write()
        instance.report_runless_asset_event(materialisation)
        return receipt

    def _is_reported(self, instance: dg.DagsterInstance, message: Message, partition: str | None) -> bool:
        wanted = dg.AssetRecordsFilter(
            asset_key=self._asset_key,
            asset_partitions=None if partition is None else [partition],
            after_timestamp=(message.created_at - CLOCKS_APART).timestamp(),
        )
        cursor: str | None = None
        while True:
            page = instance.fetch_materializations(wanted, limit=PAGE, cursor=cursor)
            if any(_key_of(record) == message.key for record in page.records):
                return True
            if not page.has_more:
                return False
            cursor = page.cursor


def reporting_to(channels: Mapping[str, Channel], instance: dg.DagsterInstance) -> Mapping[str, Channel]:
    """Return the channels, those to assets bound to the instance that delivers."""
    return {name: each.on(instance) if isinstance(each, AssetChannel) else each for name, each in channels.items()}


def _key_of(record: dg.EventLogRecord) -> object:
    materialisation = record.asset_materialization
    entry = None if materialisation is None else materialisation.metadata.get(MESSAGE)
    return None if entry is None else entry.value
