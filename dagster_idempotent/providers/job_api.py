"""How one service's job API looks: where its paths lead, and where its answers say what."""

import re
from dataclasses import dataclass, field, fields
from datetime import timedelta

from dagster_idempotent.domain.backoff import Backoff
from dagster_idempotent.errors import ConfigurationError

_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_PLACES = ("id_at", "status_at", "progress_at", "error_at", "result_url_at", "result_at", "cost_at", "currency_at")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobApi:
    """A JSON job API, by configuration.

    Paths follow the base URL; `{id}` stands for the job's reference, `{key}` for the idempotency key. Places in an
    answer (`…_at`) are names with points between them: `output.url`. A result comes from one of `result_path`,
    `result_url_at` (an address in the status answer, which gets no credential on another host) or `result_at` (a part
    of the status answer itself). A status word that is in no list says nothing, and is asked about again.
    An accepted job without a result after `expected_within` (None: a day, or a longer poll budget) is shown as overdue.
    `look_up_path` is for services that list jobs by key; `look_up_at` is the list, and the search counts as complete
    unless `look_up_complete_at` is there and is not true. `settle_delay` includes the time until a new job is listed.
    """

    submit_path: str = "/jobs"
    status_path: str = "/jobs/{id}"
    result_path: str | None = None
    cancel_path: str | None = None
    look_up_path: str | None = None
    cancel_method: str = "POST"
    id_at: str = "id"
    status_at: str = "status"
    progress_at: str | None = None
    error_at: str | None = "error"
    result_url_at: str | None = None
    result_at: str | None = None
    cost_at: str | None = None
    currency_at: str | None = None
    currency: str | None = None
    look_up_at: str = "jobs"
    look_up_complete_at: str | None = None
    running: frozenset[str] = frozenset({"queued", "pending", "running", "processing", "in_progress"})
    succeeded: frozenset[str] = frozenset({"succeeded", "completed"})
    failed: frozenset[str] = frozenset({"failed"})
    cancelled: frozenset[str] = frozenset({"cancelled", "canceled"})
    key_header: str | None = "Idempotency-Key"
    key_window: timedelta | None = None
    settle_delay: timedelta = timedelta(minutes=10)
    poll_budget: timedelta = timedelta(minutes=30)
    expected_within: timedelta | None = None
    pace: Backoff = field(
        default_factory=lambda: Backoff(base=timedelta(seconds=2), factor=1.5, cap=timedelta(seconds=60), jitter=0.2)
    )

    def __post_init__(self) -> None:
        self._check_paths()
        self._check_places()
        self._check_words()
        results = [self.result_path, self.result_url_at, self.result_at]
        if sum(each is not None for each in results) != 1:
            raise _wrong(
                "result_path",
                f"{sum(each is not None for each in results)} of result_path, result_url_at and result_at "
                "are given. Expected one: where the result of a finished job comes from.",
            )
        if self.key_window is not None and self.key_header is None:
            raise _wrong("key_header", "key_window is given without a key_header. Name the header that takes the key.")
        if self.cost_at is not None and (self.currency is None) == (self.currency_at is None):
            raise _wrong("currency", "cost_at needs either `currency` or `currency_at`. An amount alone is no cost.")
        for name in ("settle_delay", "poll_budget", "expected_within"):
            if (getattr(self, name) or timedelta(0)) < timedelta(0):
                raise _wrong(name, f"{name} is {getattr(self, name)}. Expected zero or more.")

    def _check_paths(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if not each.name.endswith("_path") or value is None:
                continue
            if not isinstance(value, str) or not value.startswith("/"):
                raise _wrong(
                    each.name, f'{each.name} is {value!r}. Expected a path below the base URL, such as "/jobs".'
                )
            wanted = {"status_path": "{id}", "result_path": "{id}", "cancel_path": "{id}", "look_up_path": "{key}"}
            needed = wanted.get(each.name)
            if needed is not None and needed not in value:
                raise _wrong(each.name, f"{each.name} is {value!r}. Expected {needed} in it, where the job is named.")

    def _check_places(self) -> None:
        for name in (*_PLACES, "look_up_at", "look_up_complete_at"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, str) and _PATH.fullmatch(value)):
                raise _wrong(
                    name, f'{name} is {value!r}. Expected names with points between them, such as "output.url".'
                )

    def _check_words(self) -> None:
        lists = {name: getattr(self, name) for name in ("running", "succeeded", "failed", "cancelled")}
        seen: dict[str, str] = {}
        for name, words in lists.items():
            if isinstance(words, str):
                raise _wrong(name, f"{name} is the text {words!r}. Expected a set of words: {{{words!r}}}.")
            for word in words:
                if word in seen:
                    raise _wrong(name, f"The status {word!r} is in {seen[word]} and in {name}. It can mean one thing.")
                seen[word] = name
        for name in ("running", "succeeded"):
            if not lists[name]:
                raise _wrong(name, f"{name} is empty. Expected the words that the service uses for it.")


def _wrong(name: str, text: str) -> ConfigurationError:
    return ConfigurationError(f"{text} Nothing was sent.", field=name)
