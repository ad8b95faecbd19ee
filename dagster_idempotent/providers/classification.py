"""What an answer, or the lack of one, proves: in doubt is the default, left only on proof."""

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import cast

from dagster_idempotent.providers.event_stream import Event, events
from dagster_idempotent.providers.http_answer import HttpAnswer, excerpt
from dagster_idempotent.providers.outcome import InDoubt, NotSent, Outcome, Rejected, Succeeded
from dagster_idempotent.providers.profiles import Profile, is_json
from dagster_idempotent.providers.single_send import BodyLost, Response

_FIRST_ID = re.compile(rb'"id"\s*:\s*"([!#-\[\]-~]{1,200})"')
_EXCERPT = 300


def classify(profile: Profile, result: Response | NotSent | InDoubt, *, path: str) -> Outcome:
    """Decide the outcome of one send of a paid request to `path`."""
    if isinstance(result, BodyLost):
        return _body_lost(profile, result)
    if isinstance(result, NotSent | InDoubt):
        return result
    return judge(profile, HttpAnswer.kept(result.status, result.headers, result.body), path=path)


def judge(profile: Profile, answer: HttpAnswer, *, path: str) -> Outcome:
    """Decide the outcome of a whole answer."""
    if answer.status in profile.refusals:
        return _refused(profile, answer)
    reference = _reference(profile, answer)
    if not 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's class of success
        return InDoubt(
            reason=f"HTTP {answer.status}: {_meaning(answer.status)}{excerpt(answer.readable())}", remote_ref=reference
        )
    doubt = _doubt(profile, answer, path)
    if doubt is not None:
        return InDoubt(reason=f"HTTP {answer.status}, {doubt}", remote_ref=reference)
    facts = {"request_id": profile.request_id(answer)}
    if answer.is_event_stream:
        facts |= {"stream": True, "terminal": True}
    return Succeeded(answer=answer.to_store(**facts), remote_ref=reference)


def _refused(profile: Profile, answer: HttpAnswer) -> Rejected:
    why = profile.refusals[answer.status]
    found = profile.reference_in(answer.json_object())
    named = f" (reference {found})" if found else ""
    return Rejected(reason=f"HTTP {answer.status}{named}: {excerpt(answer.readable())} [{why}]", remote_ref=found)


def _body_lost(profile: Profile, lost: BodyLost) -> Outcome:
    answer = HttpAnswer.kept(lost.response.status, lost.response.headers, lost.response.body)
    if answer.status in profile.refusals:
        return _refused(profile, answer)
    reference = _reference(profile, answer)
    accepted = "accepted, but " if 200 <= answer.status < 300 else ""  # noqa: PLR2004 - HTTP's class of success
    reason = f"HTTP {answer.status}: {accepted}the answer was lost after {len(answer.body)} bytes: {lost.reason}"
    return InDoubt(reason=reason, remote_ref=reference)


def _doubt(profile: Profile, answer: HttpAnswer, path: str) -> str | None:
    """Return why an answer of the 200s is not believed; None where it is whole and what it should be."""
    if not answer.body:
        return None if profile.allows_empty else "but the body is empty"
    content = answer.content()
    if content is None:
        return f"but its {answer.header('content-encoding')} encoding cannot be undone"
    if not profile.allows_media(answer.media_type, path):
        return f"but the answer is {answer.media_type or 'of no declared type'}: {excerpt(answer.readable())}"
    if answer.is_event_stream:
        return _stream_doubt(profile, content)
    if not is_json(answer.media_type):
        return None
    found = answer.json()
    if found is None:
        return f"but the body is not JSON: {excerpt(answer.readable())}"
    error = cast("Mapping[str, object]", found).get("error") if isinstance(found, dict) else None
    if error:
        return f"but the body is an error: {excerpt(answer.readable())}"
    return None


def _stream_doubt(profile: Profile, content: bytes) -> str | None:
    last: Event | None = None
    for event in events(content):
        if event.is_one_of(profile.failed_events) or _is_error(event):
            return f"but the stream says that it failed: {_short(event.data)}"
        if event.is_one_of(profile.terminal):
            return None
        last = event
    expected = ", ".join(sorted(profile.terminal)) or "none known: name it in the profile's `terminal`"
    after = "without an event" if last is None else f"after {_short(last.data)}"
    return f"but the stream ended {after}, without its terminal event ({expected})"


def _is_error(event: Event) -> bool:
    found = event.json_object()
    return found is not None and isinstance(found.get("error"), dict)


def _reference(profile: Profile, answer: HttpAnswer) -> str | None:
    """Return the provider's name for what it made, also from half a body, else its id of the request."""
    body = answer.json_object()
    found = profile.reference_in(body)
    if body is None and 200 <= answer.status < 300:  # noqa: PLR2004 - HTTP's class of success
        first = _FIRST_ID.search(answer.readable())
        found = first.group(1).decode() if first else None
    return found or profile.request_id(answer)


def _meaning(status: int) -> str:
    if 300 <= status < 400:  # noqa: PLR2004 - HTTP's class of redirections
        return "a redirection, which is never followed for a paid request; whether it was taken in is unknown. "
    match status:
        case HTTPStatus.CONFLICT:
            return "it may be called a duplicate because the first one landed. "
        case HTTPStatus.TOO_MANY_REQUESTS:
            return "this provider does not document that it limits at admission. "
        case _:
            return ""


def _short(text: str) -> str:
    return text[:_EXCERPT].replace("\0", "")
