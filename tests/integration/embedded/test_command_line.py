"""The embedded server at the command line."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded.__main__ import main


@contextmanager
def said(capsys: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    words: list[str] = []
    capsys.readouterr()
    yield words
    words.extend(capsys.readouterr())


def test_the_command_line_starts_shows_and_stops(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(embedded.URL_VARIABLE, raising=False)
    at = ["--folder", str(folder)]
    with said(capsys) as missing:
        assert main(["status", *at]) == 3
    assert missing[0] == ""
    assert "no server is running" in missing[1]
    with said(capsys) as started:
        assert main(["start", *at, "--json", "--idle-minutes", "0"]) == 0
    facts = json.loads(started[0])
    with said(capsys) as shown:
        assert main(["status", *at]) == 0
    assert str(facts["pid"]) in shown[0]
    with said(capsys) as url:
        assert main(["url", *at]) == 0
        assert main(["url", *at, "--sqlalchemy"]) == 0
    assert url[0].splitlines() == [facts["url"], embedded.sqlalchemy_url(facts["url"])]
    with said(capsys) as stopped:
        assert main(["stop", *at]) == 0
        assert main(["stop", *at]) == 0
    assert stopped == ["", "stopped\nno server was running\n"]


def test_the_command_line_explains_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["start", "--folder", str(tmp_path / "file")]) == 1
    assert "Name a folder" in capsys.readouterr().err
