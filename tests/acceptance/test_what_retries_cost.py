"""The figures on the page are those that its own command measures."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "explanation" / "what-retries-cost.md"


def test_the_page_shows_what_its_command_measures() -> None:
    page = PAGE.read_text()
    found = re.search(r"^\$ \S*python -m (\S+)$", page, re.MULTILINE)
    assert found is not None
    measured = subprocess.run(
        [sys.executable, "-m", found[1]], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=True
    ).stdout
    assert measured.startswith("| client |")
    assert measured in page
    assert [int(cell) for cell in re.findall(r"\| (\d+)", measured)] == [9, 9, 1, 1, 9, 9, 1, 1, 3, 3, 3, 1]
