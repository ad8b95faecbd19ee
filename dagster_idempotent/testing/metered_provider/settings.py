"""How the provider behaves when nothing goes wrong."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(slots=True, kw_only=True)
class Settings:
    """Price, credential, and which promises the provider keeps; the two switches may change while it runs.

    `deduplicate`: a repeated idempotency key is answered from memory and not charged.
    `lookup`: `/v1/lookup` and the lists of jobs and batches exist.
    `job_polls`: at which poll a job that no test drives has succeeded; None: never.
    """

    price: Decimal = Decimal("0.02")
    currency: str = "USD"
    required_key: str | None = None
    deduplicate: bool = False
    lookup: bool = True
    job_polls: int | None = 3
