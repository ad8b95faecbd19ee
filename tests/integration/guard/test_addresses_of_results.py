"""Addresses of results as services write them: in any language, or broken, which is no end of a job."""

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from dagster_idempotent.errors import RemoteJobUnfinished

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

PROMPT: dict[str, object] = {"prompt": "a forest"}


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/v1/jobs/forêt", "no job for"),
        ("http://[::1/film", "address that is none"),
        ("http://127.0.0.1:99999/film", "address that is none"),
    ],
)
def test_an_address_that_leads_nowhere_is_told_and_the_job_goes_on(bench: "Bench", address: str, said: str) -> None:
    job = bench.unfinished()
    done = json.dumps({"id": job, "status": "succeeded", "url": address}, ensure_ascii=False)
    bench.metered.fault("status", status=200, body=done, path_contains="GET /v1/jobs/")
    with pytest.raises(RemoteJobUnfinished, match=said):
        bench.call(bench.studio(result_path=None, result_url_at="url", poll_budget=timedelta(0)), PROMPT)
    assert bench.states() == ["accepted"]
    assert bench.charges == 1
