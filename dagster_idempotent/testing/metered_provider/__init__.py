"""A paid provider for tests, in its own process and with its own durable bill.

The bill is the oracle of every crash test: it says what was charged, whatever the ledger says.
"""

from dagster_idempotent.testing.metered_provider.control import (
    BillLine,
    BillStatement,
    Held,
    Job,
    MeteredProviderError,
    ProviderControl,
    ReceivedRequest,
)
from dagster_idempotent.testing.metered_provider.process import MeteredProvider

__all__ = [
    "BillLine",
    "BillStatement",
    "Held",
    "Job",
    "MeteredProvider",
    "MeteredProviderError",
    "ProviderControl",
    "ReceivedRequest",
]
