"""Records wait on disk until all are known: two may have one key, and those of a week are numbered by completion."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from dagster_idempotent.domain.legacy import LegacyRecord, Refusal, Verdict
from dagster_idempotent.domain.legacy_plan import Plan, Rules, examine


class Spool:
    """Takes records in any order, gives refusals and plans in the order of import.

    A record costs a few hundred bytes of memory, whatever it holds; the rest waits in a temporary file.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._plans: list[tuple[tuple[str, datetime, str, str], int]] = []
        self._refusals: list[tuple[str, int]] = []
        self._keys: Counter[bytes] = Counter()
        self._contents: Counter[bytes] = Counter()
        self._sources: Counter[str] = Counter()

    def add(self, item: LegacyRecord | Refusal) -> None:
        """Keep a record, or what an adapter says of one that it could not read."""
        examined = item if isinstance(item, Refusal) else examine(item, self._rules)
        if isinstance(examined, Refusal):
            self._refusals.append((examined.source, self._write([examined.source, examined.verdict, examined.reason])))
            return
        record = examined.record
        self._sources[record.source] += 1
        self._contents[bytes.fromhex(examined.record_sha256)] += 1
        if examined.identity is not None:
            self._keys[bytes.fromhex(examined.identity.run_id)] += 1
        self._plans.append((examined.order, self._write(record.model_dump(mode="json"))))

    def __len__(self) -> int:
        return len(self._plans) + len(self._refusals)

    def __iter__(self) -> Iterator[Plan | Refusal]:
        for _, offset in sorted(self._refusals):
            source, verdict, reason = self._read(offset)
            yield Refusal(source=source, verdict=Verdict(verdict), reason=reason)
        self._plans.sort()
        for _, offset in self._plans:
            yield self._judged(examine(LegacyRecord.model_validate(self._read(offset)), self._rules))

    def is_alone(self, source: str) -> bool:
        """Whether a directory holds one record only."""
        return self._sources[source] == 1

    def close(self) -> None:
        """Forget everything."""
        self._file.close()

    def _judged(self, plan: Plan | Refusal) -> Plan | Refusal:
        if isinstance(plan, Refusal):
            return plan
        label = plan.record.label
        if plan.identity is not None and self._keys[bytes.fromhex(plan.identity.run_id)] > 1:
            reason = f"another record has the key {plan.identity.allocation_key} too"
            return Refusal(source=label, verdict=Verdict.ONE_KEY, reason=reason)
        if self._contents[bytes.fromhex(plan.record_sha256)] > 1:
            reason = f"another record has the content {plan.record_sha256} too"
            return Refusal(source=label, verdict=Verdict.SAME_CONTENT, reason=reason)
        return plan

    def _write(self, value: object) -> int:
        offset = self._file.tell()
        self._file.write(json.dumps(value).encode() + b"\n")
        return offset

    def _read(self, offset: int) -> Any:  # noqa: ANN401 - what was written
        self._file.seek(offset)
        return json.loads(self._file.readline())
