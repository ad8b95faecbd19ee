"""Resources: the ledger, the allocator, and the guarded provider client (R36).

Setting one up is cheap: connections open late, and a credential is named here and read only when a request leaves.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
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
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.task import Task
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.calls import Calls
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.reconciliation import AnyProvider
from dagster_idempotent.engine.work import current_work
from dagster_idempotent.providers.chat_completions import ChatCompletion, ChatCompletionsProvider, ChatRequest
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
    started or attached to. Only the embedded server's schema is created and upgraded by itself.
    """

    # Not declared secret: the Launchpad would then put asterisks in its place, and launch with them.
    url: str | None = Field(
        default=None,
        description="PostgreSQL URL, postgresql:// or postgresql+psycopg2://. Give it as an EnvVar: the UI shows the "
        "variable's name then, and a text as it is.",
    )
    folder: str | None = Field(
        default=None, description="Folder of the embedded server; default: postgres/ under DAGSTER_HOME."
    )
    webserver_url: str | None = Field(
        default=None,
        description="Address of the Dagster UI, for links that also work outside of it; default: links within the UI.",
    )
    max_connections: int = Field(default=4, ge=1, description="Connections that one process opens at most.")
    patience_seconds: float = Field(
        default=30.0, gt=0, description="How long a statement waits for a database that is away."
    )

    def database(self) -> Database:
        """Return the ledger's database, one per process; raises SchemaMismatch naming the command that mends it."""
        return _open(self.url, self.folder, self.max_connections, self.patience_seconds)

    def heartbeat(self) -> Heartbeat:
        """Return the heartbeat of this process."""
        return _heartbeat(self.database())


class AllocatorResource(_Community):
    """Plans tasks; the allocate op is the only one that asks for it (R10)."""

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
        """Build the adapter for this service."""
        return ChatCompletionsProvider(
            base_url=self.base_url,
            api_key_variable=self.api_key_variable,
            look_up_path=self.look_up_path,
            settle_delay=_length("settle_delay", self.settle_delay),
            key_window=None if self.key_window is None else _length("key_window", self.key_window),
            read_timeout=_length("read_timeout", self.read_timeout),
            cost_of=self._cost_of,
            upper_bound=None if self.upper_bound is None else Money.parse(self.upper_bound),
        )

    def get_calls(self, context: dg.OpExecutionContext) -> Calls[ChatRequest, ChatCompletion]:
        """Return the paid calls of the task that this op works on."""
        return super().get_calls(context)

    def _cost_of(self, raw: Mapping[str, object]) -> Money | None:
        usage = raw.get("usage")
        if self.input_price is None or self.output_price is None or not isinstance(usage, dict):
            return None
        used = cast("dict[str, object]", usage)
        asked, answered = used.get("prompt_tokens"), used.get("completion_tokens")
        if not isinstance(asked, int) or not isinstance(answered, int):
            return None
        price_in, price_out = Money.parse(self.input_price), Money.parse(self.output_price)
        million = Decimal(1_000_000)
        spent_in = Money(amount=price_in.amount * asked / million, currency=price_in.currency)
        return spent_in + Money(amount=price_out.amount * answered / million, currency=price_out.currency)


def _length(field: str, text: str) -> timedelta:
    return duration(text, field=field)


@cache
def _open(url: str | None, folder: str | None, max_connections: int, patience_seconds: float) -> Database:
    explicit = embedded.libpq_url(url) if url else embedded.url_from_environment()
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
