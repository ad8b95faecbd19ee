"""`make clean` leaves nothing of the example behind: no process, no data, and nothing else is touched."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded import place as places

START = """
from example_repo import settings
from example_repo.model import metered_base_url
print(metered_base_url(settings.PROVIDER))
"""


def test_what_the_example_left_running_is_ended_and_what_it_wrote_is_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {**os.environ, "EXAMPLE_HOME": str(home)}
    started = subprocess.run([sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=True)
    embedded.start(home / "postgres", durable=False)
    place = places.find(home / "postgres")
    (home / "mine.txt").write_text("kept")
    for said in ("The metered provider has been stopped.\n", ""):
        done = subprocess.run(
            [sys.executable, "-m", "example_repo.clean"], env=environment, capture_output=True, text=True, check=True
        )
        assert (done.stdout, done.stderr) == ("", said)
    with pytest.raises(URLError):
        urlopen(f"{started.stdout.strip()}/models", timeout=5)  # noqa: S310 - loopback
    assert not place.location.exists()
    assert [path.name for path in home.iterdir()] == ["mine.txt"]
