"""A ledger that is named wrongly is refused: never another one in its place, and never a password in a text (R40)."""

import traceback
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent import LedgerResource
from dagster_idempotent.errors import ConfigurationError, DatabaseUnavailable

PARTITION = "acme|2026-08-03"


def _refused(ledger: LedgerResource) -> str:
    with pytest.raises(ConfigurationError) as refused:
        ledger.database()
    return "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize("setting", ["url", "folder"])
@pytest.mark.parametrize("blank", ["", "  "])
def test_a_setting_that_is_given_and_empty_starts_no_other_ledger(
    setting: str, blank: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert f"The ledger's {setting} is given, and it is empty" in _refused(LedgerResource(**{setting: blank}))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "rest",
    [
        "u:pa%zzS3CR3T@127.0.0.1:1/x",
        "u:S3CR3T@[::1/x",
        "u:pa@S3CR3T@127.0.0.1:1/x",
        "u:S3CR3T/pa@127.0.0.1:1/x",
        "u:pa/S3CR3T@127.0.0.1:1/x",
        "u:S3CR3T@127.0.0.1:port/x",
        "u:S3CR3T@127.0.0.1:1/x?password=S3CR3T&colour=red",
    ],
)
def test_a_url_that_cannot_be_read_is_not_shown(rest: str) -> None:
    text = _refused(LedgerResource(url=f"postgresql://{rest}", patience_seconds=0.1))
    assert "S3CR3T" not in text
    assert "written as %XX" in text


def test_a_password_that_is_written_properly_is_taken(tmp_path: Path) -> None:
    for url in ("postgresql://u:p%40ss%2Fw%25@127.0.0.1:1/x", f"postgresql://u:p%40s@/x?host={tmp_path}&port=1"):
        with pytest.raises(DatabaseUnavailable):
            LedgerResource(url=url, patience_seconds=0.1).database()


@pytest.mark.parametrize(
    ("url", "says"),
    [("", "The ledger's url is given, and it is empty"), ("postgresql://u:pa%zzS3CR3T@h/x", "not shown, since it may")],
)
def test_a_run_with_a_wrong_ledger_says_so_and_keeps_no_password(
    url: str, says: str, dagster: Dagster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_LEDGER_URL", url)
    run = dagster.launch("weekly_digest", partition=PARTITION)
    assert run.status is dg.DagsterRunStatus.FAILURE
    (text,) = dagster.failures(run)
    assert says in text
    for path in folder.with_name("home").rglob("*"):
        assert not path.is_file() or b"S3CR3T" not in path.read_bytes(), path
