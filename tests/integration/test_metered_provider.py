import http.client
import json
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from dagster_idempotent.errors import ConfigurationError
from dagster_idempotent.testing.metered_provider import MeteredProvider, MeteredProviderError, ProviderControl

MODULE = "dagster_idempotent.testing.metered_provider"
PAID_PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)

    @property
    def content(self) -> str:
        return self.json["choices"][0]["message"]["content"]


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[MeteredProvider]:
    with MeteredProvider.start(tmp_path / "provider") as started:
        yield started


def send(
    provider: ProviderControl,
    method: str = "POST",
    path: str = PAID_PATH,
    *,
    body: bytes | None = None,
    key: str | None = "secret-key",
    **headers: str,
) -> Reply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if key is not None:
        named["Authorization"] = f"Bearer {key}"
    connection = http.client.HTTPConnection(urlsplit(provider.base_url).netloc, timeout=30)
    try:
        connection.request(method, path, body, named)
        response = connection.getresponse()
        return Reply(status=response.status, headers=dict(response.getheaders()), body=response.read())
    finally:
        connection.close()


def chat(text: str = "Fresh news\nMore news", **fields: object) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], **fields}).encode()


def ask(provider: ProviderControl, text: str = "Fresh news\nMore news", **headers: str) -> Reply:
    return send(provider, body=chat(text), **headers)


def look_up(provider: ProviderControl, reference: str) -> Reply:
    return send(provider, "GET", f"/v1/lookup?{urlencode({'client_reference': reference})}")


class TestAnswers:
    def test_an_answer_is_a_valid_chat_completion(self, provider: MeteredProvider) -> None:
        reply = ask(provider)

        assert reply.status == 200
        assert reply.json["object"] == "chat.completion"
        assert reply.json["model"] == "m"
        assert reply.json["id"] == reply.headers["x-request-id"]
        assert reply.json["choices"][0]["finish_reason"] == "stop"
        usage = reply.json["usage"]
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]

    def test_each_answer_carries_its_number_and_differs_from_the_last(self, provider: MeteredProvider) -> None:
        first, second = ask(provider), ask(provider)

        assert "answer 1" in first.content
        assert "answer 2" in second.content
        assert first.json["id"] != second.json["id"]

    @pytest.mark.parametrize(
        "wish",
        [
            {"response_format": {"type": "json_object"}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "digest", "schema": {}}}},
            {"metadata": {"format": "json"}},
        ],
    )
    def test_an_answer_is_json_where_the_request_asks_for_json(
        self, provider: MeteredProvider, wish: dict[str, object]
    ) -> None:
        digest = json.loads(send(provider, body=chat(**wish)).content)

        assert "answer 1" in digest["title"]
        assert digest["highlights"] == ["Fresh news", "More news"]

    def test_concurrent_requests_are_each_charged_and_numbered_once(self, provider: MeteredProvider) -> None:
        together = threading.Barrier(32)

        def one(index: int) -> str:
            together.wait(30)
            return ask(provider, X_Client_Request_Id=f"caller-{index}").content

        with ThreadPoolExecutor(32) as pool:
            contents = list(pool.map(one, range(32)))

        bill = provider.bill()
        assert bill.charges == 32
        assert [line.number for line in bill.lines] == list(range(1, 33))
        assert {line.client_reference for line in bill.lines} == {f"caller-{index}" for index in range(32)}
        for number in range(1, 33):
            assert sum(f"answer {number}," in content for content in contents) == 1


