"""Requests that the provider holds back until it is told to let them go."""

import asyncio
from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True, eq=False)
class HeldRequest:
    """One request that waits; `accepted` says whether it has been charged already."""

    sequence: int
    client_reference: str | None
    accepted: bool
    done: asyncio.Event = field(default_factory=asyncio.Event)


class HoldingPen:
    """The requests being held, and who waits for them to be there."""

    def __init__(self) -> None:
        self._held: list[HeldRequest] = []
        self._changed = asyncio.Condition()
        self._stopping = False

    @property
    def held(self) -> list[HeldRequest]:
        """The requests being held now, oldest first."""
        return list(self._held)

    async def hold(self, *, sequence: int, client_reference: str | None, accepted: bool) -> bool:
        """Wait for the release; False when the server stops instead.

        A client that hangs up does not end the wait: a late request may still land at a provider.
        """
        entry = HeldRequest(sequence=sequence, client_reference=client_reference, accepted=accepted)
        async with self._changed:
            self._held.append(entry)
            self._changed.notify_all()
        await entry.done.wait()
        return not self._stopping

    async def wait_for(self, wanted: int, *, timeout: float) -> list[HeldRequest]:  # noqa: ASYNC109 - part of a long poll
        """Wait until at least `wanted` are held; fewer come back when `timeout` seconds are over."""
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(lambda: len(self._held) >= wanted)
        except TimeoutError:
            pass
        return self.held

    def release(self, client_reference: str | None = None) -> int:
        """Let go of those with this reference, or of all; returns how many."""
        freed = [each for each in self._held if client_reference in {None, each.client_reference}]
        for entry in freed:
            self._held.remove(entry)
            entry.done.set()
        return len(freed)

    def stop(self) -> None:
        """Wake all of them to end without an answer."""
        self._stopping = True
        self.release()
