"""The test's side of the metered provider: read its bill, order faults, release what it holds.

Standard library only, so that it works where no HTTP client is installed.
"""

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, cast
from urllib.parse import urlencode, urlsplit

from dagster_idempotent.errors import ConfigurationError, IdempotentError

_TIMEOUT_SECONDS = 30.0


class MeteredProviderError(IdempotentError):
    """The metered provider could not be started, reached, or did not do what a test waits for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One charge; `finished` is False while the provider holds the answer back."""

    number: int
    request_id: str
    sequence: int
    client_reference: str | None
    accepted_at: datetime
    amount: Decimal
    currency: str
    finished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BillStatement:
    """What the provider charged, in all and line by line."""

    charges: int
    total: Decimal
    currency: str
    lines: tuple[BillLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """One request that arrived; `outcome` is arrived, accepted, replayed, refused, dropped or redirected.

    A charged request stays `accepted`, whatever its client was told.
    """

    sequence: int
    arrived_at: datetime
    method: str
    path: str
    client_reference: str | None
    headers: Mapping[str, str]
    body: str
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One request that waits to be released; `accepted` says whether it is charged already."""

    sequence: int
    client_reference: str | None
    accepted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job or batch: `key` is the reference under which it was submitted, `polls` how often it was asked about."""

    id: str
    key: str | None
    status: str
    polls: int


class ProviderControl:
    """Talks to the controls of a running metered provider at `control_url`, from any process."""

    def __init__(self, control_url: str) -> None:
        self.control_url = control_url.rstrip("/")

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as `base_url`; ends in /v1."""
        return f"{self.control_url}/v1"

    @property
    def charges(self) -> int:
        """How often the provider charged."""
        return self.bill().charges

    def bill(self) -> BillStatement:
        """Read the bill."""
        found = self._call("GET", "/bill")
        return BillStatement(
            charges=cast("int", found["charges"]),
            total=Decimal(cast("str", found["total"])),
            currency=cast("str", found["currency"]),
            lines=tuple(_bill_line(line) for line in _rows(found["lines"])),
        )

    def requests(self) -> tuple[ReceivedRequest, ...]:
        """List every paid-API request that arrived, accepted or not; credentials are redacted."""
        return tuple(_received(row) for row in _rows(self._call("GET", "/requests")["requests"]))

    def fault(
        self,
        kind: str,
        *,
        times: int | None = 1,
        client_reference: str | None = None,
        body_contains: str | None = None,
        path_contains: str | None = None,
        **options: object,
    ) -> None:
        """Spoil the next `times` matching requests (None: all); options as in the provider's --help.

        Free requests (polls, results, cancellations) are spoiled only where `path_contains` names a part of their
        method and path, such as "GET /v1/jobs" or "/result".

        Raises ConfigurationError for a fault or an option that does not exist. A restart forgets faults.
        """
        match = {"client_reference": client_reference, "body_contains": body_contains, "path_contains": path_contains}
        self._call("POST", "/faults", {"fault": kind, "times": times, **match, **options})

    def clear_faults(self) -> None:
        """Forget the faults that have not been played."""
        self._call("DELETE", "/faults")

    def held(self) -> tuple[Held, ...]:
        """List the requests being held now."""
        return _held(self._call("GET", "/held"))

    def wait_held(self, n: int = 1, timeout: float = _TIMEOUT_SECONDS) -> tuple[Held, ...]:
        """Wait until at least `n` requests are held; MeteredProviderError after `timeout` seconds."""
        query = urlencode({"wait": n, "timeout": timeout})
        held = _held(self._call("GET", f"/held?{query}", patience=timeout + _TIMEOUT_SECONDS))
        if len(held) < n:
            raise MeteredProviderError(
                f"found {len(held)} held requests after {timeout} s, expected {n};"
                " order the fault `hold` before the request, and see .requests() for what arrived",
                held=held,
            )
        return held

    def release(self, client_reference: str | None = None) -> int:
        """Let held requests go on, all or those of one reference; returns how many.

        Also finishes accepted work whose connection a kill of the provider took away: look-up shows it then.
        """
        query = "" if client_reference is None else "?" + urlencode({"reference": client_reference})
        return cast("int", self._call("POST", f"/release{query}")["released"])

    def configure(self, *, deduplicate: bool | None = None, lookup: bool | None = None) -> None:
        """Change which promises the running provider keeps; None leaves a setting as it is."""
        wanted = {"deduplicate": deduplicate, "lookup": lookup}
        self._call("POST", "/settings", {name: on for name, on in wanted.items() if on is not None})

    def jobs(self) -> tuple[Job, ...]:
        """List every job and batch, oldest first."""
        return tuple(Job(**cast("dict[str, Any]", row)) for row in _rows(self._call("GET", "/jobs")["jobs"]))

    def drive(self, job_id: str, status: str, **facts: object) -> None:
        """Set what a job is: queued, running, succeeded, failed or cancelled; polls do not move it any more.

        `facts` are `progress`, `error`, and the `result` as text with its `media_type`.
        """
        self._call("POST", "/jobs", {"id": job_id, "status": status, **facts})

    def _call(
        self,
        method: str,
        path: str,
        payload: Mapping[str, object] | None = None,
        *,
        patience: float = _TIMEOUT_SECONDS,
    ) -> Mapping[str, object]:
        connection = http.client.HTTPConnection(urlsplit(self.control_url).netloc, timeout=patience)
        try:
            connection.request(method, path, None if payload is None else json.dumps(payload))
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise MeteredProviderError(
                f"no answer from the metered provider at {self.control_url} ({error!r}), expected it to run;"
                " see provider.log in its folder",
                control_url=self.control_url,
            ) from error
        finally:
            connection.close()
        found = cast("Mapping[str, object]", json.loads(body))
        if status != http.client.OK:
            message = cast("Mapping[str, str]", found["error"])["message"]
            raise ConfigurationError(f"the metered provider refused {method} {path}: {message}", status=status)
        return found


def _rows(value: object) -> list[Mapping[str, object]]:
    return cast("list[Mapping[str, object]]", value)


def _held(found: Mapping[str, object]) -> tuple[Held, ...]:
    return tuple(
        Held(
            sequence=cast("int", row["sequence"]),
            client_reference=cast("str | None", row["client_reference"]),
            accepted=cast("bool", row["accepted"]),
        )
        for row in _rows(found["held"])
    )


def _bill_line(row: Mapping[str, object]) -> BillLine:
    return BillLine(
        number=cast("int", row["number"]),
        request_id=cast("str", row["id"]),
        sequence=cast("int", row["sequence"]),
        client_reference=cast("str | None", row["client_reference"]),
        accepted_at=datetime.fromisoformat(cast("str", row["accepted_at"])),
        amount=Decimal(cast("str", row["amount"])),
        currency=cast("str", row["currency"]),
        finished=cast("bool", row["finished"]),
    )


def _received(row: Mapping[str, object]) -> ReceivedRequest:
    return ReceivedRequest(
        sequence=cast("int", row["sequence"]),
        arrived_at=datetime.fromisoformat(cast("str", row["arrived_at"])),
        method=cast("str", row["method"]),
        path=cast("str", row["path"]),
        client_reference=cast("str | None", row["client_reference"]),
        headers=cast("Mapping[str, str]", row["headers"]),
        body=cast("str", row["body"]),
        outcome=cast("str", row["outcome"]),
    )
