import json
import os
import stat
from collections.abc import Callable
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import fsspec
import psycopg
import pytest
from fsspec.implementations.local import LocalFileSystem
from upath import UPath
from upath.registry import register_implementation

from dagster_idempotent import FileChannel, HttpChannel, SqlChannel
from dagster_idempotent.domain.outbox import DeliveryPolicy, MessageState
from dagster_idempotent.engine.files import write_artifact, write_file
from dagster_idempotent.engine.relay import deliver_due
from dagster_idempotent.errors import ArtifactNotStored, ConfigurationError, DeliveryInDoubt, DeliveryNotSent
from dagster_idempotent.testing.fault_proxy import FaultProxy
from tests.side_effects.conftest import SHORT, House, Receiver

WINDOW = timedelta(seconds=10)
ONCE = DeliveryPolicy(max_attempts=1, backoff=SHORT)


def test_a_webhook_gets_the_payload_under_a_key_that_stays_the_same(house: House, receiver: Receiver) -> None:
    channel = HttpChannel(receiver.url + "/hook", deduplicates=True, headers={"X-Team": "digest"})
    house.complete(0, {"web": True})
    (done,) = deliver_due(house.database, "weekly_digest", {"web": channel})
    assert done.message.receipt == "200"
    (key,) = receiver.arrived
    assert key == "/hook|weekly_digest:2026-W02-0:web"
    assert receiver.bodies[key] == {"title": "week 0"}
    assert receiver.headers[key]["X-Team"] == "digest"


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_a_definite_no_of_the_receiver_proves_that_nothing_was_delivered(
    house: House, receiver: Receiver, status: int
) -> None:
    receiver.status = status
    message = house.messages(house.complete(0, {"web": False}))["web"]
    with pytest.raises(DeliveryNotSent, match=str(status)):
        HttpChannel(receiver.url, deduplicates=False).deliver(message, window=WINDOW)


@pytest.mark.parametrize("status", [302, 409, 429, 500, 503])
def test_any_other_answer_leaves_the_message_in_doubt(house: House, receiver: Receiver, status: int) -> None:
    receiver.status = status
    task = house.complete(0, {"web": False})
    deliver_due(house.database, "weekly_digest", {"web": HttpChannel(receiver.url, deduplicates=False)})
    deliver_due(house.database, "weekly_digest", {"web": HttpChannel(receiver.url, deduplicates=False)})
    message = house.messages(task)["web"]
    assert message.state is MessageState.IN_DOUBT
    assert str(status) in (message.error or "")
    assert receiver.arrived.total() == 1


def test_a_dropped_answer_is_in_doubt_and_a_refused_connection_is_not(house: House, receiver: Receiver) -> None:
    message = house.messages(house.complete(0, {"web": False}))["web"]
    receiver.on_arrival = lambda _: False
    with pytest.raises(DeliveryInDoubt):
        HttpChannel(receiver.url, deduplicates=False).deliver(message, window=WINDOW)
    with FaultProxy(("127.0.0.1", 1)) as proxy:
        host, port = proxy.address
    with pytest.raises(DeliveryNotSent, match="never left"):
        HttpChannel(f"http://{host}:{port}", deduplicates=False).deliver(message, window=WINDOW)


def test_no_byte_leaves_after_the_window(house: House, receiver: Receiver) -> None:
    message = house.messages(house.complete(0, {"web": False}))["web"]
    with pytest.raises(DeliveryNotSent, match="send window"):
        HttpChannel(receiver.url, deduplicates=False).deliver(message, window=timedelta(0))
    assert not receiver.arrived


