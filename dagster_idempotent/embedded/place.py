"""Where a server lives: the asked folder holds locks, log and normally the data; see `settle` for root."""

import hashlib
import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

from dagster_idempotent.embedded.account import Account, account_for, make_private, require_private, root_home
from dagster_idempotent.embedded.urls import DATABASE, PORT, socket_url
from dagster_idempotent.errors import EmbeddedPostgresError

_SOCKET_NAME = f".s.PGSQL.{PORT}"
_SOCKET_LIMIT = 103  # bytes; macOS, Linux allows 107
_POINTER = "location"
_DATA = re.compile(r"data-(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The paths of one server."""

    folder: Path
    location: Path
    sockets: Path
    account: Account

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts or stops the server."""
        return self.folder / "start.lock"

    @property
    def watch_lock(self) -> Path:
        """Held by the watchdog."""
        return self.folder / "watch.lock"

    @property
    def server_lock(self) -> Path:
        """Held by the postmaster and all its processes."""
        return self.folder / "server.lock"

    @property
    def log(self) -> Path:
        """What PostgreSQL and the watchdog print."""
        return self.folder / "postgres.log"

    @property
    def url(self) -> str:
        """The URL of the one database."""
        return socket_url(self.sockets, DATABASE)

    @property
    def maintenance_url(self) -> str:
        """The URL of the database that `initdb` makes."""
        return socket_url(self.sockets, "postgres")

    def data(self, major: int) -> Path:
        """Return the data folder of PostgreSQL `major`."""
        return self.location / f"data-{major}"

    def majors(self) -> list[int]:
        """Return the major versions that have data here, newest first."""
        if not self.location.is_dir():
            return []
        found = (_DATA.fullmatch(entry.name) for entry in self.location.iterdir())
        return sorted((int(match[1]) for match in found if match), reverse=True)


def default_folder() -> Path:
    """Return `$DAGSTER_HOME/postgres`, else a folder of this user's own data."""
    if dagster_home := os.environ.get("DAGSTER_HOME"):
        return Path(dagster_home) / "postgres"
    if (data_home := os.environ.get("XDG_DATA_HOME")) and os.path.isabs(data_home):  # noqa: PTH117 - a string still
        return Path(data_home) / "dagster-idempotent" / "postgres"
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 - Path.expanduser raises for a user without an entry
    if home.is_dir() and os.access(home, os.W_OK | os.X_OK):
        return home / ".local" / "share" / "dagster-idempotent" / "postgres"
    # Services and containers run users whose home does not exist.
    own = Path(f"/var/tmp/dagster-idempotent-{os.geteuid()}")  # noqa: S108 - checked by make_private
    make_private(own, Account(uid=os.geteuid(), gid=os.getegid()))
    return own / "postgres"


def find(folder: Path | None) -> Place:
    """Read where the server of `folder` is, or would be; nothing is written."""
    folder = Path(os.path.realpath(folder or default_folder()))
    pointer = folder / _POINTER
    location = Path(pointer.read_text().strip()) if pointer.is_file() else folder
    return _place(folder, location)


def settle(place: Place) -> Place:
    """Decide where the data goes and make its folders; to be called with the start lock held.

    As root, data of a folder that the server's account cannot reach lives below /var/lib/dagster-idempotent,
    and the file `location` in the folder says where; no mode of an existing folder is changed.
    """
    if place.account.is_other() and place.location == place.folder and not place.majors():
        long = _too_long(place.folder / "socket")
        if long or not place.account.reaches(place.folder):
            place = _relocate(place)
    if place.location != place.folder:
        place.location.mkdir(parents=True, exist_ok=True)
        place.location.chmod(0o711)  # whatever the umask is
    if place.sockets.parent != place.location:
        make_private(place.sockets.parent, place.account)
    make_private(place.sockets, place.account)
    return place


def make_folder(place: Place) -> None:
    """Make the asked folder; root leaves it open to enter for the server's account."""
    mode = 0o711 if place.account.is_other() else 0o700
    try:
        place.folder.parent.mkdir(parents=True, exist_ok=True)
        place.folder.mkdir(mode=mode, exist_ok=True)
    except OSError as error:
        raise EmbeddedPostgresError(
            f"Found no way to make the server's folder {place.folder}: {error.strerror}. "
            "Name a folder that this user may write to, by --folder or by DAGSTER_HOME.",
            path=place.folder,
        ) from error


def check_sockets(place: Place) -> bool:
    """Say whether there is a socket; refuse one in a folder that is not the account's alone."""
    if not place.sockets.exists():
        return False
    require_private(place.sockets, place.account)
    return (place.sockets / _SOCKET_NAME).exists()


def _place(folder: Path, location: Path) -> Place:
    data = sorted(location.glob("data-*"), reverse=True) if location.is_dir() else []
    account = account_for(*data, folder)
    return Place(folder=folder, location=location, sockets=_sockets(location, account), account=account)


def _sockets(location: Path, account: Account) -> Path:
    inside = location / "socket"
    if not _too_long(inside):
        return inside
    name = hashlib.sha256(os.fsencode(location)).hexdigest()[:16]
    # Not gettempdir(): every process has to come to the same path, whatever its TMPDIR is.
    return Path(f"/tmp/dagster-idempotent-{account.uid}") / name  # noqa: S108 - checked by require_private


def _too_long(sockets: Path) -> bool:
    return len(os.fsencode(sockets / _SOCKET_NAME)) > _SOCKET_LIMIT


def _relocate(place: Place) -> Place:
    # A fresh name each time: a folder that was removed and made again must not find its old data.
    name = hashlib.sha256(os.fsencode(place.folder)).hexdigest()[:8]
    location = root_home(place.account) / f"{name}-{secrets.token_hex(4)}"
    # The pointer comes first, so that a kill in between leaves no folder that nothing points to.
    draft = place.folder / f"{_POINTER}.new"
    draft.write_text(f"{location}\n")
    draft.replace(place.folder / _POINTER)
    return _place(place.folder, location)
