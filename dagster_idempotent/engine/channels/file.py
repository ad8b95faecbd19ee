"""The file channel: one file per task and channel, written whole or not at all, harmless to write twice (R33)."""

from datetime import timedelta
from pathlib import Path

from dagster_idempotent.domain.outbox import Message
from dagster_idempotent.engine.files import safe_name, write_file


class FileChannel:
    """Writes each message to `folder/<pipeline>/<task_id>.<channel>.json`."""

    deduplicates = True

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def path_of(self, message: Message) -> Path:
        """Return where a message goes: fixed by its task and channel."""
        return self._folder / message.pipeline / safe_name(f"{message.task_id}.{message.channel}.json")

    def deliver(self, message: Message, *, window: timedelta) -> str:  # noqa: ARG002 - writing late is harmless here
        """Write the payload atomically and return the path."""
        path = self.path_of(message)
        write_file(path, message.payload.encode())
        return str(path)
