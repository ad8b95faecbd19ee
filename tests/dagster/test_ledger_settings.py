"""A ledger that is named wrongly is refused: never another one in its place, and never a password in a text (R40)."""

import traceback
from pathlib import Path

import dagster as dg
import pytest
from real_dagster import Dagster

from dagster_idempotent import GuardedChatCompletionsResource, GuardedOpenAIResource, LedgerResource
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


def test_a_run_with_a_wrong_ledger_says_so_and_keeps_no_password(
    dagster: Dagster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for url, says in {
        "": "The ledger's url is given, and it is empty",
        "postgresql://u:pa%zzS3CR3T@h/x": "not shown, since it may",
    }.items():
        monkeypatch.setenv("TEST_LEDGER_URL", url)
        run = dagster.launch("weekly_digest", partition=PARTITION)
        assert run.status is dg.DagsterRunStatus.FAILURE
        (text,) = dagster.failures(run)
        assert says in text
    for path in folder.with_name("home").rglob("*"):
        assert not path.is_file() or b"S3CR3T" not in path.read_bytes(), path


@pytest.mark.parametrize("resource", [GuardedChatCompletionsResource, GuardedOpenAIResource])
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("base_url", ""),
        ("base_url", "  "),
        ("base_url", "https://user:S3CR3T@host/v1"),
        ("base_url", "https://host/v1?key=S3CR3T"),
        ("base_url", "http://[::1/S3CR3T"),
        ("api_key_variable", ""),
        ("api_key_variable", "sk-live-S3CR3T"),
        ("api_key_variable", "sk_live_S3CR3T"),
    ],
)
def test_a_provider_named_wrongly_sends_to_no_other_place_and_shows_no_key(
    resource: type[GuardedChatCompletionsResource] | type[GuardedOpenAIResource], setting: str, value: str
) -> None:
    """An empty address is not the official one, and a key in place of its variable's name is told of by nobody."""
    with pytest.raises(ConfigurationError) as refused:
        resource(**{setting: value}).provider()
    assert refused.value.facts["field"] == setting
    assert "S3CR3T" not in "".join(traceback.format_exception(refused.value))
