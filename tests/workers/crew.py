"""Worker processes for tests: imports once, then forks one worker for each connection to its unix socket.

A worker obeys JSON lines and answers each with one. Its first line tells its pid. It ends with its connection.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from orders import Order
from worker import Worker

from dagster_idempotent.providers.single_send import _httpcore, _tls


def plain(value: object) -> object:
    return str(value) if isinstance(value, datetime | timedelta | UUID) else value


def serve(connection: socket.socket) -> None:
    worker = Worker()
    with connection, connection.makefile("rw") as lines:
        lines.write(json.dumps({"pid": os.getpid()}) + "\n")
        lines.flush()
        for line in lines:
            order = json.loads(line)
            os.environ.update(order.pop("environment", {}))
            action: Callable[[Order], object] = getattr(worker, order.pop("do"))
            try:
                answer = {"value": action(order)}
            except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the test judges every error
                facts = {name: plain(fact) for name, fact in getattr(error, "facts", {}).items()}
                answer = {"error": type(error).__name__, "text": str(error), "facts": facts}
            lines.write(json.dumps(answer, default=str) + "\n")
            lines.flush()


def main(path: Path) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # What every worker would load within its first, short send window.
    _httpcore()
    _tls()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            connection, _ = listener.accept()
            if os.fork() == 0:
                listener.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                # A shell that starts tests in the background has them ignore it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                serve(connection)
                os._exit(0)
            connection.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
