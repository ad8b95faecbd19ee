"""What is too large for a table lies in a file that its row describes; every read checks it."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from dagster_idempotent.engine import answer_files, stages
from dagster_idempotent.engine.answer_files import MAX_IN_TABLE
from dagster_idempotent.engine.large_artifacts import LargeArtifacts
from dagster_idempotent.engine.retry_policy import Verdict
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import ArtifactDamaged, ArtifactNotStored, ArtifactUnavailable, ConfigurationError

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

SIZE = 3_000_000
FILM: dict[str, object] = {"prompt": "a film", "bytes": SIZE}


def run(bench: "Bench", place: Path | str) -> Work:
    work = bench.claim(bench.allocate())
    work.large = LargeArtifacts(base_uri=str(place), threshold=1000)
    return work


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "far away"


def files(place: Path) -> list[Path]:
    return [path for path in place.rglob("*") if path.is_file()]


def test_a_large_result_lies_in_a_file_and_is_replayed_from_it(bench: "Bench", place: Path) -> None:
    first = bench.call(bench.studio(), FILM, work=run(bench, place))
    assert len(first.value.body) == SIZE
    row = bench.rows()[0]
    (stored,) = bench.sql.execute("SELECT * FROM dagster_idempotent.artifacts").fetchall()
    assert (row["response_body"], row["response_artifact"]) == (None, "call:summary:1")
    assert (stored["name"], stored["size"], stored["body"]) == ("call:summary:1", SIZE, None)
    assert (stored["sha256"], stored["media_type"]) == (row["response_sha256"], "video/mp4")
    (file,) = files(place)
    assert file.parent == place / "weekly_digest" / bench.task()["task_id"]
    # A reader needs no configuration: the row says where.
    again = bench.call(bench.studio(), FILM)
    assert (again.value, again.replayed, bench.charges) == (first.value, True, 1)
    assert files(place) == [file]


@pytest.mark.parametrize("damage", ["missing", "cut", "other"])
def test_a_missing_or_damaged_file_is_told_and_never_paid_for_again(bench: "Bench", place: Path, damage: str) -> None:
    bench.call(bench.studio(), FILM, work=run(bench, place))
    (file,) = files(place)
    whole = file.read_bytes()
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(whole[:-1] if damage == "cut" else b"x" * SIZE)
    for _ in range(2):
        with pytest.raises(ArtifactDamaged, match="is not made again") as caught:
            bench.call(bench.studio(), FILM)
        assert str(caught.value.facts["uri"]).startswith(str(place))
    file.write_bytes(whole)
    assert bench.call(bench.studio(), FILM).replayed
    assert bench.charges == 1


@pytest.mark.parametrize("trouble", ["not mounted", "mounted over", "a loop", "a file in its place"])
def test_a_store_that_is_away_is_read_again_by_the_next_attempt(bench: "Bench", place: Path, trouble: str) -> None:
    bench.call(bench.studio(), FILM, work=run(bench, place))
    away = place.rename(place.with_name("unplugged"))
    match trouble:
        case "mounted over":
            place.mkdir()
        case "a loop":
            place.symlink_to(place)
        case "a file in its place":
            place.write_text("no folder")
        case _:
            pass
    work = run(bench, place)
    with pytest.raises(ArtifactUnavailable, match="the next attempt reads it again") as caught:
        bench.call(bench.studio(), FILM, work=work)
    assert work.fail_with(caught.value) is Verdict.AGAIN
    assert not bench.task()["final"]
    if trouble == "mounted over":
        place.rmdir()
    else:
        place.unlink(missing_ok=True)
    away.rename(place)
    assert bench.call(bench.studio(), FILM).replayed
    assert bench.charges == 1


@pytest.mark.parametrize(
    ("trouble", "told"),
    [
        (TimeoutError(), ArtifactUnavailable),
        (PermissionError("403: an object that is not there, or one that may not be listed"), ArtifactUnavailable),
        (RuntimeError("503 of a store with errors of its own"), ArtifactUnavailable),
        (FileNotFoundError("404"), ArtifactDamaged),
    ],
)
def test_only_a_store_that_says_so_has_lost_a_file(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, trouble: Exception, told: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble

    stages.collect(run(bench, "memory://bucket/artifacts"), lambda: "x" * SIZE)
    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(told, match="Raw artifact 'raw'"):
        stages.get_raw(bench.database, "weekly_digest", bench.task()["task_id"])


def test_a_store_with_errors_of_its_own_leaves_the_job_where_it_is(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("503")

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    with pytest.raises(ArtifactNotStored, match="Nothing is lost"):
        bench.call(bench.studio(), FILM, work=run(bench, "memory://bucket/artifacts"))
    assert bench.states() == ["accepted"]


def test_a_place_that_takes_no_file_leaves_the_job_where_it_is(bench: "Bench", place: Path) -> None:
    place.write_text("a file where a folder should be")
    work = run(bench, place)
    with pytest.raises(ArtifactNotStored, match="Nothing is lost") as caught:
        bench.call(bench.studio(), FILM, work=work)
    assert bench.states() == ["accepted"]
    # Such places come back: no person is needed.
    assert work.fail_with(caught.value) is Verdict.AGAIN
    assert not bench.task()["final"]
    place.unlink()
    assert len(bench.call(bench.studio(), FILM, work=run(bench, place)).value.body) == SIZE
    assert bench.charges == 1


def test_a_result_that_no_table_takes_stays_at_the_provider_until_there_is_a_place(
    bench: "Bench", place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MAX_IN_TABLE >= 32 * 1024 * 1024
    monkeypatch.setattr(answer_files, "MAX_IN_TABLE", SIZE - 1)
    with pytest.raises(ConfigurationError, match="artifacts_uri"):
        bench.call(bench.studio(), FILM)
    assert bench.states() == ["accepted"]
    bench.call(bench.studio(), FILM, work=run(bench, place))
    assert bench.charges == 1


def test_a_download_that_is_cut_is_made_again_from_its_beginning(bench: "Bench", place: Path) -> None:
    for kind, options in [("half_answer", {}), ("accept_then_drop", {"reset": True}), ("status", {"status": 503})]:
        bench.metered.fault(kind, path_contains="/result", **options)
    result = bench.call(bench.studio(), FILM, work=run(bench, place))
    assert b"".join(result.value.pieces()) == result.value.body
    assert (len(result.value.body), bench.charges, len(bench.posts)) == (SIZE, 1, 1)
    assert len(files(place)) == 1


def test_a_download_without_an_end_is_given_up_before_it_fills_the_disk(
    bench: "Bench", place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_files, "MAX_IN_FILE", SIZE - 1)
    work = run(bench, place)
    with pytest.raises(ConfigurationError, match=f"more than {SIZE - 1:,} bytes"):
        bench.call(bench.studio(), FILM, work=work)
    assert (bench.states(), files(place)) == (["accepted"], [])
    monkeypatch.setattr(answer_files, "MAX_IN_FILE", SIZE)
    assert len(bench.call(bench.studio(), FILM, work=run(bench, place)).value.body) == SIZE
    assert bench.charges == 1


def test_a_large_result_is_read_when_it_is_asked_for_and_not_before(bench: "Bench", place: Path) -> None:
    first = bench.call(bench.studio(), FILM, work=run(bench, place))
    (file,) = files(place)
    assert str(SIZE) not in repr(first)
    assert len(repr(first)) < 2000
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    with pytest.raises(ArtifactDamaged):
        list(first.value.pieces())
    file.write_bytes(whole)
    assert first.value.body is first.value.body
    assert first.answer.sha256 == bench.rows()[0]["response_sha256"]


def test_a_result_in_a_store_of_objects_is_streamed_too(bench: "Bench") -> None:
    result = bench.call(bench.studio(), FILM, work=run(bench, "memory://bucket/films"))
    assert (len(result.value.body), b"".join(result.value.pieces())) == (SIZE, result.value.body)


@pytest.mark.explore
def test_a_result_of_200_mb_is_never_held_in_memory(bench: "Bench", tmp_path: Path) -> None:
    def most(size: int) -> int:
        order = {
            "url": bench.database.url,
            "base_url": bench.metered.base_url,
            "subject": f"a film of {size} bytes",
            "bytes": size,
            "artifacts": str(tmp_path / "films"),
            "copy": str(tmp_path / "copy"),
        }
        fetcher = Path(__file__).parents[2] / "workers" / "film_fetcher.py"
        done = subprocess.run(
            [sys.executable, str(fetcher)], input=json.dumps(order), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        told = json.loads(done.stdout)
        assert told["size"] == size
        row = bench.sql.execute(
            "SELECT sha256 FROM dagster_idempotent.artifacts WHERE size = %s ORDER BY created_at DESC", [size]
        ).fetchone()
        assert row == {"sha256": told["sha256"]}
        return told["most"]

    assert most(200_000_000) - most(2_000_000) < 30_000_000
    assert bench.charges == 2


def test_an_answer_in_hand_goes_to_the_table_where_its_file_cannot_be_written(bench: "Bench", place: Path) -> None:
    place.write_text("a file where a folder should be")
    request = {"model": "m", "messages": [{"role": "user", "content": "word " * 400}]}
    work = run(bench, place)
    work.large = LargeArtifacts(base_uri=str(place), threshold=1)
    answer = bench.call(bench.provider(), request, work=work)
    assert bench.rows()[0]["response_body"] == answer.answer.body


@pytest.mark.parametrize("trouble", [RuntimeError, KeyboardInterrupt])
def test_an_answer_in_hand_survives_whatever_a_file_system_raises(
    bench: "Bench", monkeypatch: pytest.MonkeyPatch, trouble: type[BaseException]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise trouble("503 of a store with errors of its own")  # as gcsfs' HttpError, which is no OSError

    monkeypatch.setattr(MemoryFileSystem, "_open", fail)
    work = run(bench, "memory://bucket/artifacts")
    work.large = LargeArtifacts(base_uri="memory://bucket/artifacts", threshold=1)
    with suppress(KeyboardInterrupt):
        bench.call(bench.without_look_up(), work=work)
    assert bench.states() == ["succeeded"]
    assert bench.call(bench.without_look_up()).replayed
    assert bench.charges == 1


def test_a_synchronous_answer_may_lie_in_a_file_too(bench: "Bench", place: Path) -> None:
    work = run(bench, place)
    work.large = LargeArtifacts(base_uri=place.as_uri(), threshold=1)
    first = bench.call(bench.provider(), work=work)
    assert bench.rows()[0]["response_body"] is None
    assert bench.call(bench.provider()).value == first.value
    assert bench.charges == 1


def test_a_large_raw_artifact_lies_in_a_file_first_writer_first(bench: "Bench", place: Path) -> None:
    work = run(bench, place)
    raw, now = stages.collect(work, lambda: "x" * SIZE)
    assert (len(raw.body), now) == (SIZE, True)
    assert bench.sql.execute("SELECT body FROM dagster_idempotent.artifacts").fetchall() == [{"body": None}]
    again, now = stages.collect(run(bench, place), lambda: "y" * SIZE)
    assert (again, now) == (raw, False)
    (file,) = files(place)
    file.unlink()
    with pytest.raises(ArtifactDamaged, match="Raw artifact 'raw'"):
        stages.get_raw(bench.database, "weekly_digest", work.task.task_id)


def test_any_place_that_fsspec_knows_will_do(bench: "Bench") -> None:
    raw, _ = stages.collect(run(bench, "memory://bucket/artifacts"), lambda: "x" * SIZE)
    assert stages.get_raw(bench.database, "weekly_digest", bench.task()["task_id"]) == raw


@pytest.mark.parametrize("uri", ["", "artifacts", "./artifacts", "S3:bucket"])
def test_a_place_that_only_this_process_would_find_is_refused(uri: str) -> None:
    with pytest.raises(ConfigurationError, match="artifacts_uri"):
        LargeArtifacts(base_uri=uri)
