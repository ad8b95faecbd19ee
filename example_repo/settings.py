"""Where the example keeps its things, and which service it talks to; each has an environment variable."""

import os
from pathlib import Path

# Everything that the example writes; `make clean` removes it.
HOME = Path(os.environ.get("EXAMPLE_HOME") or Path(__file__).parents[1] / ".dagster_idempotent").absolute()
POSTGRES = HOME / "postgres"
DELIVERIES = HOME / "deliveries"
ASSEMBLED = HOME / "assembled"
ARTIFACTS = HOME / "artifacts"
PROVIDER = HOME / "metered_provider"
TENANTS = [f"tenant-{number:02}" for number in range(1, int(os.environ.get("EXAMPLE_TENANTS") or 2) + 1)]

# A real service is used where its address and key are given; otherwise the metered provider of this machine.
OPENAI_BASE_URL = os.environ.get("OPENAI_BASE_URL") or (
    "https://api.openai.com/v1" if os.environ.get("OPENAI_API_KEY") else ""
)
METERED_KEY_VARIABLE = "METERED_PROVIDER_KEY"
