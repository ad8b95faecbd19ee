"""What the pages say is so: links lead somewhere, code loads, every public name and every promise has its line."""

import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

import dagster_idempotent
from dagster_idempotent import LedgerResource, Pipeline, transform_op

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("example_repo/*.md")])
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#([^)\s]*))?\)")


class Film(BaseModel):
    job: str


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(language: str) -> list[tuple[str, str]]:
    return [(named(page), code) for page in PAGES for kind, code in BLOCK.findall(page.read_text()) if kind == language]


def anchors(page: Path) -> set[str]:
    """Give the anchors that a page's headings get where it is shown."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        linked = page.parent / target
        assert linked.exists(), f"{named(page)} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{named(page)} links to {target}#{anchor}"


@pytest.mark.parametrize(("page", "code"), blocks("python"), ids=lambda value: str(value)[:40])
def test_every_piece_of_python_on_a_page_is_python(page: str, code: str) -> None:
    compile(code, page, "exec")


def test_what_the_readme_has_a_user_write_loads_in_dagster(tmp_path: Path) -> None:
    (code,) = (code for page, code in blocks("python") if page == "README.md")
    (tmp_path / "location.py").write_text(code)
    asked = "import location; print(sorted(job.name for job in location.defs.resolve_all_job_defs()))"
    done = subprocess.run(
        [sys.executable, "-c", asked],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "HOME": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "weekly_digest" in done.stdout


def test_the_op_of_the_remote_jobs_page_is_taken_as_it_is_written(load_page: Callable[..., ModuleType]) -> None:
    page = load_page("how-to/remote-jobs.md")
    made = transform_op(Pipeline("films", output=Film), page.shoot)
    assert made.required_resource_keys == {"ledger", "studio"}


def test_the_reference_names_what_the_package_exports_and_nothing_else() -> None:
    rows = re.findall(r"^\| (`.*?) \|", (ROOT / "docs/reference/python.md").read_text(), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(set(listed))
    assert sorted(listed) == sorted(name for name in dagster_idempotent.__all__ if not name.startswith("__"))


def test_the_settings_page_has_every_setting_and_no_other() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text()
    of_pipeline, of_ledger = (re.findall(r"^\| `(\w+)` \|", part, re.MULTILINE) for part in page.split("\n## ")[1:])
    assert sorted(of_pipeline) == sorted(inspect.signature(Pipeline).parameters)
    assert sorted(of_ledger) == sorted(LedgerResource.model_fields)


def test_the_promises_are_numbered_without_a_gap() -> None:
    numbers = re.findall(r"^- R(\d+) ", (ROOT / "docs/reference/promises.md").read_text(), re.MULTILINE)
    assert [int(number) for number in numbers] == list(range(1, 41))


def test_every_page_is_reached_from_the_readme() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        waiting += [
            (page.parent / target).resolve() for target, _ in LINK.findall(page.read_text()) if "://" not in target
        ]
    assert [named(page) for page in PAGES if page not in seen] == []
