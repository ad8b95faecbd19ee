"""The command line and the paid work that tests/paid_world.py makes."""

import os
import sys
from pathlib import Path

sys.path.insert(0, os.fspath(Path(__file__).parents[1]))

from paid_world import cli, world

__all__ = ["cli", "world"]
