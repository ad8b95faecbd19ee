"""Imports old records in forked children, so that a test can kill one and start the next without loading again.

Reads orders as JSON lines; answers each with a line that tells the child's pid, then one with its end.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from dagster_idempotent.domain.legacy import WithoutIdentity
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.engine.legacy_import import Import, import_records
from dagster_idempotent.store.database import Database


class Digest(BaseModel):
    title: str


def do(order: dict[str, Any]) -> None:
    what = Import(
        pipeline=Pipeline("weekly_digest", output=Digest),
        folder=Path(order["folder"]),
        move_to=Path(order["move_to"]) if order.get("move_to") else None,
        without_identity=WithoutIdentity(order.get("without_identity", "refuse")),
        actor="ada",
        reason="history",
    )
    summary = import_records(Database(order["url"]), what)
    sys.stdout.write(json.dumps({"verdicts": summary.verdicts}) + "\n")
    sys.stdout.flush()


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            do(json.loads(line))
            os._exit(0)
        sys.stdout.write(json.dumps({"pid": pid}) + "\n")
        sys.stdout.flush()
        _, status, usage = os.wait4(pid, 0)
        sys.stdout.write(json.dumps({"status": status, "peak": usage.ru_maxrss}) + "\n")
        sys.stdout.flush()


main()
