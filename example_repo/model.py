"""The model resource: an OpenAI-compatible service, or the metered provider where none is configured."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from dagster_idempotent import GuardedChatCompletionsResource, Money
from dagster_idempotent.domain.backoff import duration
from dagster_idempotent.providers.chat_completions import ChatCompletionsProvider
from dagster_idempotent.testing.metered_provider.settings import Settings
from example_repo import settings

METERED_PRICE = Money(amount=Settings().price, currency=Settings().currency)


class MeteredModel(GuardedChatCompletionsResource):
    """The metered provider of this machine, started when a run first needs it; it looks requests up exactly."""

    base_url: str = "http://127.0.0.1/metered-provider"  # where a run finds it is known when it has been started

    def provider(self) -> ChatCompletionsProvider:
        """Build the adapter, with the provider running; its key is any text, since it charges play money."""
        os.environ.setdefault(settings.METERED_KEY_VARIABLE, "any-text")
        return ChatCompletionsProvider(
            base_url=metered_base_url(settings.PROVIDER),
            api_key_variable=self.api_key_variable,
            look_up_path=self.look_up_path,
            settle_delay=duration(self.settle_delay, field="settle_delay"),
            cost_of=lambda _: METERED_PRICE,  # of each request, however long it is
            upper_bound=METERED_PRICE,
        )


def model_resource() -> GuardedChatCompletionsResource:
    """Return the model of the configured service; without OPENAI_API_KEY, the metered provider."""
    if settings.OPENAI_BASE_URL:
        return GuardedChatCompletionsResource(base_url=settings.OPENAI_BASE_URL, input_price=None, output_price=None)
    return MeteredModel(api_key_variable=settings.METERED_KEY_VARIABLE, look_up_path="/lookup", settle_delay="2s")


def metered_base_url(folder: Path) -> str:
    """Return the address of the metered provider that keeps its bill in `folder`, started if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        running = _running(folder)
        return _start(folder) if running is None else str(running["base_url"])


def stop_metered_provider(folder: Path) -> bool:
    """End the metered provider of a folder; return whether it ran."""
    running = _running(folder)
    if running is not None:
        os.kill(int(running["pid"]), signal.SIGTERM)
    return running is not None


def _running(folder: Path) -> dict[str, Any] | None:
    """Return the addresses and the process of the provider, where it answers: a pid alone may be another program's."""
    try:
        address: dict[str, Any] = json.loads((folder / "address.json").read_text(encoding="utf-8"))
        with urlopen(f"{address['control_url']}/bill", timeout=5):  # noqa: S310 - loopback
            return address
    except (OSError, URLError, HTTPException, ValueError, KeyError):
        return None


def _start(folder: Path) -> str:
    command = [sys.executable, "-m", "dagster_idempotent.testing.metered_provider", "--folder", str(folder)]
    with (folder / "provider.log").open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - this interpreter and our own module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, text=True
        )
    if process.stdout is None or not (line := process.stdout.readline()):
        raise RuntimeError(f"The metered provider did not start; see {folder / 'provider.log'}.")
    return str(json.loads(line)["base_url"])
