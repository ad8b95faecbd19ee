"""The handle of a metered provider in a process of its own."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Self, cast

from dagster_idempotent.testing.metered_provider.control import MeteredProviderError, ProviderControl

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class MeteredProvider(ProviderControl):
    """A metered provider that this process started; it ends with the `with` block, or with this process."""

    def __init__(self, folder: Path, options: Mapping[str, str | bool]) -> None:
        super().__init__("http://127.0.0.1:0")
        self.folder = folder
        self._options = dict(options)
        self._port = 0
        self._process: subprocess.Popen[bytes] | None = None

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
            process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
                self._command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        self._process = process
        address = self._await_address(process)
        self._port = cast("int", address["port"])
        self.control_url = cast("str", address["control_url"])

    def kill(self) -> None:
        """End it by SIGKILL; returns when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def stop(self) -> None:
        """End it by SIGTERM, also while it holds requests; returns when it is gone."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
            self._reap(self._process)

    def configure(self, *, deduplicate: bool | None = None, lookup: bool | None = None) -> None:
        """Change which promises the provider keeps, after a restart too; None leaves a setting as it is."""
        super().configure(deduplicate=deduplicate, lookup=lookup)
        if deduplicate is not None:
            self._options["deduplicate"] = deduplicate
        if lookup is not None:
            self._options["no-lookup"] = not lookup

    def _command(self) -> list[str]:
        module = "dagster_idempotent.testing.metered_provider"
        # The pipe to its stdin closes with this process, however that ends: nobody is left behind.
        command = [sys.executable, "-m", module, "--until-stdin-closes"]
        command += ["--folder", str(self.folder), "--port", str(self._port)]
        for name, value in self._options.items():
            if isinstance(value, str):
                command += [f"--{name}", value]
            elif value:
                command.append(f"--{name}")
        return command

    def _await_address(self, process: subprocess.Popen[bytes]) -> Mapping[str, object]:
        output = process.stdout
        line = b""
        deadline = time.monotonic() + _START_SECONDS
        while output is not None and not line.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(0.0, deadline - time.monotonic()))
            read = os.read(output.fileno(), 4096) if ready else b""
            if not read:
                self.kill()
                log = (self.folder / "provider.log").read_text(errors="replace")
                raise MeteredProviderError(
                    f"no address of the provider within {_START_SECONDS} s; its log ends: {log[-2000:]}",
                    log=log,
                )
            line += read
        return cast("Mapping[str, object]", json.loads(line))

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None
