"""The file channel: one file per task and channel, written whole or not at all, harmless to write twice (R33)."""

from datetime import timedelta

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.engine.files import Folder, folder_at, safe_name, write_whole


class FileChannel:
    """Writes each message to `folder/<pipeline>/<task_id>.<channel>.json`; see `write_artifact` for the folder."""

    deduplicates = True

    def __init__(self, folder: Folder | str) -> None:
        self._folder = folder_at(folder)

    def path_of(self, message: Message) -> Folder:
        """Return where a message goes: fixed by its task and channel."""
        return self._folder / message.pipeline / safe_name(f"{message.task_id}.{message.channel}.json")

    def deliver(self, message: Message, *, window: timedelta) -> str:  # noqa: ARG002 - writing late is harmless here
        """Write the payload and return the path."""
        path = self.path_of(message)
        write_whole(path, message.payload.encode())
        return str(path)
