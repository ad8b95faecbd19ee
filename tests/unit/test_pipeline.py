from datetime import timedelta

import pytest
from pydantic import BaseModel

from dagster_idempotent import Pipeline
from dagster_idempotent.errors import ConfigurationError


class Digest(BaseModel):
    title: str


def test_a_lease_is_renewed_every_third_of_its_length_unless_told_otherwise() -> None:
    assert Pipeline("p", output=Digest, lease="9m").renew_every == timedelta(minutes=3)
    assert Pipeline("p", output=Digest, lease="9m", renew_every="10s").renew_every == timedelta(seconds=10)
    assert Pipeline("p", output=Digest, lease="9m", renew_every=timedelta(minutes=4.5)).renew_every


@pytest.mark.parametrize("too_long", ["5m1s", "10m", "1h"])
def test_a_renewal_above_half_of_the_lease_is_refused_when_the_pipeline_is_declared(too_long: str) -> None:
    with pytest.raises(ConfigurationError, match="at most half of the lease") as refusal:
        Pipeline("p", output=Digest, lease="10m", renew_every=too_long)
    assert refusal.value.facts["field"] == "renew_every"


@pytest.mark.parametrize("nonsense", ["0s", "-1s", 5, "often"])
def test_a_renewal_that_is_no_positive_duration_is_refused(nonsense: object) -> None:
    with pytest.raises(ConfigurationError):
        Pipeline("p", output=Digest, renew_every=nonsense)  # pyright: ignore[reportArgumentType]


def test_a_send_window_that_reaches_the_senders_lease_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="must be shorter than sender_lease"):
        Pipeline("p", output=Digest, sender_lease="10s", send_window="10s")
