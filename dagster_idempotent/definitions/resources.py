"""Resources: the ledger, the allocator, and the guarded provider client (R36).

Setting one up is cheap: connections open late, and a credential is named here and read only when a request leaves.
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, cast

import dagster as dg
from pydantic import BaseModel, Field

from dagster_idempotent import embedded
from dagster_idempotent.domain.backoff import duration
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.period import TaskId
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Lease, Task
from dagster_idempotent.engine import effects
from dagster_idempotent.engine.allocator import Allocator, get_task
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.effects import EffectTransaction
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.large_artifacts import THRESHOLD, LargeArtifacts
from dagster_idempotent.engine.work import current_work
from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.providers.chat_completions import ChatCompletion, ChatCompletionsProvider, ChatRequest
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import version
from dagster_idempotent.store.database import Database


class _Community(dg.ConfigurableResource[Any]):
    """What every resource here shares: it is not one of Dagster's own."""

    @classmethod
    def _is_dagster_maintained(cls) -> bool:
        return False


class LedgerResource(_Community):
    """The ledger: PostgreSQL, in the schema `dagster_idempotent`.

    The URL is taken from `url`, else from DAGSTER_IDEMPOTENT_POSTGRES_URL, else the embedded server of `folder` is
    started or attached to. Only the embedded server's schema is created and upgraded by itself. A setting that is given
    and empty is refused: another ledger, an empty one, would let everything be paid again.
    """

    # Not declared secret: the Launchpad would then put asterisks in its place, and launch with them.
    url: str | None = Field(
        default=None,
        description="PostgreSQL URL, postgresql:// or postgresql+psycopg2://. Give it as an EnvVar: the UI shows the "
        "variable's name then, and a text as it is.",
    )
    folder: str | None = Field(
        default=None,
        description="Folder of the embedded server; default: $DAGSTER_HOME/postgres, else your data folder.",
    )
    webserver_url: str | None = Field(
        default=None,
        description="Address of the Dagster UI, for links that also work outside of it; default: links within the UI.",
    )
    max_connections: int = Field(default=4, ge=1, description="Connections that one process opens at most.")
    patience_seconds: float = Field(
        default=30.0, gt=0, description="How long a statement waits for a database that is away."
    )

    artifacts_uri: str | None = Field(
        default=None,
        description="Where large raw artifacts and answers are written: an absolute folder, file:///…, s3://… or "
        "anything that fsspec knows, reached by every worker. Without one they stay in the table, within its limits.",
    )
    artifacts_from_bytes: int = Field(
        default=THRESHOLD, ge=1, description="Bodies of so many bytes and more are written to artifacts_uri."
    )

    def large_artifacts(self) -> LargeArtifacts | None:
        """Return where large bodies go; None where they stay in the table."""
        if self.artifacts_uri is None:
            return None
        _check_given("artifacts_uri", self.artifacts_uri)
        return LargeArtifacts(base_uri=self.artifacts_uri, threshold=self.artifacts_from_bytes)

    def database(self) -> Database:
        """Return the ledger's database, one per process; raises SchemaMismatch naming the command that mends it."""
        for name, text in (("url", self.url), ("folder", self.folder)):
            _check_given(name, text)
        explicit = embedded.url_from_environment() if self.url is None else embedded.libpq_url(self.url)
        return _open(explicit, self.folder, self.max_connections, self.patience_seconds)

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this process."""
        return _heartbeat(self.database())

    def get_task(self, pipeline: Pipeline[BaseModel], task_id: str) -> Task:
        """Return a task; raises TaskNotFound, creates nothing."""
        return get_task(self.database(), pipeline.name, TaskId(task_id))

    @contextmanager
    def transaction(
        self, key: str, *, task: Task | None = None, request: object = None
    ) -> Generator[EffectTransaction]:
        """Open a transaction on the ledger's own database in which the effect `key` of a task happens, once.

        Put the statements under `if tx.is_first:`, with `tx.execute`, and set `tx.result`; what they change and the
        record that they did commit together or not at all. A second run changes nothing and finds the first result in
        `tx.result`. `request` is what the effect depends on: another one under the same key raises PayloadMismatch.
        In collect and transform the task is the op's own and the commit is fenced: raises LeaseLost, with nothing
        changed, where another run took the task over. Elsewhere give the task; nothing fences there.
        """
        lease: Lease | None = None
        if task is None:
            work = current_work()
            work.check_lease()
            task, lease = work.task, work.lease
        with effects.transaction(self.database(), task.pipeline, task.task_id, key, request=request, lease=lease) as tx:
            yield tx


class AllocatorResource(_Community):
    """Plans tasks; the op `allocate` is the only one that asks for it."""

    ledger: dg.ResourceDependency[LedgerResource]

    def allocate(
        self, pipeline: Pipeline[BaseModel], identity: Identity, *, launch: Mapping[str, object] | None = None
    ) -> Task:
        """Return the task of an identity, creating it the first time; see `Allocator.allocate`."""
        return Allocator(self.ledger.database()).allocate(pipeline, identity, launch=launch)


class GuardedProviderResource(_Community, ABC):
    """A paid provider behind the guard; subclass it with the `provider()` of your service."""

    @abstractmethod
    def provider(self) -> AnyProvider:
        """Build the adapter; reads no credential and opens no connection."""

    def get_calls(self, context: dg.OpExecutionContext) -> Calls[Any, Any]:  # noqa: ARG002 - as get_client(context)
        """Return the paid calls of the task that this op works on.

        Raises ConfigurationError outside of an op of an idempotent job or asset.
        """
        return Calls(current_work(), self.provider())


class GuardedChatCompletionsResource(GuardedProviderResource):
    """Any service with OpenAI's `POST /chat/completions`, paid at most once per call.

    Prices are texts such as "0.15 USD" per million tokens; without them the cost is unknown, never zero.
    """

    base_url: str = Field(default="https://api.openai.com/v1", description="Address of the service, ending in /v1.")
    api_key_variable: str = Field(
        default="OPENAI_API_KEY",
        description="Name of the environment variable that holds the key; read only when a request leaves.",
    )
    look_up_path: str | None = Field(
        default=None,
        description="Path of an exact look-up by client reference, where the service has one, such as /lookup.",
    )
    settle_delay: str = Field(
        default="10m", description="How long a request may take to land and to be found after its sender ended."
    )
    key_window: str | None = Field(
        default=None, description="How long the service documents that it honours Idempotency-Key; none: it does not."
    )
    read_timeout: str = Field(default="10m", description="How long to wait for an answer.")
    input_price: str | None = Field(default=None, description="Price of a million input tokens, such as 0.15 USD.")
    output_price: str | None = Field(default=None, description="Price of a million output tokens, such as 0.60 USD.")
    upper_bound: str | None = Field(default=None, description="What one call may cost at most; reserved by budgets.")

    def provider(self) -> ChatCompletionsProvider:
        """Build the adapter for this service; raises ConfigurationError for a price that is none."""
        # Before anything is sent: a price that cannot be read would leave a paid call without a cost.
        self._prices()
        return ChatCompletionsProvider(
            base_url=self.base_url,
            api_key_variable=self.api_key_variable,
            look_up_path=self.look_up_path,
            settle_delay=_length("settle_delay", self.settle_delay),
            key_window=None if self.key_window is None else _length("key_window", self.key_window),
            read_timeout=_length("read_timeout", self.read_timeout),
            cost_of=self._cost_of,
            upper_bound=price("upper_bound", self.upper_bound),
        )

    def get_calls(self, context: dg.OpExecutionContext) -> Calls[ChatRequest, ChatCompletion]:
        """Return the paid calls of the task that this op works on."""
        return super().get_calls(context)

    def _cost_of(self, raw: Mapping[str, object]) -> Money | None:
        usage = raw.get("usage")
        price_in, price_out = self._prices()
        if price_in is None or price_out is None or not isinstance(usage, dict):
            return None
        used = cast("dict[str, object]", usage)
        asked, answered = used.get("prompt_tokens"), used.get("completion_tokens")
        if not isinstance(asked, int) or not isinstance(answered, int):
            return None
        million = Decimal(1_000_000)
        spent_in = Money(amount=price_in.amount * asked / million, currency=price_in.currency)
        return spent_in + Money(amount=price_out.amount * answered / million, currency=price_out.currency)

    def _prices(self) -> tuple[Money | None, Money | None]:
        price_in, price_out = price("input_price", self.input_price), price("output_price", self.output_price)
        if price_in is not None and price_out is not None and price_in.currency != price_out.currency:
            raise ConfigurationError(
                f"input_price is in {price_in.currency}, output_price in {price_out.currency}. Expected one currency; "
                "nothing is converted here.",
                field="output_price",
            )
        return price_in, price_out


def price(field: str, text: str | None) -> Money | None:
    """Read a price; raises ConfigurationError naming the field where it is no amount, or below zero."""
    return None if text is None else Money.parse(text, field=field).non_negative(field=field)


def _length(field: str, text: str) -> timedelta:
    return duration(text, field=field)


def _check_given(field: str, text: str | None) -> None:
    """Refuse a text of blanks, such as an environment variable that is set and empty; None is no setting."""
    if text is not None and not text.strip():
        raise ConfigurationError(
            f"The ledger's {field} is given, and it is empty. Nothing else is used in its place. Give it a value (a "
            "variable of this process's environment may be empty), or leave the setting out.",
            field=field,
        )


@cache
def _open(explicit: str | None, folder: str | None, max_connections: int, patience_seconds: float) -> Database:
    path = None if folder is None else Path(folder)
    database = Database(
        explicit or embedded.resolve_url(path),
        max_connections=max_connections,
        patience=timedelta(seconds=patience_seconds),
    )
    if explicit is None and version.is_behind(database):
        # Alembic takes longer to load than the rest of a step's start, and is needed once in a ledger's life.
        from dagster_idempotent.store import schema  # noqa: PLC0415

        schema.upgrade(database)
    version.check(database)
    return database


@cache
def _heartbeat(database: Database) -> Heartbeat:
    return Heartbeat(database)
