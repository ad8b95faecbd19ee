"""Every error that this library raises, one tree.

    IdempotentError
    ├── ConfigurationError          a setting or an argument is wrong; nothing was read or written
    │   ├── InvalidIdentity         a part of an identity is not allowed, or a datetime is naive
    │   ├── MissingIdentity         a launch carries no partition, tick or explicit key
    │   ├── InvalidPayload          a request cannot be fingerprinted (NaN, unknown type, too large)
    │   └── CredentialMissing       the named environment variable is unset or empty
    ├── IdentityConflict            a key is already tied to something else (R7)
    ├── PipelineConflict            a fixed setting of a pipeline would change
    ├── TaskNotFound                no such task; commands never create one
    ├── TaskClosed                  the task is completed, dead or discarded
    ├── TaskHeld                    the task waits for a decision or for evidence
    ├── LeaseBusy                   another owner works on the task
    ├── LeaseLost                   the task has another owner or token now
    ├── CallError
    │   ├── CallInProgress          a live sender holds this call
    │   │   └── RemoteJobUnfinished the provider accepted the job and has no result yet
    │   ├── RemoteJobFailed         the remote job's own end, without a result
    │   ├── CallInDoubt             sent or possibly sent, outcome unknown
    │   ├── CallRejected            the provider's own, definite no
    │   ├── CallNotSent             the request provably never left
    │   ├── CallAbandoned           an operator gave up on the answer
    │   ├── PayloadMismatch         same call key, different request (R17)
    │   ├── PayloadPruned           the stored answer was pruned by retention
    │   ├── UnknownFingerprint      written by a newer version of this library
    │   ├── BudgetExceeded          the reservation does not fit a limit
    │   └── CallsUnfinished         some calls of a map have no answer
    ├── DecisionRefused             what an operator decides about is not, or no more, in the state for it
    ├── ArtifactDamaged             a stored file is missing or is not what was written
    ├── ArtifactUnavailable         a stored file cannot be read now; nothing shows that it is gone
    ├── CandidateInvalid            transform returned something that the output model refuses
    ├── ArtifactNotStored           a file cannot be written, or reads back otherwise
    ├── DeliveryNotSent             raised by a channel to prove that nothing was delivered
    ├── DeliveryInDoubt             delivered or possibly delivered, no acknowledgement
    ├── StoreError
    │   ├── DatabaseUnavailable     PostgreSQL could not be reached within the time allowed
    │   ├── SchemaMismatch          the schema is too old or too new for this version
    │   └── PipelineFrozen          an operator froze the pipeline
    └── EmbeddedPostgresError       the embedded server could not be found, started or stopped

A text says what was found, what was expected and what to do. No text about a call in doubt tells anybody
to send it again.
"""


class IdempotentError(Exception):
    """Base of every error of this library; facts about the error are attributes."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.facts = facts
        for name, value in facts.items():
            setattr(self, name, value)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.facts)


def _rebuild(kind: type[IdempotentError], message: str, facts: dict[str, object]) -> IdempotentError:
    return kind(message, **facts)


class ConfigurationError(IdempotentError):
    """A setting or an argument is wrong; nothing was read or written."""


class InvalidIdentity(ConfigurationError):
    """A part of an identity is not allowed; `field` names it."""


class MissingIdentity(ConfigurationError):
    """A launch carries no partition, no tick and no explicit key."""


class InvalidPayload(ConfigurationError):
    """A request cannot be fingerprinted; `field` is the JSON pointer of the offending value."""


class CredentialMissing(ConfigurationError):
    """The environment variable `variable` is unset or empty."""


class IdentityConflict(IdempotentError):
    """A key is already tied to another period or to more than one task; `found` lists what (R7)."""


class PipelineConflict(IdempotentError):
    """A setting that is fixed once tasks exist would change."""


class TaskNotFound(IdempotentError):
    """No task `task_id` in `pipeline`; only planning creates tasks (R10)."""


class TaskClosed(IdempotentError):
    """The task is completed, dead or discarded (`status`): no further work starts."""


class TaskHeld(IdempotentError):
    """The task waits for a decision or for evidence; `held_for` says which."""


class LeaseBusy(IdempotentError):
    """Another owner works on the task; `retry_after` is in seconds, None when nobody can say."""

    retry_after: float | None = None


class LeaseLost(IdempotentError):
    """The task has another owner or fencing token now; nothing was written."""


class CallError(IdempotentError):
    """Something about one call of one task: `task_id`, `call_key`, `submission`."""


class CallInProgress(CallError):
    """A live sender holds this call; `retry_after` seconds until its lease could expire."""

    retry_after: float | None = None


class RemoteJobUnfinished(CallInProgress):
    """The provider accepted the job `remote_ref` and has no result yet; waiting for it uses no attempt."""


class RemoteJobFailed(CallError):
    """The remote job `remote_ref` ended without a result; its cost stays, and only a new submission goes on."""


class CallInDoubt(CallError):
    """Sent or possibly sent, outcome unknown: only evidence settles it (R14).

    `retry_after` is in seconds where asking the provider later can bring more; None where the task is held.
    """

    retry_after: float | None = None


class CallRejected(CallError):
    """The provider's own, definite no; nothing was charged. `remote_ref` names what it is about, where it says so."""


class CallNotSent(CallError):
    """The request provably never left this process."""


class CallAbandoned(CallError):
    """An operator gave up on the answer of this call."""


class PayloadMismatch(CallError):
    """Same call key, different request; `fields` are the JSON pointers that differ (R17)."""


class PayloadPruned(CallError):
    """The stored answer was dropped by retention; its hash is kept and it is never sent again."""


class UnknownFingerprint(CallError):
    """The stored fingerprint has a version that this library does not know."""


class BudgetExceeded(CallError):
    """The reservation does not fit the limit of `scope`."""


class CallsUnfinished(CallError):
    """Some calls of a map have no answer; every other one was made.

    `in_doubt` and `failed` are call keys, `errors` maps each to its error, `not_started` counts the rest; `leading` is
    the error that decides what becomes of the task. `retry_after` is in seconds where time alone can bring them all.
    """

    retry_after: float | None = None
    leading: IdempotentError | None = None
    in_doubt: tuple[str, ...] = ()


class DecisionRefused(IdempotentError):
    """What an operator decides about is not, or no more, in the state for it (`verdict`); nothing was written."""


class ArtifactDamaged(IdempotentError):
    """A stored file is missing or is not what was written (`uri`); it is never made or paid for again by itself."""


class ArtifactUnavailable(IdempotentError):
    """A stored file (`uri`) cannot be read now, which shows nothing about it; the next attempt reads it again."""


class CandidateInvalid(IdempotentError):
    """Transform returned something that the pipeline's output model refuses (R24)."""


class DeliveryNotSent(IdempotentError):
    """Raise it in a channel to prove that nothing was delivered; the message may then go again."""


class DeliveryInDoubt(IdempotentError):
    """A channel put the message out and got no acknowledgement."""


class ArtifactNotStored(IdempotentError):
    """A file cannot be written, or reads back otherwise than it was written; the next attempt writes it again."""


class StoreError(IdempotentError):
    """PostgreSQL or its schema is not as needed."""


class DatabaseUnavailable(StoreError):
    """PostgreSQL could not be reached within the time allowed."""


class SchemaMismatch(StoreError):
    """The schema is too old or too new for this version of the library."""


class PipelineFrozen(StoreError):
    """An operator froze the pipeline: no paid call may start."""


class EmbeddedPostgresError(IdempotentError):
    """The embedded server could not be found, started or stopped."""