class TestBill:
    def test_each_accepted_request_is_charged_also_under_a_repeated_key(self, provider: MeteredProvider) -> None:
        for _ in range(3):
            ask(provider, Idempotency_Key="same")

        bill = provider.bill()
        assert (bill.charges, bill.total, bill.currency) == (3, Decimal("0.06"), "USD")
        assert {line.client_reference for line in bill.lines} == {"same"}

    def test_an_empty_bill_is_zero(self, provider: MeteredProvider) -> None:
        assert (provider.charges, provider.bill().total) == (0, Decimal(0))

    def test_price_and_currency_can_be_set(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, price="1.5", currency="EUR") as provider:
            ask(provider)
            assert (provider.bill().total, provider.bill().currency) == (Decimal("1.5"), "EUR")

    def test_the_charge_is_on_disk_before_the_answer(self, provider: MeteredProvider) -> None:
        provider.fault("hold")
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k")
            (held,) = provider.wait_held(1, timeout=30)
            provider.kill()
            with pytest.raises(ConnectionError):
                reply.result(30)

        provider.restart()

        assert held.accepted
        assert provider.charges == 1
        assert provider.bill().lines[0].client_reference == "k"
        assert not provider.bill().lines[0].finished

    def test_a_restart_continues_numbers_bill_and_port(self, provider: MeteredProvider) -> None:
        ask(provider)
        address = provider.base_url

        provider.kill()
        provider.restart()

        assert provider.base_url == address
        assert "answer 2" in ask(provider).content
        assert [line.number for line in provider.bill().lines] == [1, 2]
        assert [request.sequence for request in provider.requests()] == [1, 2]


