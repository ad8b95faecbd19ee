"""Calls: the paid calls of a task as a transform function makes them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic, TypeVar, overload

from pydantic import BaseModel, ValidationError

from dagster_idempotent.domain.submission import CallKey, check_call_key
from dagster_idempotent.engine.call_map import keyed, run_calls
from dagster_idempotent.engine.call_result import CallResult
from dagster_idempotent.engine.guard import Guard, Request, Value
from dagster_idempotent.engine.work import Work
from dagster_idempotent.errors import CandidateInvalid, ConfigurationError
from dagster_idempotent.providers.outcome import Answer
from dagster_idempotent.providers.protocol import Provider

Model = TypeVar("Model", bound=BaseModel)
Accepted = TypeVar("Accepted")
Item = TypeVar("Item")
_NOT_KEPT = Answer(body=b"")


class Calls(Generic[Request, Value]):
    """The paid calls of one claimed task, to one provider."""

    def __init__(self, work: Work, provider: Provider[Request, Value]) -> None:
        self._guard = Guard(work, provider)
        self._provider = provider
        self.work = work

    def call(self, call: str, request: Request) -> Value:
        """Return the answer of one call, stored or paid for now; see `Guard.call` for what it raises."""
        return self._call(check_call_key(call), request).value

    @overload
    def ask(self, call: str, request: Request, *, accept: type[Model], tries: int = 1) -> Model: ...
    @overload
    def ask(self, call: str, request: Request, *, accept: Callable[[Value], Accepted], tries: int = 1) -> Accepted: ...
    def ask(
        self,
        call: str,
        request: Request,
        *,
        accept: type[BaseModel] | Callable[[Value], object],
        tries: int = 1,
    ) -> object:
        """Ask until an answer is acceptable, at most `tries` times, each try a call of its own.

        An answer that `accept` refuses (a pydantic model class, or a function that raises ValueError) stays stored
        and paid; the next try is the call `summary#2`, so that a bad answer is not replayed for ever. Raises
        CandidateInvalid after the last.
        """
        if tries < 1:
            raise ConfigurationError(f"tries is {tries}, expected at least 1.", field="tries")
        key = check_call_key(call)
        refusals: list[str] = []
        for number in range(1, tries + 1):
            result = self._call(key if number == 1 else CallKey(f"{key}#{number}"), request)
            try:
                if isinstance(accept, type) and issubclass(accept, BaseModel):
                    return accept.model_validate_json(self._provider.content(result.answer))
                return accept(result.value)
            except (ValidationError, ValueError) as error:
                refusals.append(f"{result.call_key}: {_first_line(error)}")
        raise CandidateInvalid(
            f"No answer of call {call!r} of task {self.work.task.task_id} was acceptable in {tries} "
            f"{'try' if tries == 1 else 'tries'}: {'; '.join(refusals)}. The answers are stored and paid for.",
            task_id=self.work.task.task_id,
            call_key=call,
            refusals=refusals,
        )

    @overload
    def map(
        self,
        items: Iterable[Item],
        *,
        key: Callable[[Item], str],
        request: Callable[[Item], Request],
        accept: None = None,
        tries: int = 1,
        concurrency: int = 16,
    ) -> list[Value]: ...
    @overload
    def map(
        self,
        items: Iterable[Item],
        *,
        key: Callable[[Item], str],
        request: Callable[[Item], Request],
        accept: type[Model],
        tries: int = 1,
        concurrency: int = 16,
    ) -> list[Model]: ...
    @overload
    def map(
        self,
        items: Iterable[Item],
        *,
        key: Callable[[Item], str],
        request: Callable[[Item], Request],
        accept: Callable[[Value], Accepted],
        tries: int = 1,
        concurrency: int = 16,
    ) -> list[Accepted]: ...
    def map(
        self,
        items: Iterable[Item],
        *,
        key: Callable[[Item], str],
        request: Callable[[Item], Request],
        accept: Any = None,
        tries: int = 1,
        concurrency: int = 16,
    ) -> list[Any]:
        """Ask once for every item, `concurrency` at a time, and return the answers in the order of the items.

        `accept` and `tries` are those of `ask`; without `accept` the provider's values are returned. A call that is in
        doubt, refused or unacceptable does not stop the others; CallsUnfinished lists them at the end. A later run
        replays what is answered and sends only the rest. A full budget ends it once what is under way has been paid.
        Requests are built when it is their turn, so that only those under way are in memory.
        """

        def one(name: CallKey, item: Item) -> object:
            if accept is None:
                return self._call(name, request(item)).value
            return self.ask(name, request(item), accept=accept, tries=tries)

        return run_calls(self.work, keyed(items, key), one, concurrency=concurrency)

    def _call(self, key: CallKey, request: Request) -> CallResult[Value]:
        result = self._guard.call(key, request)
        # Thousands of answers are not kept in memory for the sake of their metadata.
        self.work.results.append(replace(result, value=None, answer=_NOT_KEPT))
        return result


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = "/".join(str(part) for part in first["loc"]) or "the answer"
        return f"{where}: {first['msg']}"
    return str(error).partition("\n")[0][:200]
