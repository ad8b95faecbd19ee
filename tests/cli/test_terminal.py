import os
import pty
import select
import subprocess
import sys
import time
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("cli")

WITHOUT_RICH = "import sys; sys.modules['rich'] = None; "
PROGRAM = "from dagster_idempotent.cli import main; main()"


def on_a_terminal(code: str, *arguments: str) -> str:
    """Run a command with a terminal as its stdout; return what the person sees."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "200", "TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=theirs, env=environment)
    os.close(theirs)
    seen, deadline = b"", time.monotonic() + 60
    while time.monotonic() < deadline:
        if not select.select([ours], [], [], 1)[0]:
            continue
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(ours)
    assert process.wait(30) == 0
    return seen.decode()


@pytest.mark.parametrize(("before", "drawn"), [("", True), (WITHOUT_RICH, False)])
def test_a_person_gets_a_drawn_table_where_rich_is_installed(world: Any, before: str, drawn: bool) -> None:
    task_id = world.allocate()
    seen = on_a_terminal(before + PROGRAM, "tasks", "list")
    assert task_id in seen
    assert ("┃" in seen) == drawn


def test_a_pipe_gets_plain_lines(world: Any) -> None:
    task_id = world.allocate()
    done = subprocess.run([sys.executable, "-c", PROGRAM, "tasks", "list"], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1].split()[:2] == ["weekly_digest", task_id]
    assert done.stderr == ""


def test_a_reader_that_stops_reading_is_no_error(world: Any) -> None:
    world.allocate()
    done = subprocess.run(  # noqa: S602 - a pipe is the point
        f"{sys.executable} -c '{PROGRAM}' tasks list | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Traceback" not in done.stderr
