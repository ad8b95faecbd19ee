"""The metered provider's jobs and batches: charged once on acceptance, driven by a test, spoiled on demand."""

import http.client
import io
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any, cast

import openai
import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredProvider]:
    with MeteredProvider.start(tmp_path_factory.mktemp("provider"), job_polls=0) as started:
        yield started


@pytest.fixture
def provider(shared: MeteredProvider) -> Iterator[MeteredProvider]:
    yield shared
    shared.clear_faults()
    shared.configure(deduplicate=False, lookup=True)


def ask(provider: MeteredProvider, method: str, path: str, payload: object = None, **headers: str) -> tuple[int, bytes]:
    address = provider.control_url.removeprefix("http://")
    with closing(http.client.HTTPConnection(address, timeout=30)) as connection:
        body = None if payload is None else json.dumps(payload)
        connection.request(method, f"/v1{path}", body, {"Authorization": "Bearer k", **headers})
        with connection.getresponse() as response:
            return response.status, response.read()


def told(provider: MeteredProvider, method: str, path: str, payload: object = None, **headers: str) -> dict[str, Any]:
    status, body = ask(provider, method, path, payload, **headers)
    assert status == 200, body
    return json.loads(body)


def submitted(provider: MeteredProvider, **payload: object) -> str:
    return told(provider, "POST", "/jobs", {"prompt": "a forest", **payload})["id"]


def test_a_job_is_charged_when_it_is_accepted_and_moved_by_nobody_but_the_test(provider: MeteredProvider) -> None:
    before = provider.charges
    job = submitted(provider)
    assert provider.charges == before + 1
    assert [told(provider, "GET", f"/jobs/{job}")["status"] for _ in range(3)] == ["queued"] * 3
    assert ask(provider, "GET", f"/jobs/{job}/result")[0] == 409
    provider.drive(job, "running", progress=0.5)
    assert told(provider, "GET", f"/jobs/{job}")["progress"] == 0.5
    provider.drive(job, "succeeded")
    view = told(provider, "GET", f"/jobs/{job}")
    assert (view["status"], view["cost"]) == ("succeeded", {"amount": "0.02", "currency": "USD"})
    first, again = (ask(provider, "GET", f"/jobs/{job}/result") for _ in range(2))
    assert first == again
    assert first[1].startswith(PNG)
    assert provider.charges == before + 1


def test_a_job_that_nobody_drives_is_done_after_its_polls(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("polled")
    with MeteredProvider.start(folder, job_polls=3) as provider:
        job = submitted(provider, bytes=3_000_000)
        assert [told(provider, "GET", f"/jobs/{job}")["status"] for _ in range(2)] == ["running"] * 2
        provider.kill()
        provider.restart()
        assert told(provider, "GET", f"/jobs/{job}")["status"] == "succeeded"
        assert len(ask(provider, "GET", f"/jobs/{job}/result")[1]) == 3_000_000
        assert provider.jobs()[-1].polls == 3


def test_a_failed_and_a_cancelled_job_have_no_result_and_stay_on_the_bill(provider: MeteredProvider) -> None:
    before = provider.charges
    failed, cancelled = submitted(provider), submitted(provider)
    provider.drive(failed, "failed", error="no light")
    assert told(provider, "POST", f"/jobs/{cancelled}/cancel")["status"] == "cancelled"
    assert told(provider, "GET", f"/jobs/{failed}")["error"] == {"message": "no light"}
    assert [ask(provider, "GET", f"/jobs/{each}/result")[0] for each in (failed, cancelled)] == [409, 409]
    # What has ended is not ended otherwise by a cancellation.
    assert told(provider, "POST", f"/jobs/{failed}/cancel")["status"] == "failed"
    assert provider.charges == before + 2


def test_jobs_are_found_by_their_key_and_repeated_keys_are_honoured_on_request(provider: MeteredProvider) -> None:
    key = {"Idempotency-Key": "shot-1"}
    job = told(provider, "POST", "/jobs", {"prompt": "x"}, **key)["id"]
    assert [each["id"] for each in told(provider, "GET", "/jobs?key=shot-1")["jobs"]] == [job]
    assert told(provider, "GET", "/jobs?key=other") == {"jobs": [], "complete": True}
    provider.configure(deduplicate=True)
    assert told(provider, "POST", "/jobs", {"prompt": "x"}, **key)["id"] == job
    provider.configure(lookup=False)
    assert ask(provider, "GET", "/jobs?key=shot-1")[0] == 404


def test_faults_reach_a_submission_and_where_its_path_is_named_what_is_free(provider: MeteredProvider) -> None:
    before = provider.charges
    provider.fault("accept_then_drop")
    with pytest.raises(http.client.RemoteDisconnected):
        submitted(provider)
    assert provider.charges == before + 1
    job = submitted(provider)
    provider.drive(job, "succeeded")
    provider.fault("status", status=500, path_contains="GET /v1/jobs")
    assert ask(provider, "GET", f"/jobs/{job}")[0] == 500
    provider.fault("half_answer", path_contains="/result")
    with pytest.raises(http.client.IncompleteRead):
        ask(provider, "GET", f"/jobs/{job}/result")
    assert ask(provider, "GET", f"/jobs/{job}/result")[0] == 200
    assert provider.charges == before + 2


def test_a_batch_of_the_official_client_is_one_charge(provider: MeteredProvider) -> None:
    before = provider.charges
    lines = [
        json.dumps(
            {
                "custom_id": f"c{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": []},
            }
        )
        for n in range(3)
    ]
    with openai.OpenAI(api_key="k", base_url=provider.base_url, max_retries=0) as client:
        file = client.files.create(file=("in.jsonl", io.BytesIO("\n".join(lines).encode())), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"call": "a"}
        )
        assert client.batches.retrieve(batch.id).status == "validating"
        provider.drive(batch.id, "succeeded")
        done = client.batches.retrieve(batch.id)
        assert done.request_counts is not None
        assert (done.status, done.request_counts.completed) == ("completed", 3)
        output = client.files.content(cast("str", done.output_file_id)).content
        assert [json.loads(line)["custom_id"] for line in output.splitlines()] == ["c0", "c1", "c2"]
        assert [each.id for each in client.batches.list(limit=1)][:1] == [batch.id]
    assert provider.charges == before + 1
