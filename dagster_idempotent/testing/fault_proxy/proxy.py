"""The proxy itself: an event loop in a thread of its own, and the gate that stops the world."""

import asyncio
import socket
import threading
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Self

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.fault_proxy.address import Address, listen_at, parse_address, redirect_dsn
from dagster_idempotent.testing.fault_proxy.framing import framing_for, is_encryption_request
from dagster_idempotent.testing.fault_proxy.link import Link
from dagster_idempotent.testing.fault_proxy.plan import Action, Counts, Direction, Plan, When

_CHUNK = 65536


class FaultProxy:
    """A proxy to `upstream`: (host, port), "host:port", or the path of a unix socket.

    `protocol` "postgres" makes a message one protocol message, "http" a head or a body, so that numbers are
    the same in every run; "raw" takes each chunk that was read for one. `listen` is a path for a unix socket;
    None takes a free port of 127.0.0.1, which every later restart keeps. Runs in a thread of its own, from
    `start()` or `with`.
    """

    def __init__(
        self, upstream: tuple[str, int] | str | Path, *, protocol: str = "raw", listen: Path | None = None
    ) -> None:
        framing_for(protocol, from_client=True)
        self._upstream = parse_address(upstream)
        self._protocol = protocol
        self._address: Address = ("127.0.0.1", 0) if listen is None else listen
        self._plan = Plan()
        self._failures: list[BaseException] = []
        self._loop: asyncio.AbstractEventLoop
        self._thread: threading.Thread | None = None
        self._listener: socket.socket | None = None
        self._links: set[Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Event()
        self._stalled = False
        self._striking = 0
        self._closing = False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port to connect to; for a unix socket its folder and the port in its name."""
        if isinstance(self._address, tuple):
            return self._address
        return str(self._address.parent), int(self._address.suffix.removeprefix(".") or 0)

    @property
    def counts(self) -> Counts:
        """What came through so far."""
        return self._plan.counts

    def url_for(self, dsn: str) -> str:
        """Return the URL or libpq connection string `dsn` with this proxy in place of its host and port."""
        return redirect_dsn(dsn, self.address)

    def start(self) -> None:
        """Begin to listen; raises ConfigurationError when the address is taken."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="fault-proxy", daemon=True)
        self._thread.start()
        try:
            self._call(self._listen())
        except ConfigurationError:
            self.close()
            raise

    def close(self) -> None:
        """End all connections and the thread; raises the first error that an action raised."""
        if self._thread is None:
            return
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = None
        if self._failures:
            raise self._failures[0]

    def at(
        self,
        n: int,
        *,
        action: Action,
        direction: Direction | str = Direction.TO_UPSTREAM,
        when: When | str = When.BEFORE,
    ) -> None:
        """Call `action` once, at message `n` (from 1, over all connections) of a direction.

        Nothing moves in either direction while it runs, in a thread of its own; it may call this proxy, but
        not `close()`. A message whose connection the action cut is not forwarded: to kill a client *before*
        message n, kill it and call `cut_all()`. An error in it is raised by `close()`.
        """
        self._plan.add(n, Direction(direction), When(when), action)

    def wait_for(self, n: int, *, direction: Direction | str, timeout: float = 30.0) -> bool:
        """Wait until message `n` of a direction came through; False when `timeout` seconds are over."""
        return self._plan.wait_for(n, Direction(direction), timeout)

    def wait_idle(self, *, timeout: float = 30.0) -> bool:
        """Wait until no connection is open, so that counts are final; False after `timeout` seconds."""
        return self._plan.wait_idle(timeout)

    def stall(self) -> None:
        """Forward nothing, connections stay open; on return nothing moves any more."""
        self._call(self._set_stalled(stalled=True))

    def resume(self) -> None:
        """Forward what was held back by `stall`, and all that follows."""
        self._call(self._set_stalled(stalled=False))

    def cut_all(self, *, reset: bool = True) -> None:
        """End every connection on both sides, by RST or (reset=False) by FIN; new ones are welcome."""
        self._call(self._cut_all(reset=reset))

    def refuse(self) -> None:
        """Stop listening: new connections are refused; existing ones go on."""
        self._call(self._stop_listening())

    def accept(self) -> None:
        """Listen again, at the same address."""
        self._call(self._listen())

    def restart(self) -> None:
        """Cut everything, then listen again at the same address; counts and actions stay."""
        self.refuse()
        self.cut_all()
        self.accept()

    def _call(self, work: Coroutine[object, object, None]) -> None:
        if self._thread is None:
            work.close()
            raise ConfigurationError("this proxy is not running, expected .start() or `with` before")
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _listen(self) -> None:
        self._set_gate()
        if self._listener is None:
            self._listener = listen_at(self._address)
            if isinstance(self._address, tuple):
                self._address = self._listener.getsockname()
            self._loop.add_reader(self._listener, self._accept_waiting, self._listener)

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            # Who connected before this moment is an existing connection.
            self._accept_waiting(self._listener)
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            if isinstance(self._address, Path):
                self._address.unlink(missing_ok=True)

    def _accept_waiting(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                connection, _ = listener.accept()
                connection.setblocking(False)  # noqa: FBT003 - the standard library's signature
                if connection.family != socket.AF_UNIX:
                    # Else each of many small messages would wait for the acknowledgement of the last.
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                task = self._loop.create_task(self._serve(connection))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _end(self) -> None:
        self._closing = True
        await self._stop_listening()
        await self._set_stalled(stalled=False)
        await self._cut_all(reset=True)
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _cut_all(self, *, reset: bool) -> None:
        for link in self._links:
            link.cut(reset=reset)

    async def _set_stalled(self, *, stalled: bool) -> None:
        self._stalled = stalled
        self._set_gate()

    def _set_gate(self) -> None:
        if self._stalled or self._striking:
            self._gate.clear()
        else:
            self._gate.set()

    def _shut_gate(self) -> None:
        self._striking += 1
        self._set_gate()

    def _open_gate(self) -> None:
        self._striking -= 1
        self._set_gate()

    async def _pass_gate(self) -> None:
        # Another task that woke first may have shut it again.
        while not self._gate.is_set():
            await self._gate.wait()

    async def _serve(self, connection: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=connection)
        link = Link(writer)
        self._links.add(link)
        self._plan.open_connection()
        try:
            if isinstance(self._upstream, tuple):
                back, upstream = await asyncio.open_connection(*self._upstream)
            else:
                back, upstream = await asyncio.open_unix_connection(self._upstream)
            link.connect(upstream, cut=self._closing)
            await asyncio.gather(
                self._pump(link, Direction.TO_UPSTREAM, reader, upstream),
                self._pump(link, Direction.TO_CLIENT, back, writer),
            )
        except OSError:
            link.cut(reset=True)  # refused by the upstream
        finally:
            link.cut(reset=False)
            self._links.remove(link)
            self._plan.end_connection()

    async def _pump(
        self,
        link: Link,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        framing = framing_for(self._protocol, from_client=direction is Direction.TO_UPSTREAM)
        try:
            while chunk := await reader.read(_CHUNK):
                for message in framing.feed(chunk):
                    await self._forward(link, direction, message, writer)
            await self._pass_gate()
            if not link.is_cut:
                writer.write(framing.rest())
                await writer.drain()
                writer.write_eof()
        except OSError:
            link.cut(reset=True)  # one side reset: the other gets to feel the same

    async def _forward(self, link: Link, direction: Direction, message: bytes, writer: asyncio.StreamWriter) -> None:
        await self._pass_gate()
        if link.is_cut:
            return  # while the message waited: it goes nowhere, so it is not counted either
        if self._protocol == "postgres" and is_encryption_request(message):
            link.client.write(b"N")
            return
        strikes = self._plan.count_message(direction)
        await self._strike(strikes.before)
        if link.is_cut:
            return
        if not strikes.after:
            writer.write(message)
            await writer.drain()
            return
        # Shut before the message leaves: its reply could overtake the action otherwise.
        self._shut_gate()
        try:
            writer.write(message)
            await writer.drain()
            await self._strike(strikes.after)
        finally:
            self._open_gate()

    async def _strike(self, actions: Iterable[Action]) -> None:
        for action in actions:
            self._shut_gate()
            # A thread, so that the action may wait for others, who may call this proxy meanwhile.
            done = self._loop.run_in_executor(None, action)
            await asyncio.wait([done])
            error = done.exception()
            if error is not None:
                self._failures.append(error)
            self._open_gate()
