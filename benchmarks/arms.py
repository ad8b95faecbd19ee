"""The floor, and each step of the library that a task pays for."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import cached_property

from pydantic import BaseModel

from benchmarks.measuring import FLOOR, Arm
from dagster_idempotent.domain.identity import Identity
from dagster_idempotent.domain.money import Money
from dagster_idempotent.domain.pipeline import Pipeline
from dagster_idempotent.domain.submission import IdempotencyKey, LookUp, check_call_key
from dagster_idempotent.domain.task import Owner, Task
from dagster_idempotent.engine import stages
from dagster_idempotent.engine.allocator import Allocator
from dagster_idempotent.engine.guard import Guard
from dagster_idempotent.engine.heartbeat import Heartbeat
from dagster_idempotent.engine.work import Work, claim
from dagster_idempotent.providers.outcome import Answer, NotFound, Succeeded
from dagster_idempotent.providers.send_window import SendWindow
from dagster_idempotent.store.database import Connection, Database

_OWNER = Owner("benchmark")
_FIRST = datetime(2026, 1, 5, tzinfo=UTC)


class Output(BaseModel):
    """The output of the measured pipeline."""

    text: str


class InstantProvider:
    """Answers in this process at once, so that only the ledger's work is measured."""

    name = "instant"
    lookup = LookUp.NONE
    settle_delay = timedelta(seconds=1)
    key_window = None

    def operation(self, request: dict[str, str]) -> str:
        """Send every request to one place."""
        del request
        return "answers"

    def payload(self, request: dict[str, str]) -> object:
        """Fingerprint the request itself."""
        return request

    def estimate(self, request: dict[str, str]) -> Money:
        """Reserve a cent."""
        del request
        return Money.parse("0.01 USD")

    def submit(self, request: dict[str, str], *, key: IdempotencyKey, window: SendWindow) -> Succeeded:
        """Answer."""
        del key
        window.before_write()
        return Succeeded(answer=Answer(body=request["prompt"].encode()), cost=Money.parse("0.01 USD"))

    def find(self, keys: Sequence[IdempotencyKey]) -> NotFound:
        """Find nothing: no answer is ever lost here."""
        del keys
        return NotFound(complete=False)

    def decode(self, answer: Answer) -> str:
        """Give the text of the answer."""
        return answer.body.decode()

    def content(self, answer: Answer) -> bytes:
        """Give the answer as it is."""
        return answer.body


class Steps:
    """The steps of one pipeline's tasks; task n is allocated for hour n."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._allocator = Allocator(database)
        self._heartbeat = Heartbeat(database)
        self._pipeline: Pipeline[BaseModel] = Pipeline("benchmark", output=Output)
        self._tasks: dict[int, Task] = {}
        self._claimed: dict[int, Work] = {}

    def arms(self) -> Iterator[Arm]:
        """Give the steps in the order in which a task takes them."""
        yield Arm(name="allocate a new key", operate=self._allocate)
        yield Arm(name="allocate a known key", prepare=self._allocate, operate=self._allocate)
        yield Arm(name="claim", prepare=self._allocate, operate=self._claim)
        yield Arm(name="paid call: intent and outcome", operate=self._call)
        yield Arm(name="replayed call", operate=self._replay)
        yield Arm(name="persist", prepare=self._claim_new, operate=self._persist)

    def _allocate(self, n: int) -> None:
        identity = Identity(pipeline="benchmark", subject="", scheduled_at=_FIRST + timedelta(hours=n))
        self._tasks[n] = self._allocator.allocate(self._pipeline, identity)

    def _claim(self, n: int) -> None:
        task = self._tasks[n]
        self._claimed[n] = claim(
            self._database, self._heartbeat, self._pipeline, task.task_id, _OWNER, is_finished=lambda _: False
        )

    def _claim_new(self, n: int) -> None:
        self._allocate(n)
        self._claim(n)

    @cached_property
    def _guard(self) -> Guard[dict[str, str], str]:
        self._claim_new(0)
        return Guard(self._claimed[0], InstantProvider())

    def _call(self, n: int) -> None:
        self._guard.call(check_call_key(f"call-{n}"), {"prompt": "a short question"})

    def _replay(self, n: int) -> None:
        del n  # one call for all: the first warm-up pays it
        self._guard.call(check_call_key("paid"), {"prompt": "a short question"})

    def _persist(self, n: int) -> None:
        stages.persist(self._claimed[n], {"text": "done"}, dagster_run_id=_OWNER)


def floor(connection: Connection) -> Iterator[Arm]:
    """One INSERT that commits, and one read of a key, through psycopg as the ledger uses it."""
    connection.execute("CREATE TABLE benchmark_floor (key text PRIMARY KEY, body text NOT NULL)")
    insert = "INSERT INTO benchmark_floor VALUES (%s, %s) ON CONFLICT DO NOTHING RETURNING key"
    yield Arm(name=FLOOR, operate=lambda n: connection.execute(insert, [f"k{n}", "x" * 200]).fetchone())
    read = "SELECT body FROM benchmark_floor WHERE key = %s"
    yield Arm(name="floor: one read", operate=lambda n: connection.execute(read, [f"k{n}"]).fetchone())


def all_arms(database: Database, connection: Connection) -> Iterator[Arm]:
    """Give every arm, the floor first, on a connection of its own."""
    yield from floor(connection)
    yield from Steps(database).arms()
