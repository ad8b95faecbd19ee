"""What happened to a request out there: in doubt unless proved otherwise."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http import HTTPStatus
from typing import Literal

from dagster_idempotent.domain.money import Money

CostBasis = Literal["reported", "computed", "estimated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A provider's answer as it is stored and replayed: `head` is small and JSON, `body` the raw bytes."""

    head: Mapping[str, object] = field(default_factory=dict[str, object])
    body: bytes

    @property
    def sha256(self) -> str:
        """The hash of the body, hexadecimal."""
        return sha256(self.body).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """The provider did the work and this is its answer; a cost of None is unknown, never zero.

    `also` names what else a look-up found under the same keys: each may be a charge of its own.
    """

    answer: Answer
    remote_ref: str | None = None
    cost: Money | None = None
    cost_basis: CostBasis = "computed"
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The provider took a remote job in and named it; its result is fetched later, its cost known then."""

    remote_ref: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The provider's own, definite no: nothing is charged; a refusal may still name what it is about."""

    reason: str
    remote_ref: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NotSent:
    """No byte of the request left this process."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InDoubt:
    """Sent or possibly sent; `remote_ref` is kept where the provider named one."""

    reason: str
    remote_ref: str | None = None


Outcome = Succeeded | Accepted | Rejected | NotSent | InDoubt


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound:
    """The provider knows no such request; it proves something only if the search was `complete` and exact."""

    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfinished:
    """The provider accepted the request and has no answer yet; `also` as in Succeeded."""

    remote_ref: str | None = None
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleMatch:
    """Something at the provider that may be the request; `described` tells a person how to recognise it."""

    remote_ref: str
    described: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PossibleMatches:
    """What a look-up that is not exact shows: people are shown it, and it settles nothing."""

    matches: tuple[PossibleMatch, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LookUpFailed:
    """The look-up itself gave no answer; it says nothing about the request."""

    reason: str


Finding = Succeeded | Rejected | NotFound | Unfinished | PossibleMatches | LookUpFailed

# A status whose meaning is a refusal before any work, at every provider that speaks HTTP as specified. 408, 409 and
# 429 are not among them: they may be said of a request that, or whose twin, was accepted.
REFUSALS = frozenset(
    {
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.PAYMENT_REQUIRED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.LENGTH_REQUIRED,
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
        HTTPStatus.UNPROCESSABLE_ENTITY,
        HTTPStatus.TOO_EARLY,
    }
)


def refusal_of(status: int) -> bool:
    """Whether an HTTP status of a paid POST is the provider's definite no."""
    return status in REFUSALS
