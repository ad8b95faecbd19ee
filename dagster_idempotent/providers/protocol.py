"""`Provider`: what an adapter to a paid service tells the guard."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol, TypeVar, runtime_checkable

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp
from dagster_idempotent.providers.job_states import JobDone, JobFailed, JobState, JobUnknown
from dagster_idempotent.providers.outcome import Answer, Finding, Outcome
from dagster_idempotent.providers.send_window import SendWindow

Request = TypeVar("Request", contravariant=True)  # noqa: PLC0105 - the words of the protocol
Value = TypeVar("Value", covariant=True)  # noqa: PLC0105 - the words of the protocol


class Provider(Protocol[Request, Value]):
    """A paid service that answers while it is waited for.

    Building one reads no credential and opens nothing; `submit` and `find` do, when they are called. A map of
    calls uses an instance from several threads at once, so it keeps nothing of a request.
    """

    @property
    def name(self) -> str:
        """The service and account that is charged; part of every fingerprint."""
        ...

    @property
    def lookup(self) -> LookUp:
        """What `find` can say; a fuzzy one never decides alone."""
        ...

    @property
    def settle_delay(self) -> timedelta:
        """How long a request may take to land and to be found, from the end of its sender's lease.

        Where look-up shows finished answers only, it includes the longest answer time.
        """
        ...

    @property
    def key_window(self) -> timedelta | None:
        """How long the service documents that it honours an idempotency key; None where it does not."""
        ...

    def operation(self, request: Request) -> str:
        """Name the endpoint that the request goes to; part of its fingerprint."""
        ...

    def payload(self, request: Request) -> object:
        """Return what will be sent, in a form that can be fingerprinted, without credentials."""
        ...

    def estimate(self, request: Request) -> Money | None:
        """Return an upper bound of the cost, None where nobody can say."""
        ...

    def submit(self, request: Request, *, key: IdempotencyKey, window: SendWindow) -> Outcome:
        """Send the request once: no retries, no redirects, each write preceded by `window.before_write()`."""
        ...

    def find(self, keys: Sequence[IdempotencyKey]) -> Finding:
        """Look up a request by the keys under which it may have been sent, the newest first."""
        ...

    def decode(self, answer: Answer) -> Value:
        """Turn a stored answer into the caller's value: the same bytes give the same value and type."""
        ...

    def content(self, answer: Answer) -> str | bytes:
        """Return the part of an answer that a model class validates."""
        ...


@runtime_checkable
class RemoteJobProvider(Provider[Request, Value], Protocol[Request, Value]):
    """A paid service that takes a job in, names it, and is asked for its result later.

    `submit` returns `Accepted` with the job's reference, and `find` `Unfinished` with it: how the job ends is told by
    `poll` alone. Nothing but `submit` costs anything, and nothing but `submit` may start a job.
    """

    @property
    def pace(self) -> Backoff:
        """How long to wait between two polls."""
        ...

    @property
    def poll_budget(self) -> timedelta:
        """How long one run keeps polling before it lets go of the worker; never a failure."""
        ...

    def poll(self, remote_ref: str) -> JobState:
        """Ask once how far the job is."""
        ...

    def fetch(self, remote_ref: str, done: JobDone) -> Answer | JobUnknown:
        """Fetch the result of a job that has ended well, whole, or say why it did not come."""
        ...

    def cancel(self, remote_ref: str) -> JobState:
        """Ask for the job to be stopped; return what the provider then says of it."""
        ...

    def cost_of(self, ended: JobDone | JobFailed) -> Money | None:
        """Return what the job cost; None is unknown, never zero."""
        ...


AnyProvider = Provider[Any, Any]
AnyJobProvider = RemoteJobProvider[Any, Any]


# Takes a body piece by piece.
Sink = Callable[[bytes], object]


@runtime_checkable
class Streaming(Protocol):
    """A provider of remote jobs that gives a result piece by piece, so that a large one is never held in memory."""

    def fetch_into(self, remote_ref: str, done: JobDone, into: Sink) -> Mapping[str, object] | JobUnknown:
        """Fetch the result of a job that has ended well into `into`; return the head of its answer.

        Or say why it did not come whole: it is then fetched again, from its beginning, into another.
        """
        ...


def fetched(
    provider: "AnyJobProvider", remote_ref: str, done: JobDone, into: Sink
) -> Mapping[str, object] | JobUnknown:
    """Fetch a result into `into`, whichever way the provider has; return the head of its answer."""
    if isinstance(provider, Streaming):
        return provider.fetch_into(remote_ref, done, into)
    found = provider.fetch(remote_ref, done)
    if isinstance(found, JobUnknown):
        return found
    into(found.body)
    return found.head


def whole(fetch: Callable[[Sink], Mapping[str, object] | JobUnknown]) -> Answer | JobUnknown:
    """Fetch a result into memory."""
    pieces: list[bytes] = []
    head = fetch(pieces.append)
    return head if isinstance(head, JobUnknown) else Answer(head=head, body=b"".join(pieces))


@runtime_checkable
class Expecting(Protocol):
    """A provider that says how long its jobs take; an accepted job that takes longer is shown to people."""

    @property
    def expected_within(self) -> timedelta | None:
        """How long a job takes, from its acceptance to its result, where nothing is wrong; None: nobody knows."""
        ...


# Nobody said how long: a run that polls may be meant to let go early, so the poll budget only makes it longer.
EXPECTED_WITHIN = timedelta(days=1)


def expected_within(provider: AnyProvider) -> timedelta:
    """Return how long an accepted job may take before people are told."""
    if isinstance(provider, Expecting) and provider.expected_within is not None:
        return provider.expected_within
    return max(EXPECTED_WITHIN, provider.poll_budget) if isinstance(provider, RemoteJobProvider) else EXPECTED_WITHIN
