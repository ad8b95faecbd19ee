"""What a person clicks in the Dagster UI, in headless Chromium: one key, one task, one charge, on pages that say so."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import dagster as dg
import pytest
from live import Live, live_dagster

from dagster_idempotent.testing.metered_provider import MeteredProvider

if TYPE_CHECKING:
    from browser import Browser

NEVER_ASK = "mutation { setNuxSeen }"
HELD, FAILING = "2026-08-03", "2026-08-10"


@pytest.fixture
def live(folder: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setenv("TEST_OPERATORS", "1")
    with live_dagster(folder, ledger_url, "code_location.py", monkeypatch) as started:
        started.ask(NEVER_ASK)
        yield started


@pytest.mark.explore
def test_launch_resolve_re_execute_and_backfill_by_clicks(
    live: Live, folder: Path, tmp_path: Path, metered_provider: MeteredProvider
) -> None:
    from browser import open_browser  # noqa: PLC0415 - selenium loads slowly, and for this test alone

    with open_browser(live.url, tmp_path / "profile", tmp_path / "pictures") as browser:
        metered_provider.fault("accept_then_drop")
        held = _launch(browser, HELD)
        _resolve_by_the_link(browser)
        browser.open(held)
        browser.says("RUN_FAILURE")
        _re_execute_from_failure(browser)
        browser.says("RUN_SUCCESS")
        assert metered_provider.charges == 2, "ada accepted that it may charge twice"

        # A run that pays and then fails: re-executed from failure, it replays.
        (folder / "after_payment_blind").touch()
        failed = _launch(browser, FAILING)
        browser.says("the fault after_payment_blind was ordered")
        browser.says("RUN_FAILURE")
        _see_what_was_collected(browser)
        browser.open(failed)
        browser.says("RUN_FAILURE")
        _re_execute_from_failure(browser)
        browser.says("RUN_SUCCESS")
        browser.says("calls_replayed")
        browser.picture("5 replayed")

        _backfill(browser, live)
    assert metered_provider.charges == 3


def _launch(browser: "Browser", partition: str) -> str:
    """Choose a partition in the Launchpad and launch; return the address of the run."""
    browser.open("/locations/live/jobs/blind/playground")
    browser.fill("Partition", partition)
    browser.says(partition)
    browser.enter()
    browser.says(f"blind/{partition}T00:00:00Z")
    browser.launch()
    return browser.address


def _resolve_by_the_link(browser: "Browser") -> None:
    """Read on the page of a held run what happened, and follow its link to the operator job."""
    browser.says("is in doubt")
    browser.says("dagster-idempotent explain blind/2026-W32-0")
    browser.picture("1 held")
    browser.click("//*[normalize-space(text())='[Show Markdown]']")
    browser.says("Each link opens an operator job, filled in; type your name and why, and launch it.")
    browser.picture("2 decide")
    browser.follow("send again, which may charge twice")
    browser.arrives("/jobs/idempotency_resolve/")
    assert 'task: "2026-W32-0"' in browser.config()
    assert 'outcome: "resend"' in browser.config()
    browser.type_into_config('actor: "', "ada")
    browser.type_into_config('reason: "', "ticket 12")
    browser.picture("3 filled in")
    browser.launch()
    browser.says("Re-execute the run that failed, or wait for the task sensor where it is on.")
    browser.says("RUN_SUCCESS")
    browser.picture("4 resolved")


def _see_what_was_collected(browser: "Browser") -> None:
    """Follow the link of the collect op to the raw artifact, and to everything else that is known of the task."""
    browser.open_link("/jobs/idempotency_explain/")
    browser.arrives("/jobs/idempotency_explain/")
    assert 'show: "artifact"' in browser.config()
    browser.launch()
    browser.says("RUN_SUCCESS")
    browser.picture("4b explained")
    browser.click("//*[normalize-space(text())='[Show Markdown]']")
    browser.says("blind/2026-W33-0 is failed.")
    browser.says("Running it again")
    browser.picture("4c explanation")


def _re_execute_from_failure(browser: "Browser") -> None:
    before = browser.address
    browser.click("//button[contains(normalize-space(.), 'Re-execute')]/following::button[1]")
    browser.click("//*[normalize-space(text())='From failure']")
    browser.leaves(before)
    browser.arrives("/runs/")


def _backfill(browser: "Browser", live: Live) -> None:
    """Backfill both weeks, which are done; then find the runs of one task, whatever launched them."""
    browser.open("/locations/live/jobs/blind/partitions")
    browser.press("Launch backfill")
    browser.fill("ex: ", f"[{HELD}...{FAILING}]")
    browser.enter()
    # What is done is left out unless it is asked for.
    browser.click("//label[contains(normalize-space(.), 'Completed (2)')]")
    browser.picture("6 backfill")
    browser.press("Submit 2 runs")
    succeeded = dg.RunsFilter(job_name="blind", statuses=[dg.DagsterRunStatus.SUCCESS])
    live.wait("the backfill's runs", lambda: len(live.instance.get_runs(succeeded)) == 4)

    browser.open("/runs?q[0]=tag%3Adagster-idempotent%2Ftask_id%3D2026-W32-0")
    browser.says("dagster-idempotent/task_id: 2026-W32-0")
    browser.picture("7 runs of a task")
    assert browser.text().count("dagster-idempotent/allocation_key: blind/2026-08-03T00:00:00Z") >= 2
