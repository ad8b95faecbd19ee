"""What happened to a request out there: in doubt unless proved otherwise."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Literal, Protocol

from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.submission import IdempotencyKey

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

    def pieces(self) -> Iterator[bytes]:
        """Give the body piece by piece."""
        yield self.body


class BodyFile(Protocol):
    """Where a body lies that is too large for a table; every read is compared with its hash."""

    @property
    def sha256(self) -> str:
        """The hash of the body, hexadecimal."""
        ...

    def pieces(self) -> Iterator[bytes]:
        """Give the body piece by piece."""
        ...

    def read(self) -> bytes:
        """Give the body at once."""
        ...


class AnswerInFile(Answer):
    """A stored answer whose body is read from its file when somebody asks for it, and kept from then on."""

    __slots__ = ("_body", "_file")
    _body: bytes | None
    _file: BodyFile

    def __init__(self, *, head: Mapping[str, object], file: BodyFile) -> None:
        object.__setattr__(self, "head", head)
        object.__setattr__(self, "_file", file)
        object.__setattr__(self, "_body", None)

    def __repr__(self) -> str:
        """Show it without reading the file."""
        return f"AnswerInFile(head={self.head!r}, sha256={self.sha256!r})"

    @property
    def body(self) -> bytes:  # pyright: ignore[reportIncompatibleVariableOverride] - read only, like the frozen field
        """The raw bytes, whole."""
        body = self._body
        if body is None:
            body = self._file.read()
            object.__setattr__(self, "_body", body)
        return body

    @property
    def sha256(self) -> str:
        """The hash of the body, hexadecimal."""
        return self._file.sha256

    def pieces(self) -> Iterator[bytes]:
        """Give the body piece by piece, without keeping it."""
        return self._file.pieces()


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


def first_found(keys: Sequence[IdempotencyKey], find_one: Callable[[IdempotencyKey], Finding]) -> Finding:
    """Look up each key; the first that the provider knows decides."""
    complete = bool(keys)
    for key in keys:
        finding = find_one(key)
        if not isinstance(finding, NotFound):
            return finding
        complete = complete and finding.complete
    return NotFound(complete=complete)
