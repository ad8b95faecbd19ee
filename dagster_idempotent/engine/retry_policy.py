"""Which errors are worth another attempt: a closed table, read by `Work.fail_with` (R30)."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum, auto
from types import MappingProxyType

from dagster_idempotent import errors


class Verdict(StrEnum):
    """What an error means for the task whose attempt it ended."""

    AGAIN = auto()  # stored with the time of the next attempt
    DEAD_LETTER = auto()  # stored as final: claim and sweep treat the task as out of attempts
    HOLD = auto()  # the task waits for a person; the attempt is given back where nothing was sent
    LEAVE = auto()  # nothing to write: it is written already, or the task is not ours


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A verdict and its reason."""

    verdict: Verdict
    why: str


def _again(why: str) -> Rule:
    return Rule(verdict=Verdict.AGAIN, why=why)


def _dead(why: str) -> Rule:
    return Rule(verdict=Verdict.DEAD_LETTER, why=why)


def _hold(why: str) -> Rule:
    return Rule(verdict=Verdict.HOLD, why=why)


def _leave(why: str) -> Rule:
    return Rule(verdict=Verdict.LEAVE, why=why)


# Every class of the error tree stands here; a class that a provider adds below one of them shares its rule.
RULES: Mapping[type[BaseException], Rule] = MappingProxyType(
    {
        errors.IdempotentError: _again("nothing is known that would make the next attempt fail too"),
        errors.ConfigurationError: _dead("the next attempt meets the same setting; a person mends it, then redrives"),
        errors.InvalidIdentity: _dead("the same identity is refused every time"),
        errors.MissingIdentity: _dead("a retry of the launch carries as little as the launch did"),
        errors.InvalidPayload: _dead("the same request cannot be fingerprinted next time either"),
        errors.CredentialMissing: _again("one worker's environment; the next may have it, and nothing was sent"),
        errors.IdentityConflict: _dead("two records claim one key until a person says which is right"),
        errors.PipelineConflict: _dead("the declaration contradicts the ledger until one of them is mended"),
        errors.TaskNotFound: _dead("only planning creates tasks; asking again does not"),
        errors.TaskClosed: _leave("the task has ended; nothing about its end changes"),
        errors.TaskHeld: _leave("the hold is written, and it gave the attempt back where it could"),
        errors.LeaseBusy: _leave("the task is another run's"),
        errors.LeaseLost: _leave("the task is another run's now"),
        errors.CallError: _again("nothing is known that would make the next attempt fail too"),
        errors.CallInProgress: _leave("a live sender will write the outcome; this run only waits"),
        errors.RemoteJobUnfinished: _leave("the job goes on at the provider; waiting for it uses no attempt"),
        errors.RemoteJobFailed: _again("a new job may end better; the cap bounds what that costs"),
        errors.CallInDoubt: _leave("in doubt is a hold or a wait, never a failed attempt"),
        errors.CallRejected: _again("nothing was charged, and time mends what most refusals are: quota, load, a key"),
        errors.CallNotSent: _again("nothing left this process"),
        errors.CallAbandoned: _dead("only an operator's resend goes on from here"),
        errors.PayloadMismatch: _dead("the code asks something else than what was paid for; it will again"),
        errors.PayloadPruned: _dead("the stored answer does not come back"),
        errors.UnknownFingerprint: _dead("this version of the library will not learn to read it"),
        errors.BudgetExceeded: _leave("the guard has put the task on hold for its budget"),
        errors.CallsUnfinished: _leave("its leading error decides; without one there is nothing to write"),
        errors.DecisionRefused: _leave("an operator's verb was refused; no attempt has failed"),
        errors.ArtifactDamaged: _dead("a file does not come back by itself; a person puts it back, then redrives"),
        errors.ArtifactUnavailable: _again("a store comes back; nothing shows that the file is gone"),
        errors.CandidateInvalid: _dead("the answers are stored: transform would return the same candidate"),
        errors.ArtifactNotStored: _again("a store comes back; the file has a fixed place and is written whole"),
        errors.DeliveryNotSent: _again("nothing was delivered"),
        errors.DeliveryInDoubt: _again("the message keeps its own state; the task's next attempt only replays"),
        errors.StoreError: _again("the database may be well next time"),
        errors.DatabaseUnavailable: _leave("there is nowhere to write it; the lease runs out and the task is retried"),
        errors.SchemaMismatch: _again("during a deployment the next worker may have the fitting version"),
        errors.PipelineFrozen: _hold("a freeze is a decision that is still open; it must not use attempts up"),
        errors.EmbeddedPostgresError: _again("a server that did not start may start next time"),
        # Not of our tree. What a user's function raises is worth another attempt: the cap bounds it.
        BaseException: _again("unknown errors are taken for passing ones; the cap of attempts ends them"),
        GeneratorExit: _leave("the block was left without an error"),
    }
)


def rule_of(error: BaseException | type[BaseException]) -> Rule:
    """Return the rule of an error: of its class, else of the nearest class above it in the table.

    A map of calls has the rule of the error that leads it.
    """
    if isinstance(error, errors.CallsUnfinished) and error.leading is not None:
        return rule_of(error.leading)
    kind = error if isinstance(error, type) else type(error)
    return next(RULES[each] for each in kind.__mro__ if each in RULES)