def test_a_secret_is_read_when_a_message_goes_and_shown_nowhere(
    house: House, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = HttpChannel(url_variable="HOOK_URL", bearer_variable="HOOK_TOKEN", deduplicates=True)
    message = house.messages(house.complete(0, {"web": True}))["web"]
    with pytest.raises(DeliveryNotSent, match="HOOK_TOKEN is unset"):
        channel.deliver(message, window=WINDOW)
    monkeypatch.setenv("HOOK_URL", receiver.url + "/secret-path")
    monkeypatch.setenv("HOOK_TOKEN", "secret-token")
    channel.deliver(message, window=WINDOW)
    (headers,) = receiver.headers.values()
    assert headers["Authorization"] == "Bearer secret-token"
    receiver.status = 500
    with pytest.raises(DeliveryInDoubt) as error:
        channel.deliver(message, window=WINDOW)
    assert "secret" not in str(error.value) + repr(channel)


def test_a_webhook_without_an_address_or_with_two_is_refused() -> None:
    for urls in ({}, {"url": "http://a", "url_variable": "B"}):
        with pytest.raises(ConfigurationError, match="one address"):
            HttpChannel(**urls, deduplicates=True)


def test_rows_and_the_delivered_mark_commit_together_or_not_at_all(house: House) -> None:
    house.change("CREATE TABLE published (key text PRIMARY KEY, title text)")
    task = house.complete(0, {"rows": True})
    fails = iter([True, False])

    def write(connection, message):  # noqa: ANN001, ANN202 - as a user writes it
        title = json.loads(message.payload)["title"]
        connection.execute("INSERT INTO published VALUES (%s, %s)", (message.key, title))
        if next(fails):
            raise ConnectionError("after the rows, before the mark")
        return "row written"

    channels, policy = {"rows": SqlChannel(write)}, DeliveryPolicy(backoff=SHORT)
    (first,) = deliver_due(house.database, "weekly_digest", channels, policy=policy, limit=1)
    assert (first.delivered_now, house.query("SELECT * FROM published")) == (False, [])
    while not house.messages(task)["rows"].receipt:
        deliver_due(house.database, "weekly_digest", channels, policy=policy)
    assert house.query("SELECT title FROM published") == [{"title": "week 0"}]
    assert house.messages(task)["rows"].receipt == "row written"


def test_a_relay_that_lost_its_message_to_another_writes_no_rows(house: House) -> None:
    house.change("CREATE TABLE published (key text)")
    task = house.complete(0, {"rows": True})

    def write(connection, message):  # noqa: ANN001, ANN202 - as a user writes it
        connection.execute("INSERT INTO published VALUES (%s)", (message.key,))

    def overtaken(connection, message):  # noqa: ANN001, ANN202 - as a user writes it
        write(connection, message)
        house.change("UPDATE dagster_idempotent.outbox SET sender_expires_at = clock_timestamp() - interval '1s'")
        policy = DeliveryPolicy(backoff=SHORT)
        while not deliver_due(house.database, "weekly_digest", {"rows": SqlChannel(write)}, policy=policy):
            pass

    (first,) = deliver_due(house.database, "weekly_digest", {"rows": SqlChannel(overtaken)}, limit=1)
    assert not first.delivered_now
    assert len(house.query("SELECT * FROM published")) == 1
    assert house.messages(task)["rows"].state is MessageState.DELIVERED


def test_the_transaction_of_a_channel_is_not_the_channels_to_commit(house: House) -> None:
    task = house.complete(0, {"rows": True})
    channels = {"rows": SqlChannel(lambda connection, _: connection.commit())}
    deliver_due(house.database, "weekly_digest", channels, policy=ONCE)
    message = house.messages(task)["rows"]
    assert message.state is MessageState.DEAD
    assert psycopg.ProgrammingError.__name__ in (message.error or "")


def test_a_file_is_written_whole_with_ordinary_permissions_and_twice_is_harmless(house: House, tmp_path: Path) -> None:
    message = house.messages(house.complete(0, {"file": True}))["file"]
    channel = FileChannel(tmp_path)
    assert channel.deliver(message, window=WINDOW) == channel.deliver(message, window=WINDOW)
    path = channel.path_of(message)
    assert path.read_text() == '{"title":"week 0"}'
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_write_that_fails_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.mkdir()
    (path / "old").write_text("old")
    with pytest.raises(OSError, match=r"directory"):
        write_file(path, b"new")
    assert [each.name for each in tmp_path.iterdir()] == ["report.json"]
    assert (path / "old").read_text() == "old"


def test_an_artifact_has_a_place_fixed_by_task_and_name_and_returns_its_hash(tmp_path: Path) -> None:
    for _ in range(2):
        digest = write_artifact(tmp_path, "weekly_digest", "2026-W02-0", "shot.bin", b"abc")
    assert digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (tmp_path / "weekly_digest/2026-W02-0/shot.bin").read_bytes() == b"abc"


@pytest.mark.parametrize("name", ["../x", "a/b", ".hidden", "", "a" * 201, "..", "a\0b"])
def test_a_name_that_leaves_the_tasks_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be a file"):
        write_artifact(tmp_path, "weekly_digest", "2026-W02-0", name, b"")


PLACE = ("weekly_digest", "2026-W02-0", "shot.bin")


@pytest.mark.parametrize("given", [UPath, str], ids=["a path", "a URI"])
def test_an_object_store_gets_the_artifact_at_the_same_place_however_often(given: Callable[[str], Any]) -> None:
    uri = f"memory://{uuid4()}/artifacts"
    for body in (b"old", b"abc", b"abc"):
        digest = write_artifact(given(uri), *PLACE, body)
    assert digest == sha256(b"abc").hexdigest()
    store = UPath(uri)
    assert [path.name for path in store.rglob("*") if path.is_file()] == ["shot.bin"]
    assert store.joinpath(*PLACE).read_bytes() == b"abc"


@pytest.mark.parametrize("given", [UPath, str], ids=["a path", "a URI"])
def test_a_uri_of_the_disk_is_written_as_a_disk_is(given: Callable[[str], Any], tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    write_artifact(given(f"file://{folder}"), *PLACE, b"abc")
    (folder.joinpath(*PLACE)).chmod(0o400)  # only a rename replaces it
    before = folder.joinpath(*PLACE).stat().st_ino
    write_artifact(given(f"file://{folder}"), *PLACE, b"abc")
    assert folder.joinpath(*PLACE).stat().st_ino != before
    assert [path.name for path in folder.rglob("*") if path.is_file()] == ["shot.bin"]


class Strict(LocalFileSystem):
    """A file system elsewhere that has real folders and makes none by itself; `loses` makes it cut writes short."""

    protocol = "strict"
    loses: ClassVar[bool] = False

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        super().pipe_file(path, value[:-1] if self.loses else value, **kwargs)

    def open(self, path: str, mode: str = "rb", **kwargs: Any) -> Any:
        opened = super().open(path, mode, **kwargs)
        if self.loses and "w" in mode:
            opened.write(b"#")
        return opened


class StrictPath(UPath):
    __slots__ = ()


@pytest.fixture
def strict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> UPath:
    fsspec.register_implementation("strict", Strict, clobber=True)
    register_implementation("strict", StrictPath, clobber=True)
    monkeypatch.setattr(Strict, "loses", False)
    return UPath(f"strict://{tmp_path}")


def test_a_file_system_with_folders_gets_them_and_keeps_them(strict: UPath, tmp_path: Path) -> None:
    for _ in range(2):
        write_artifact(strict, *PLACE, b"abc")
    assert tmp_path.joinpath(*PLACE).read_bytes() == b"abc"


def test_what_reads_back_otherwise_than_it_was_written_is_refused_and_can_be_written_again(
    strict: UPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Strict, "loses", True)
    with pytest.raises(ArtifactNotStored, match="reads back"):
        write_artifact(strict, *PLACE, b"abc")
    monkeypatch.setattr(Strict, "loses", False)
    write_artifact(strict, *PLACE, b"abc")
    assert tmp_path.joinpath(*PLACE).read_bytes() == b"abc"


def test_a_message_goes_to_an_object_store_and_again_where_it_was_damaged(
    house: House, strict: UPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, channels = house.complete(0, {"file": True}), {"file": FileChannel(strict)}
    monkeypatch.setattr(Strict, "loses", True)
    (first,) = deliver_due(house.database, "weekly_digest", channels, policy=DeliveryPolicy(backoff=SHORT), limit=1)
    assert (first.delivered_now, first.message.state) == (False, MessageState.READY)
    monkeypatch.setattr(Strict, "loses", False)
    while not house.messages(task)["file"].receipt:
        deliver_due(house.database, "weekly_digest", channels, policy=DeliveryPolicy(backoff=SHORT))
    (written,) = tmp_path.rglob("*.json")
    assert written.read_text() == '{"title":"week 0"}'
