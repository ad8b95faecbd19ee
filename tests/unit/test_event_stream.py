import gzip
from itertools import pairwise

from hypothesis import given, settings, strategies as st

from dagster_idempotent.providers.event_stream import Event, EventReader, StreamEnd, events

STREAM = (
    b": a comment\n\n"
    b'event: message_start\r\ndata: {"type": "message_start"}\r\n\r\n'
    b'data: {"id": 1,\ndata:  "b": 2}\n\n'
    b"event: nothing\n\n"
    b"data: [DONE]\n\n"
)
EXPECTED = [
    Event(name="message_start", data='{"type": "message_start"}'),
    Event(name="", data='{"id": 1,\n "b": 2}'),
    Event(name="", data="[DONE]"),
]


def cut(body: bytes, places: list[int]) -> list[bytes]:
    marks = sorted({0, len(body), *(place % (len(body) + 1) for place in places)})
    return [body[start:end] for start, end in pairwise(marks)]


def test_events_are_read_as_the_standard_writes_them() -> None:
    assert list(events(STREAM)) == EXPECTED


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(min_value=0)))
def test_events_are_the_same_however_the_stream_is_cut(places: list[int]) -> None:
    reader = EventReader()

    assert [event for piece in cut(STREAM, places) for event in reader.feed(piece)] == EXPECTED


@settings(deadline=None)  # a busy machine is no failure
@given(st.lists(st.integers(min_value=0)), st.booleans())
def test_a_stream_ends_with_the_piece_that_completes_its_terminal_event(places: list[int], packed: bool) -> None:
    body = gzip.compress(STREAM) if packed else STREAM
    ended = StreamEnd([("Content-Encoding", "gzip")] if packed else [], frozenset({"[DONE]"}))

    said = [ended(piece) for piece in cut(body, places)]

    assert said.count(True) == 1


@settings(deadline=None)  # a busy machine is no failure
@given(st.binary())
def test_no_bytes_are_too_strange(body: bytes) -> None:
    assert all(isinstance(event, Event) for event in events(body))
    assert StreamEnd([("content-encoding", "gzip")], frozenset({"[DONE]"}))(body) is False


def test_a_terminal_event_goes_by_its_name_its_type_or_its_data() -> None:
    terminal = frozenset({"message_stop", "[DONE]"})

    assert Event(name="message_stop", data="{}").is_one_of(terminal)
    assert Event(name="", data='{"type": "message_stop"}').is_one_of(terminal)
    assert Event(name="", data="[DONE]").is_one_of(terminal)
    assert not Event(name="", data='{"text": "message_stop"}').is_one_of(terminal)
    assert not Event(name="", data='{"type": ["message_stop"]}').is_one_of(terminal)
    assert not Event(name="", data='"message_stop"').is_one_of(terminal)
