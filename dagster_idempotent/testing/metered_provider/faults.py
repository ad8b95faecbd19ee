"""What can go wrong with a paid request, on demand.

A further fault is a function and its line in `FAULTS`.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from dagster_idempotent.testing.metered_provider import answer_faults
from dagster_idempotent.testing.metered_provider.endpoints import ELSEWHERE
from dagster_idempotent.testing.metered_provider.exchange import Exchange, Refused, error_body

Options = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How a fault is played; its options with their defaults, whose types they keep."""

    play: Callable[[Exchange, Options], Awaitable[None]]
    options: Options = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultOrder:
    """A fault for the next `times` matching requests; `times` None means for all of them."""

    kind: str
    times: int | None = 1
    client_reference: str | None = None
    body_contains: str | None = None
    path_contains: str | None = None
    options: Options = field(default_factory=dict[str, object])

    def matches(self, exchange: Exchange, *, free: bool) -> bool:
        """Whether the request is one of those that this order is about: a free one only where its path is named."""
        if self.path_contains is None:
            right_path = not free
        else:
            right_path = self.path_contains in f"{exchange.method} {exchange.path}"
        return (
            right_path
            and self.client_reference in {None, exchange.client_reference}
            and (self.body_contains is None or self.body_contains.encode() in exchange.body)
        )

    async def play(self, exchange: Exchange) -> None:
        """Do it."""
        fault = FAULTS[self.kind]
        await fault.play(exchange, {**fault.options, **self.options})


class FaultQueue:
    """Orders in the sequence in which they were given; a stop of the provider forgets them."""

    def __init__(self) -> None:
        self._orders: list[FaultOrder] = []

    @property
    def orders(self) -> list[FaultOrder]:
        """What is still to be played."""
        return list(self._orders)

    def add(self, order: FaultOrder) -> None:
        """Queue an order behind the others."""
        self._orders.append(order)

    def clear(self) -> None:
        """Forget all orders."""
        self._orders.clear()

    def take(self, exchange: Exchange, *, free: bool = False) -> FaultOrder | None:
        """Use up one of the first order that matches."""
        for position, order in enumerate(self._orders):
            if order.matches(exchange, free=free):
                if order.times == 1:
                    del self._orders[position]
                elif order.times is not None:
                    self._orders[position] = replace(order, times=order.times - 1)
                return order
        return None


def order_from_json(value: object) -> FaultOrder:
    """Read `{"fault": kind, "times": 1, option: value…}`, limited by `client_reference` and the like.

    Raises Refused with a text that names what is allowed.
    """
    if not isinstance(value, dict):
        raise Refused(400, f"expected an object with `fault`, one of {_known()}")
    fields = dict(cast("dict[str, object]", value))
    kind = fields.pop("fault", None)
    if not isinstance(kind, str) or kind not in FAULTS:
        raise Refused(400, f"found fault {kind!r}, expected one of {_known()}")
    times = fields.pop("times", 1)
    if times is not None and (not isinstance(times, int) or times < 1):
        raise Refused(400, f"found times {times!r}, expected a number from 1, or null for every request")
    limits = {name: fields.pop(name, None) for name in ("client_reference", "body_contains", "path_contains")}
    for name, option in fields.items():
        default = FAULTS[kind].options.get(name)
        if default is None or type(option) is not type(default):
            allowed = dict(FAULTS[kind].options)
            raise Refused(400, f"fault {kind} does not take {name}={option!r}; its options are {allowed}")
    return FaultOrder(
        kind=kind,
        times=times,
        **{name: None if limit is None else str(limit) for name, limit in limits.items()},
        options=fields,
    )


def order_from_header(text: str) -> FaultOrder:
    """Read an `X-Fault` header: `kind`, or `kind; option=value; …` with values as in JSON."""
    kind, *options = (part.strip() for part in text.split(";"))
    fields: dict[str, object] = {"fault": kind}
    for option in options:
        name, _, value = option.partition("=")
        try:
            fields[name.strip()] = json.loads(value)
        except json.JSONDecodeError:
            fields[name.strip()] = value.strip()
    return order_from_json(fields)


async def _accept_then_drop(exchange: Exchange, options: Options) -> None:
    exchange.finish(exchange.accept())
    await exchange.hang_up(reset=bool(options["reset"]))


async def _drop_before_accepting(exchange: Exchange, options: Options) -> None:
    exchange.conclude("dropped")
    await exchange.hang_up(reset=bool(options["reset"]))


async def _hold(exchange: Exchange, _: Options) -> None:
    charge = exchange.accept()
    if await exchange.hold(charge):
        await exchange.answer(charge)
    else:
        await exchange.hang_up(reset=True)


async def _hold_before_accepting(exchange: Exchange, _: Options) -> None:
    if await exchange.hold(None):
        await exchange.answer(exchange.accept())
    else:
        await exchange.hang_up(reset=True)


async def _status(exchange: Exchange, options: Options) -> None:
    status = cast("int", options["status"])
    if options["charged"]:
        exchange.finish(exchange.accept())
    else:
        exchange.conclude("refused")
    body = str(options["body"]).encode() or error_body(status, f"status {status} was ordered")
    headers = cast("Mapping[str, object]", options["headers"])
    await exchange.respond(status, body, headers={name: str(value) for name, value in headers.items()})


async def _garbage(exchange: Exchange, options: Options) -> None:
    exchange.finish(exchange.accept())
    await exchange.respond(200, str(options["body"]).encode())


async def _half_answer(exchange: Exchange, _: Options) -> None:
    charge = exchange.accept()
    exchange.finish(charge)
    await exchange.respond(200, charge.answer, cut_after=len(charge.answer) // 2)


async def _redirect(exchange: Exchange, options: Options) -> None:
    exchange.conclude("redirected")
    headers = {"location": str(options["location"]) or exchange.path.replace("/v1", ELSEWHERE, 1)}
    await exchange.respond(cast("int", options["status"]), b"{}", headers=headers)


async def _answer_with(exchange: Exchange, options: Options) -> None:
    await exchange.answer(exchange.accept(content=str(options["content"])))


FAULTS: Mapping[str, Fault] = {
    "accept_then_drop": Fault(play=_accept_then_drop, options={"reset": False}),
    "drop_before_accepting": Fault(play=_drop_before_accepting, options={"reset": False}),
    "hold": Fault(play=_hold),
    "hold_before_accepting": Fault(play=_hold_before_accepting),
    "status": Fault(play=_status, options={"status": 500, "charged": False, "body": "", "headers": {}}),
    "garbage": Fault(play=_garbage, options={"body": "<html>not what you wanted"}),
    "half_answer": Fault(play=_half_answer),
    "redirect": Fault(play=_redirect, options={"status": 307, "location": ""}),
    "answer_with": Fault(play=_answer_with, options={"content": "{}"}),
    "slow": Fault(play=answer_faults.slow, options={"seconds": 1.0}),
    "error_in_200": Fault(play=answer_faults.error_in_200, options={"message": "it went wrong inside"}),
    "empty_answer": Fault(play=answer_faults.empty_answer, options={"status": 200}),
    "gzipped": Fault(play=answer_faults.gzipped),
    "cut_stream": Fault(play=answer_faults.cut_stream, options={"events": 3}),
    "truncated_stream": Fault(play=answer_faults.truncated_stream, options={"events": 3}),
    "open_stream": Fault(play=answer_faults.open_stream),
    "error_in_stream": Fault(play=answer_faults.error_in_stream, options={"events": 3}),
}


def _known() -> str:
    return ", ".join(sorted(FAULTS))