class TestRefusals:
    def test_a_request_without_a_credential_is_refused_and_not_charged(self, provider: MeteredProvider) -> None:
        assert send(provider, body=chat(), key=None).status == 401
        assert send(provider, body=chat(), key="").status == 401
        assert provider.charges == 0

    def test_a_required_key_is_the_only_one_accepted(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("METERED_KEY", "right")
        with MeteredProvider.start(tmp_path, require_key="METERED_KEY") as provider:
            assert send(provider, body=chat(), key="wrong").status == 401
            assert send(provider, body=chat(), key="right").status == 200
            assert provider.charges == 1

    @pytest.mark.parametrize(
        ("body", "wrong"),
        [
            (b"{", "JSON object"),
            (b"[]", "JSON object"),
            (b'{"model": "m"}', "messages"),
        ],
    )
    def test_a_request_that_makes_no_sense_is_refused_and_says_why(
        self, provider: MeteredProvider, body: bytes, wrong: str
    ) -> None:
        reply = send(provider, body=body)

        assert reply.status == 400
        assert wrong in reply.json["error"]["message"]
        assert provider.charges == 0

    def test_another_path_or_method_is_refused_but_counted(self, provider: MeteredProvider) -> None:
        assert send(provider, path="/v1/unknown", body=chat()).status == 404
        assert send(provider, "GET").status == 405
        assert [request.outcome for request in provider.requests()] == ["refused", "refused"]


class TestRequests:
    def test_every_request_is_on_record_with_credentials_redacted(self, provider: MeteredProvider) -> None:
        ask(provider, Idempotency_Key="a", X_Api_Key="secret-key")
        send(provider, body=chat(), key=None)

        accepted, refused = provider.requests()
        assert (accepted.sequence, accepted.client_reference, accepted.outcome) == (1, "a", "accepted")
        assert (refused.sequence, refused.client_reference, refused.outcome) == (2, None, "refused")
        assert accepted.headers["authorization"] == "***"
        assert accepted.headers["idempotency-key"] == "a"
        assert "secret-key" not in repr(provider.requests())
        assert json.loads(accepted.body)["model"] == "m"

    def test_the_key_header_goes_before_the_client_request_id_and_the_metadata(self, provider: MeteredProvider) -> None:
        body = chat(metadata={"client_reference": "in-body"})
        send(provider, body=body, Idempotency_Key="key", X_Client_Request_Id="id")
        send(provider, body=body, X_Client_Request_Id="id")
        send(provider, body=body)

        assert [request.client_reference for request in provider.requests()] == ["key", "id", "in-body"]


class TestLookup:
    def test_look_up_lists_every_accepted_request_of_a_reference(self, provider: MeteredProvider) -> None:
        replies = [ask(provider, Idempotency_Key="wanted") for _ in range(2)]
        ask(provider, Idempotency_Key="other")

        found = look_up(provider, "wanted").json
        assert found["complete"] is True
        assert [each["id"] for each in found["requests"]] == [reply.json["id"] for reply in replies]
        assert [each["response"] for each in found["requests"]] == [reply.json for reply in replies]
        assert found["requests"][0]["charge"] == {"amount": "0.02", "currency": "USD"}

    def test_look_up_finds_nothing_under_an_unknown_reference(self, provider: MeteredProvider) -> None:
        assert look_up(provider, "unknown").json["requests"] == []

    def test_look_up_shows_no_response_of_unfinished_work_until_it_is_released(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            (unfinished,) = look_up(provider, "k").json["requests"]
            provider.release("k")
            answer = reply.result(30).json
        (finished,) = look_up(provider, "k").json["requests"]

        assert unfinished["response"] is None
        assert finished["response"] == answer

    def test_work_orphaned_by_a_kill_is_finished_by_a_release(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            provider.kill()
        provider.restart()
        (before,) = look_up(provider, "k").json["requests"]
        provider.release("k")
        (after,) = look_up(provider, "k").json["requests"]

        assert before["response"] is None
        assert after["response"]["id"] == before["id"]

    def test_look_up_can_be_missing(self, provider: MeteredProvider) -> None:
        provider.configure(lookup=False)
        assert look_up(provider, "k").status == 404

        provider.restart()
        assert look_up(provider, "k").status == 404
        assert provider.requests() == ()


class TestDeduplication:
    def test_a_repeated_key_replays_the_stored_answer_uncharged(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            first = ask(provider, Idempotency_Key="k")
            provider.restart()
            second = ask(provider, Idempotency_Key="k")

            assert second.body == first.body
            assert provider.charges == 1
            assert [request.outcome for request in provider.requests()] == ["accepted", "replayed"]

    def test_a_repeated_key_with_another_body_is_refused(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            ask(provider, "one", Idempotency_Key="k")
            assert ask(provider, "two", Idempotency_Key="k").status == 422
            assert provider.charges == 1

    def test_a_repeated_key_of_unfinished_work_is_refused(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider, ThreadPoolExecutor(1) as pool:
            first = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold")
            provider.wait_held()
            assert ask(provider, Idempotency_Key="k").status == 409
            provider.release()
            assert first.result(30).status == 200
            assert provider.charges == 1

    def test_one_request_may_choose_for_itself(self, provider: MeteredProvider) -> None:
        for _ in range(2):
            ask(provider, Idempotency_Key="k", X_Deduplicate="on")
        assert provider.charges == 1

        provider.configure(deduplicate=True)
        ask(provider, Idempotency_Key="k", X_Deduplicate="off")
        assert provider.charges == 2

    def test_requests_without_a_key_are_all_charged(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path, deduplicate=True) as provider:
            ask(provider)
            ask(provider)
            assert provider.charges == 2


class TestFaults:
    def test_accepted_then_dropped_is_charged_and_closes_without_a_byte(self, provider: MeteredProvider) -> None:
        provider.fault("accept_then_drop")

        with pytest.raises(http.client.RemoteDisconnected):
            ask(provider)

        assert provider.charges == 1

    def test_a_drop_may_reset_the_connection(self, provider: MeteredProvider) -> None:
        provider.fault("accept_then_drop", reset=True)

        with pytest.raises(ConnectionResetError) as caught:
            ask(provider)

        assert type(caught.value) is ConnectionResetError
        assert provider.charges == 1

    def test_dropped_before_accepting_is_not_charged(self, provider: MeteredProvider) -> None:
        provider.fault("drop_before_accepting")

        with pytest.raises(http.client.RemoteDisconnected):
            ask(provider)

        assert provider.charges == 0
        assert [request.outcome for request in provider.requests()] == ["dropped"]

    def test_a_held_answer_comes_when_it_is_released(self, provider: MeteredProvider) -> None:
        provider.fault("hold", times=2)
        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(ask, provider, Idempotency_Key=key) for key in ("a", "b")]
            held = provider.wait_held(2)
            charged_while_held = provider.charges
            assert provider.release("a") == 1
            assert replies[0].result(30).status == 200
            assert [entry.client_reference for entry in provider.held()] == ["b"]
            assert provider.release() == 1
            assert replies[1].result(30).status == 200

        assert {entry.client_reference for entry in held} == {"a", "b"}
        assert charged_while_held == 2

    def test_a_request_held_before_acceptance_is_charged_on_release(self, provider: MeteredProvider) -> None:
        with ThreadPoolExecutor(1) as pool:
            reply = pool.submit(ask, provider, Idempotency_Key="k", X_Fault="hold_before_accepting")
            (held,) = provider.wait_held()
            charged_while_held, found_while_held = provider.charges, look_up(provider, "k").json["requests"]
            provider.release()
            assert reply.result(30).status == 200

        assert not held.accepted
        assert (charged_while_held, found_while_held) == (0, [])
        assert provider.charges == 1

    def test_a_request_lands_late_although_its_client_is_gone(self, provider: MeteredProvider) -> None:
        address = urlsplit(provider.base_url)
        body = chat()
        head = (
            f"POST {PAID_PATH} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\nIdempotency-Key: k\r\n"
            f"X-Fault: hold_before_accepting\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection((address.hostname, address.port), 30) as client:
            client.sendall(head.encode() + body)
            provider.wait_held()

        provider.release()
        # The release only wakes the request; a later exchange on the same event loop sees it done.
        ask(provider, Idempotency_Key="later")

        assert [line.client_reference for line in provider.bill().lines] == ["k", "later"]

    @pytest.mark.parametrize(("status", "charged"), [(500, True), (503, False), (429, False), (400, False)])
    def test_a_status_is_charged_where_the_order_says_so(
        self, provider: MeteredProvider, status: int, *, charged: bool
    ) -> None:
        provider.fault("status", status=status, charged=charged)

        reply = ask(provider)

        assert reply.status == status
        assert "error" in reply.json
        assert provider.charges == int(charged)

    def test_a_status_may_have_its_own_body_and_headers(self, provider: MeteredProvider) -> None:
        provider.fault("status", status=429, body="slow down", headers={"Retry-After": "7"})

        reply = ask(provider)

        assert (reply.body, reply.headers["retry-after"]) == (b"slow down", "7")

    def test_garbage_is_a_charged_200_that_nobody_can_parse(self, provider: MeteredProvider) -> None:
        provider.fault("garbage")

        reply = ask(provider)

        assert reply.status == 200
        with pytest.raises(json.JSONDecodeError):
            _ = reply.json
        assert provider.charges == 1

    def test_half_an_answer_promises_all_of_it_and_hangs_up(self, provider: MeteredProvider) -> None:
        provider.fault("half_answer")

        with pytest.raises(http.client.IncompleteRead) as caught:
            ask(provider)

        assert caught.value.partial
        assert caught.value.expected
        assert provider.charges == 1

    def test_a_redirect_is_not_charged_but_following_it_is(self, provider: MeteredProvider) -> None:
        provider.fault("redirect")

        reply = ask(provider)
        assert reply.status == 307
        assert provider.charges == 0

        assert send(provider, path=reply.headers["location"], body=chat()).status == 200
        assert provider.charges == 1

    def test_an_answer_may_be_dictated(self, provider: MeteredProvider) -> None:
        provider.fault("answer_with", content='{"title": ""}')

        assert ask(provider).content == '{"title": ""}'
        assert provider.charges == 1

    def test_a_fault_applies_as_often_as_ordered_then_the_next_one(self, provider: MeteredProvider) -> None:
        provider.fault("status", times=2, status=503)
        provider.fault("status", status=400)

        assert [ask(provider).status for _ in range(4)] == [503, 503, 400, 200]

    def test_a_fault_applies_only_to_requests_that_match(self, provider: MeteredProvider) -> None:
        provider.fault("status", times=None, client_reference="a", status=503)
        provider.fault("status", times=None, body_contains="poison", status=400)

        assert ask(provider, Idempotency_Key="b").status == 200
        assert [ask(provider, Idempotency_Key="a").status for _ in range(3)] == [503, 503, 503]
        assert ask(provider, "a poison pill").status == 400
        provider.clear_faults()
        assert ask(provider, "a poison pill").status == 200

    def test_a_header_orders_a_fault_for_its_own_request(self, provider: MeteredProvider) -> None:
        assert ask(provider, X_Fault="status; status=502; charged=true").status == 502
        assert ask(provider).status == 200
        assert provider.charges == 2

    def test_an_unknown_fault_or_option_is_refused_and_says_what_there_is(self, provider: MeteredProvider) -> None:
        with pytest.raises(ConfigurationError, match="accept_then_drop"):
            provider.fault("explode")
        with pytest.raises(ConfigurationError, match="charged"):
            provider.fault("status", code=500)
        with pytest.raises(ConfigurationError, match="number from 1"):
            provider.fault("hold", times=0)
        assert ask(provider, X_Fault="explode").status == 400
        assert provider.charges == 0


class TestProcess:
    def test_waiting_for_more_than_comes_says_how_many_there_were(self, provider: MeteredProvider) -> None:
        with pytest.raises(MeteredProviderError, match="found 0 held requests"):
            provider.wait_held(1, timeout=0)

    def test_it_stops_while_it_holds_requests(self, provider: MeteredProvider) -> None:
        provider.fault("hold")
        provider.fault("hold_before_accepting")
        with ThreadPoolExecutor(2) as pool:
            replies = [pool.submit(ask, provider) for _ in range(2)]
            provider.wait_held(2)
            provider.stop()
            for reply in replies:
                with pytest.raises(ConnectionError):
                    reply.result(30)
        provider.restart()

        assert provider.charges == 1

    def test_a_control_of_a_stopped_provider_says_so(self, provider: MeteredProvider) -> None:
        provider.stop()

        with pytest.raises(MeteredProviderError, match="expected it to run"):
            provider.bill()

    def test_a_second_provider_on_the_same_folder_is_refused(self, provider: MeteredProvider) -> None:
        with pytest.raises(MeteredProviderError, match="another metered provider uses"):
            MeteredProvider.start(provider.folder)

    def test_it_runs_from_a_command_line_and_ends_cleanly_by_sigterm(self, tmp_path: Path) -> None:
        command = [sys.executable, "-m", MODULE, "--folder", str(tmp_path), "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())
            control = ProviderControl(address["control_url"])
            assert address["base_url"] == control.base_url
            assert json.loads((tmp_path / "address.json").read_text()) == address
            assert ask(control).status == 200
            process.terminate()
            assert process.wait(10) == 0

    def test_it_does_not_outlive_the_process_that_started_it(self, tmp_path: Path) -> None:
        script = (
            "import os, signal, sys\n"
            f"from {MODULE} import MeteredProvider\n"
            "provider = MeteredProvider.start(sys.argv[1])\n"
            "print(provider.pid, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n"
        )
        starter = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, check=False, timeout=60
        )
        assert starter.returncode < 0
        try:
            descriptor = os.pidfd_open(int(starter.stdout))
        except ProcessLookupError:
            return  # gone already
        try:
            ended, _, _ = select.select([descriptor], [], [], 10)
        finally:
            os.close(descriptor)
        assert ended

    def test_its_help_teaches_the_first_request_and_the_faults(self) -> None:
        shown = subprocess.run(
            [sys.executable, "-m", MODULE, "--help"], capture_output=True, text=True, check=True, timeout=60
        ).stdout

        assert "curl" in shown
        for fault in ("accept_then_drop", "hold_before_accepting", "half_answer", "answer_with"):
            assert fault in shown

    @pytest.mark.parametrize(
        ("arguments", "wrong"),
        [
            (["--price", "cheap"], "expected an amount"),
            (["--require-key", "NO_SUCH_VARIABLE"], "NO_SUCH_VARIABLE is unset"),
        ],
    )
    def test_a_wrong_argument_is_named(self, tmp_path: Path, arguments: list[str], wrong: str) -> None:
        done = subprocess.run(
            [sys.executable, "-m", MODULE, "--folder", str(tmp_path), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

        assert done.returncode == 2
        assert wrong in done.stderr


class TestPlugin:
    def test_the_fixture_gives_each_test_a_provider_with_an_empty_bill(self, tmp_path: Path) -> None:
        module = tmp_path / "test_given.py"
        module.write_text(
            "import pytest\n"
            "@pytest.mark.parametrize('run', [1, 2])\n"
            "def test_given(metered_provider, tmp_path, run):\n"
            "    assert metered_provider.charges == 0\n"
            "    assert metered_provider.folder.is_relative_to(tmp_path)\n"
        )
        plugin = "dagster_idempotent.testing.pytest_plugin"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            # Where the package is installed its entry point has loaded the plugin already, under this name.
            "-p",
            "no:dagster_idempotent",
            "-p",
            plugin,
            "--rootdir",
            str(tmp_path),
            str(module),
        ]

        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

        assert "2 passed" in done.stdout
