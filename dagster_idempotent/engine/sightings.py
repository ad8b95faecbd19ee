"""Look-ups that settle nothing: a second one after a repeated send, and possible matches of one that is not exact."""

import logging

from dagster_idempotent.domain.submission import LookUp, Submission, current_of, keys_of
from dagster_idempotent.errors import CredentialMissing
from dagster_idempotent.providers.outcome import Finding, LookUpFailed, PossibleMatches, Rejected, Succeeded, Unfinished
from dagster_idempotent.providers.protocol import AnyProvider
from dagster_idempotent.store import sightings
from dagster_idempotent.store.database import Database
from dagster_idempotent.store.sightings import Sighting
from dagster_idempotent.store.submissions import Call, CallState

logger = logging.getLogger(__name__)
SHOWN = 5


def confirm(database: Database, call: Call, state: CallState, provider: AnyProvider) -> None:
    """After a success that followed a resend, look up once more: another request under the key is shown in red.

    Where the look-up brings nothing now, the next replay asks again; the answer is there either way.
    """
    current = current_of(state.submissions)
    if current is None or not current.unconfirmed or provider.lookup is not LookUp.EXACT:
        return
    if current.provider != provider.name:
        return
    try:
        finding = provider.find(keys_of(state.submissions))
    except CredentialMissing as error:
        finding = LookUpFailed(reason=error.message)
    note(database, call, current, finding)


def note(database: Database, call: Call, seen: Submission, finding: Finding) -> None:
    """Keep that the provider shows more than one request under the keys of a call, or that it shows one only."""
    if not isinstance(finding, Succeeded | Unfinished):
        return
    # Without a reference of the answer's own, the first that is found stands for it.
    own = seen.remote_ref or finding.remote_ref
    others = [each for each in dict.fromkeys((finding.remote_ref, *finding.also)) if each and each != own]
    if others:
        logger.error("reconciliation.charged_again", extra={"call": call.call_key, "references": others})
        found = [(each, f"found beside {own or 'the answer'} under the same key") for each in others]
        database.run(lambda c: sightings.record(c, call, seen.submission, Sighting.CHARGED_AGAIN, found))
    elif seen.sends > 1:
        one = [("", "the provider shows one request only")]
        database.run(lambda c: sightings.record(c, call, seen.submission, Sighting.CONFIRMED, one))


def possible_matches(database: Database, call: Call, seen: Submission, finding: Finding) -> str:
    """Keep what a look-up that is not exact shows, and say it: whatever it claims, it never decides alone."""
    match finding:
        case PossibleMatches():
            found = [(each.remote_ref, each.described) for each in finding.matches]
        case Succeeded(remote_ref=str(own)) | Unfinished(remote_ref=str(own)) | Rejected(remote_ref=str(own)):
            found = [(own, f"the look-up calls it {type(finding).__name__.lower()}")]
        case LookUpFailed():
            return f"the look-up failed: {finding.reason}"
        case _:
            found = []
    if not found:
        return "it shows nothing that could be this request"
    database.run(lambda c: sightings.record(c, call, seen.submission, Sighting.POSSIBLE, found))
    shown = "; ".join(f"{reference} ({described})" for reference, described in found[:SHOWN])
    return f"it shows what may be this request: {shown}{'; and more' if len(found) > SHOWN else ''}"
