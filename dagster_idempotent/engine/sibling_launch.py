"""How a task without launch data would be launched, by what is known of its siblings: an imported one, for example."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, cast
from zoneinfo import ZoneInfo

Row = Mapping[str, Any]
# As Dagster names the windows of its partitions, unless told otherwise.
_FORMATS = ("%Y-%m-%d", "%Y-%m-%d-%H:%M", "%Y-%m")
_BY_KEY = "explicit_key"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotKnown:
    """No launch of the task is known, and why."""

    why: str


def launch_like(task: Row, siblings: Sequence[Row]) -> Mapping[str, Any] | NotKnown:
    """Return the launch of a task as its siblings were launched; nothing is guessed that they do not show.

    `siblings` are tasks of the same pipeline and version, with or without a subject as the task, each launched from
    Dagster. A wrong name would be refused by Dagster, which knows its partitions; a wrong time would be another task.
    """
    if task["origin"] == "unrelated":
        return NotKnown(why="no launch leads to it: it was imported without an identity")
    if task["scheduled_at"] is None:
        return NotKnown(why="it has no scheduled time by which a partition or a tick would name it")
    known = [row for row in siblings if not _is_keyed(row["launch"])]
    if not known:
        return NotKnown(why="no task like it was launched from Dagster yet, which would tell the job")
    newest: Mapping[str, Any] = known[0]["launch"]
    if not newest["partition_key"]:
        return {**newest, "partition_key": None}
    zones = (UTC, ZoneInfo(str(known[0]["timezone"])))
    keys = _keys(task, [row for row in known if row["launch"]["partition_key"]], zones)
    if len(keys) == 1:
        return {**newest, "partition_key": keys.pop()}
    shown = newest["partition_key"]
    return NotKnown(why=f"its time and subject do not say which partition it is, among such as {shown!r}")


def _keys(task: Row, siblings: Sequence[Row], zones: Sequence[tzinfo]) -> set[str]:
    """Return the partition keys that the task has by every way of naming that explains all its siblings."""
    found: set[str] = set()
    for zone in zones:
        for text in _FORMATS:
            for subject_first in (True, False):
                explained = all(
                    row["launch"]["partition_key"] == _key(row, zone, text, subject_first=subject_first)
                    for row in siblings
                )
                key = _key(task, zone, text, subject_first=subject_first)
                if explained and key is not None:
                    found.add(key)
    return found


def _key(row: Row, zone: tzinfo, text: str, *, subject_first: bool) -> str | None:
    """Name a partition; None where its window would start at another time than the row's."""
    instant: datetime = row["scheduled_at"].astimezone(zone)
    time = instant.strftime(text)
    if datetime.strptime(time, text).replace(tzinfo=zone) != instant:
        return None
    parts = [row["subject"], time] if subject_first else [time, row["subject"]]
    return "|".join(parts) if row["subject"] else time


def _is_keyed(launch: Mapping[str, Any]) -> bool:
    """Whether a launch named its task by an explicit key, which would name that task again."""
    return _BY_KEY in _names(launch.get("ops"))


def _names(value: object) -> Iterator[str]:
    """Name everything that some run config sets, at any depth."""
    if isinstance(value, dict):
        for name, below in cast("dict[str, object]", value).items():
            yield name
            yield from _names(below)
