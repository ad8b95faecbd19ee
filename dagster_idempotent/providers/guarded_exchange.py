"""What lies below every SDK: paid requests go through the guard, free ones straight out."""

from collections.abc import Callable
from dataclasses import dataclass

from dagster_idempotent.errors import IdempotentError
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.sdk_errors import surfaced

# The guard as an SDK's adapter sees it: the stored answer, or the one that is paid for now, or an error of ours.
Exchange = Callable[[HttpRequest], HttpAnswer]


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardedExchange:
    """Decides by the provider's profile which requests are paid; `sdk_base` names the SDK's error class, if any."""

    exchange: Exchange
    provider: HttpProvider
    sdk_base: tuple[str, str] | None = None

    def __call__(self, request: HttpRequest) -> HttpAnswer | str:
        """Return the answer, or why a free request has none; raises errors of ours that the SDK lets through."""
        try:
            return self.exchange(request) if self.provider.is_paid(request) else self.provider.unpaid(request)
        except IdempotentError as error:
            twin = error if self.sdk_base is None else surfaced(error, *self.sdk_base)
            if twin is error:
                raise
            raise twin from error
