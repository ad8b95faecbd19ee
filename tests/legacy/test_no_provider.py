"""No provider client can exist while old records are imported (R34)."""

import json
import subprocess
import sys

import pytest

FORBIDDEN = ("dagster_idempotent.providers", "dagster_idempotent.definitions", "dagster", "httpx", "httpcore")
SDKS = ("openai", "anthropic", "stripe", "requests", "urllib3", "aiohttp")


@pytest.mark.parametrize(
    "module",
    [
        "dagster_idempotent.engine.legacy_import",
        "dagster_idempotent.engine.legacy_check",
        "dagster_idempotent.cli.legacy",
    ],
)
def test_the_import_path_loads_no_provider_and_no_dagster(module: str) -> None:
    script = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert module in loaded
    assert not {name for name in loaded if any(name == bad or name.startswith(f"{bad}.") for bad in FORBIDDEN + SDKS)}
