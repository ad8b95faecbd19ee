"""The file channel: one file per task and channel, written whole or not at all, harmless to write twice (R33)."""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

from dagster_idempotent.domain.outbox import Message


class FileChannel:
    """Writes each message to `folder/<pipeline>/<task_id>.<channel>.json`."""

    deduplicates = True

    def __init__(self, folder: Path | str) -> None:
        self._folder = Path(folder)

    def path_of(self, message: Message) -> Path:
        """Return where a message goes: fixed by its task and channel."""
        return self._folder / message.pipeline / f"{message.task_id}.{message.channel}.json"

    def deliver(self, message: Message, *, window: timedelta) -> str:  # noqa: ARG002 - writing late is harmless here
        """Write the payload atomically and return the path."""
        path = self.path_of(message)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = Path(file.name)
            file.write(message.payload.encode())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
        return str(path)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable, as fsync of a file alone does not."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
