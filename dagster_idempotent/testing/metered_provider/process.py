"""The handle of a metered provider in a process of its own."""

import json
import select
import signal
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import IO, Self, cast

from dagster_idempotent.testing.metered_provider.control import MeteredProviderError, ProviderControl
from dagster_idempotent.testing.metered_provider.nursery import Child, nursery

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class MeteredProvider(ProviderControl):
    """A metered provider that this process started; it ends with the `with` block, or with this process."""

    def __init__(self, folder: Path, options: Mapping[str, str | bool]) -> None:
        super().__init__("http://127.0.0.1:0")
        self.folder = folder
        self._options = dict(options)
        self._port = 0
        self._process: Child | None = None

    @classmethod
    def start(
        cls,
        folder: Path | str,
        *,
        price: Decimal | str = "0.02",
        currency: str = "USD",
        deduplicate: bool = False,
        lookup: bool = True,
        require_key: str | None = None,
        job_polls: int = 3,
    ) -> Self:
        """Start one on any free port; `require_key` names an environment variable; a job succeeds at poll `job_polls`.

        A folder that was used before continues its bill. Raises MeteredProviderError when it does not start.
        """
        options: dict[str, str | bool] = {
            "price": str(price),
            "currency": currency,
            "deduplicate": deduplicate,
            "no-lookup": not lookup,
            "job-polls": str(job_polls),
        }
        if require_key is not None:
            options["require-key"] = require_key
        provider = cls(Path(folder), options)
        provider.restart()
        return provider

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int | None:
        """The process, while it is running."""
        return None if self._process is None else self._process.pid

    def restart(self) -> None:
        """Start again on the same folder and port, with the same settings; stops it first if it runs."""
        self.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "provider.log").open("ab") as log:
            process = self._started(log)
        self._process = process
        address = self._await_address(process)
        self._port = cast("int", address["port"])
        self.control_url = cast("str", address["control_url"])

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._let_go(self._process)

    def stop(self) -> None:
        """End it by SIGTERM, also while it holds requests; returns when it is gone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except TimeoutError:
                self._process.send_signal(signal.SIGKILL)
            self._let_go(self._process)

    def configure(self, *, deduplicate: bool | None = None, lookup: bool | None = None) -> None:
        """Change which promises the provider keeps, after a restart too; None leaves a setting as it is."""
        super().configure(deduplicate=deduplicate, lookup=lookup)
        if deduplicate is not None:
            self._options["deduplicate"] = deduplicate
        if lookup is not None:
            self._options["no-lookup"] = not lookup

    def _started(self, log: IO[bytes]) -> Child:
        try:
            return nursery().start(self._arguments(), log)
        except ConnectionError as error:
            raise MeteredProviderError(
                "found that the process that forks metered providers had ended, expected it to run; start it again"
            ) from error

    def _arguments(self) -> list[str]:
        # Its stdin closes with this process, however that ends: nobody is left behind.
        arguments = ["--until-stdin-closes", "--folder", str(self.folder), "--port", str(self._port)]
        for name, value in self._options.items():
            if isinstance(value, str):
                arguments += [f"--{name}", value]
            elif value:
                arguments.append(f"--{name}")
        return arguments

    def _await_address(self, process: Child) -> Mapping[str, object]:
        line = b""
        deadline = time.monotonic() + _START_SECONDS
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([process.talk], [], [], max(0.0, deadline - time.monotonic()))
            read = process.talk.recv(4096) if ready else b""
            if not read:
                self.kill()
                log = (self.folder / "provider.log").read_text(errors="replace")
                raise MeteredProviderError(
                    f"no address of the provider within {_START_SECONDS} s; its log ends: {log[-2000:]}",
                    log=log,
                )
            line += read
        return cast("Mapping[str, object]", json.loads(line))

    def _let_go(self, process: Child) -> None:
        process.wait()
        process.close()
        self._process = None
