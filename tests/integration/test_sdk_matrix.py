"""Every SDK against every fault, called twice: one charge, the same answer again, or a call that is held.

The oracle is the provider's bill. A cell is an SDK and a fault; the normal suite takes a spread of them in which each
SDK and each fault comes up several times, `make explore` takes all.
"""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.errors import CallInDoubt, CallRejected
from dagster_idempotent.providers.single_send import Route

if TYPE_CHECKING:
    from tests.integration.conftest import Desk, Sdk

VALUE, DOUBT, REJECTED = "value", "doubt", "rejected"
LIMITED_AT_ADMISSION = {"openai", "anthropic", "stripe"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One fault, and what it proves."""

    fault: str
    proves: str
    options: dict[str, object] = field(default_factory=dict)
    only_streams: bool = False


def status(code: int, proves: str, *, charged: bool = False) -> Row:
    return Row(fault="status", options={"status": code, "charged": charged}, proves=proves)


ROWS = {
    "no fault": Row(fault="", proves=VALUE),
    "gzip": Row(fault="gzipped", proves=VALUE),
    "accepted, then dropped": Row(fault="accept_then_drop", proves=DOUBT),
    "accepted, then reset": Row(fault="accept_then_drop", options={"reset": True}, proves=DOUBT),
    "dropped before accepting": Row(fault="drop_before_accepting", proves=DOUBT),
    "read timeout": Row(fault="slow", options={"seconds": 1.5}, proves=DOUBT),
    "half an answer": Row(fault="half_answer", proves=DOUBT),
    "garbage": Row(fault="garbage", proves=DOUBT),
    "nothing in a 200": Row(fault="empty_answer", proves=DOUBT),
    "nothing in a 204": Row(fault="empty_answer", options={"status": 204}, proves=DOUBT),
    "error in a 200": Row(fault="error_in_200", proves=DOUBT),
    "307": Row(fault="redirect", options={"status": 307}, proves=DOUBT),
    "303": Row(fault="redirect", options={"status": 303}, proves=DOUBT),
    "500 after accepting": status(500, DOUBT, charged=True),
    "503": status(503, DOUBT),
    "529": status(529, DOUBT),
    "408": status(408, DOUBT),
    "409": status(409, DOUBT),
    "429": status(429, "admission"),
    **{str(code): status(code, REJECTED) for code in (400, 401, 402, 403, 404, 405, 411, 413, 415, 422, 425)},
    "cut stream": Row(fault="cut_stream", proves=DOUBT, only_streams=True),
    "truncated stream": Row(fault="truncated_stream", proves=DOUBT, only_streams=True),
    "empty stream": Row(fault="truncated_stream", options={"events": 0}, proves=DOUBT, only_streams=True),
    "error in a stream": Row(fault="error_in_stream", proves=DOUBT, only_streams=True),
    "stream that stays open": Row(fault="open_stream", proves=VALUE, only_streams=True),
}
NAMES = [
    *("openai", "openai-stream", "openai-responses", "openai-responses-stream", "openai-async-stream"),
    *("anthropic", "anthropic-stream", "anthropic-async"),
    *("stripe", "stripe-async"),
    *("httpx", "httpx-stream", "httpx2", "httpx2-async", "requests"),
]
STREAMS = {name for name in NAMES if name.endswith("stream")}
CELLS = [(sdk, row) for sdk in NAMES for row in ROWS if sdk in STREAMS or not ROWS[row].only_streams]
# A diagonal in every fourth place: each SDK and each fault comes up several times, never all of them with all.
SPREAD = [(sdk, row) for sdk, row in CELLS if (NAMES.index(sdk) + list(ROWS).index(row)) % 4 == 0]


def test_the_matrix_knows_every_sdk(sdks: dict[str, "Sdk"]) -> None:
    assert set(NAMES) == set(sdks)
    assert {name for name, sdk in sdks.items() if sdk.streams} == STREAMS
    assert {sdk for sdk, _ in SPREAD} == set(NAMES)
    assert {row for _, row in SPREAD} == set(ROWS)


@pytest.mark.parametrize(("sdk", "row"), SPREAD)
def test_a_fault_of_the_spread_charges_at_most_once(desk: "Desk", sdk: str, row: str) -> None:
    check(desk, sdk, ROWS[row])


@pytest.mark.explore
@pytest.mark.parametrize(("sdk", "row"), [cell for cell in CELLS if cell not in SPREAD])
def test_a_fault_charges_at_most_once(desk: "Desk", sdk: str, row: str) -> None:
    check(desk, sdk, ROWS[row])


def check(desk: "Desk", sdk: str, row: Row) -> None:
    family = sdk.partition("-")[0]
    honours_keys = family == "stripe"
    desk.metered.configure(deduplicate=honours_keys)
    charges, posts = desk.metered.charges, len(desk.metered.requests())
    if row.fault:
        desk.metered.fault(row.fault, **row.options)
    proves = row.proves
    if proves == "admission":
        proves = REJECTED if family in LIMITED_AT_ADMISSION else DOUBT

    first = attempt(desk, sdk, row)
    second = attempt(desk, sdk, row)

    arrived = desk.metered.requests()[posts:]
    assert desk.metered.charges - charges <= 1
    assert all(not request.path.startswith("/v1/elsewhere") for request in arrived)
    if proves == VALUE:
        assert (second, len(arrived)) == (first, 1)
        assert type(second) is type(first)
    elif proves == REJECTED:
        assert isinstance(first, CallRejected)
        assert not isinstance(second, Exception)
        assert len(arrived) == 2
    elif honours_keys:
        assert isinstance(first, CallInDoubt)
        assert len({request.client_reference for request in arrived}) == 1
        assert len(arrived) == 2
        assert not isinstance(second, Exception)
    else:
        assert isinstance(first, CallInDoubt)
        assert isinstance(second, CallInDoubt)
        assert len(arrived) == 1


def attempt(desk: "Desk", sdk: str, row: Row) -> object:
    patience = timedelta(seconds=0.4 if row.fault == "slow" else 20)
    provider = desk.provider(sdk, route=Route(read_timeout=patience), settle_delay=timedelta(0))
    try:
        return desk.ask(sdk, provider=provider)
    except (CallInDoubt, CallRejected) as error:
        return error
