"""What a provider says of a remote job after it took the job in."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRunning:
    """The job has not ended; `progress` is a share from 0 to 1, None where nobody says."""

    progress: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """The job has ended well and its result can be fetched; `facts` are what the provider said."""

    facts: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed:
    """The job's own end without a result, also by a cancellation; its cost stays."""

    reason: str
    cancelled: bool = False
    facts: Mapping[str, object] = field(default_factory=dict[str, object])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobUnknown:
    """The question got no answer that says anything about the job."""

    reason: str


JobState = JobRunning | JobDone | JobFailed | JobUnknown
