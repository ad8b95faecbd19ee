import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, cast

import httpx
import httpx2
import pytest
import requests
from hypothesis import given, settings, strategies as st

from dagster_idempotent.domain.fingerprint import differing_fields, fingerprint
from dagster_idempotent.errors import ConfigurationError, InvalidPayload
from dagster_idempotent.providers.clients import httpx_client, requests_session
from dagster_idempotent.providers.http_answer import HttpAnswer
from dagster_idempotent.providers.http_provider import HttpProvider
from dagster_idempotent.providers.http_request import HttpRequest
from dagster_idempotent.providers.profiles import ANTHROPIC, GENERIC, OPENAI, STRIPE, Profile
from dagster_idempotent.providers.request_body import body_payload

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


def post(url: str = "https://api.example/v1/things", body: bytes = b"", kind: str = JSON) -> HttpRequest:
    return HttpRequest(method="post", url=url, headers=(("Content-Type", kind),), body=body)


def differing(one: HttpRequest, other: HttpRequest) -> tuple[str, ...]:
    prints = [fingerprint("http", "POST", each.fingerprint_payload()) for each in (one, other)]
    return differing_fields(*prints)


class TestPaid:
    @pytest.mark.parametrize(
        ("method", "paid"),
        [("get", False), ("HEAD", False), ("POST", True), ("put", True), ("PATCH", True), ("DELETE", True)],
    )
    def test_the_method_decides_unless_a_profile_knows_better(self, method: str, *, paid: bool) -> None:
        request = HttpRequest(method=method, url="https://api.example/x")
        assert request.paid is paid
        assert HttpProvider().is_paid(request) is paid

    @pytest.mark.parametrize(
        ("profile", "method", "path", "paid"),
        [
            (OPENAI, "POST", "/v1/chat/completions", True),
            (OPENAI, "POST", "/v1/moderations", False),
            (OPENAI, "POST", "/v1/moderations/x", True),
            (OPENAI, "POST", "/v1/responses/resp_1/cancel", False),
            (OPENAI, "POST", "/v1/responses/input_tokens", False),
            (OPENAI, "DELETE", "/v1/files/file_1", False),
            (ANTHROPIC, "POST", "/v1/messages", True),
            (ANTHROPIC, "POST", "/v1/messages/count_tokens", False),
            (STRIPE, "POST", "/v1/charges", True),
            (STRIPE, "DELETE", "/v1/customers/cus_1", True),
        ],
    )
    def test_a_documented_free_path_is_free(self, profile: Profile, method: str, path: str, *, paid: bool) -> None:
        origin = f"https://{str(profile.base_url).removeprefix('https://').partition('/')[0]}"

        assert HttpProvider(profile).is_paid(HttpRequest(method=method, url=f"{origin}{path}?x=1")) is paid


class TestFingerprint:
    def test_headers_timeouts_and_credentials_are_no_part_of_it(self) -> None:
        one = post("https://user:pass@api.example/v1/things?key=secret-1&size=3", b'{"a": 1}')
        other = HttpRequest(
            method="POST",
            url="https://api.example:443/v1/things?size=3&key=secret-2",
            headers=(("content-type", JSON), ("x-stainless-retry-count", "2"), ("Authorization", "Bearer x")),
            body=b'{ "a":1.0 }',
            read_timeout=timedelta(seconds=3),
        )

        assert differing(one, other) == ()
        assert "secret" not in str(one.fingerprint_payload())
        assert "pass" not in str(one.fingerprint_payload())
        assert "secret" not in repr(one)

    def test_json_bodies_that_differ_name_the_field(self) -> None:
        assert differing(post(body=b'{"model": "a", "n": 1}'), post(body=b'{"n": 1, "model": "b"}')) == ("/json/model",)

    def test_forms_are_compared_by_field_and_not_by_order(self) -> None:
        one = post(body=b"amount=5&currency=usd&expand[]=a&expand[]=b", kind=FORM)
        same = post(body=b"currency=usd&expand%5B%5D=a&expand[]=b&amount=5", kind=FORM)
        other = post(body=b"amount=6&currency=usd&expand[]=a&expand[]=b", kind=FORM)

        assert differing(one, same) == ()
        assert differing(one, other) == ("/form/amount/0",)

    @pytest.mark.parametrize("name", ["method", "url", "query"])
    def test_method_address_and_query_are_part_of_it(self, name: str) -> None:
        others = {
            "method": HttpRequest(method="PUT", url="https://api.example/v1/things"),
            "url": HttpRequest(method="POST", url="https://api.example/v1/other"),
            "query": HttpRequest(method="POST", url="https://api.example/v1/things?draft=1"),
        }

        assert differing(HttpRequest(method="POST", url="https://api.example/v1/things"), others[name]) == (f"/{name}",)

    def test_below_a_base_url_the_host_is_no_part_of_it(self) -> None:
        direct = post("https://api.openai.com/v1/responses").fingerprint_payload("https://api.openai.com/v1")
        gateway = post("http://gateway:8080/openai/responses").fingerprint_payload("http://gateway:8080/openai/")

        assert direct == gateway == {"method": "POST", "url": "/responses"}

    @pytest.mark.parametrize("body", [b'{"a": NaN}', b'{"a": [1, Infinity]}', b'{"a": 1e999}'])
    def test_a_number_that_json_does_not_have_is_refused(self, body: bytes) -> None:
        with pytest.raises(InvalidPayload):
            HttpProvider().operation(post()) and fingerprint("http", "POST", post(body=body).fingerprint_payload())

    @pytest.mark.parametrize(
        ("body", "kind"),
        [
            (b"{", JSON),
            (b"\xff\xfe", FORM),
            (b"--", "multipart/form-data; boundary=b"),
            (b"\0\1", ""),
            (b"x", "nonsense"),
        ],
    )
    def test_a_body_that_is_not_what_it_says_stands_as_its_hash(self, body: bytes, kind: str) -> None:
        assert body_payload(body, kind)["body"]["size"] == len(body)  # pyright: ignore[reportIndexIssue]

    def test_a_packed_body_stands_as_its_hash(self) -> None:
        assert set(body_payload(b'{"a": 1}', JSON, "gzip")) == {"body"}

    @pytest.mark.parametrize("url", ["ftp://api.example/x", "https:///x", "/x", ""])
    def test_what_is_no_web_address_is_refused(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="http"):
            HttpRequest(method="POST", url=url)

    @pytest.mark.parametrize("value", ["a\r\nX-Injected: b", "a\0", "日", "\x7f"])
    def test_a_header_that_http_cannot_carry_is_refused_by_its_name(self, value: str) -> None:
        with pytest.raises(ConfigurationError, match="X-Title"):
            HttpRequest(method="POST", url="https://api.example/x", headers=(("X-Title", value),))

    @settings(deadline=None)  # a busy machine is no failure
    @given(st.dictionaries(st.text(), st.one_of(st.none(), st.booleans(), st.integers(), st.text())))
    def test_equal_json_is_equal_however_it_is_written(self, value: dict[str, object]) -> None:
        written = [json.dumps(value, indent=indent, ensure_ascii=indent is None).encode() for indent in (None, 3)]

        assert body_payload(written[0], JSON) == body_payload(written[1], "application/json; charset=utf-8")

    @settings(deadline=None)  # a busy machine is no failure
    @given(st.binary(), st.sampled_from([JSON, FORM, "multipart/form-data; boundary=x", "text/plain", ""]))
    def test_any_body_has_a_payload(self, body: bytes, kind: str) -> None:
        assert isinstance(body_payload(body, kind), Mapping)


def captured(sdk: str, send: Callable[[Any, str], object]) -> HttpRequest:
    """Return what an SDK wanted to send."""
    seen: list[HttpRequest] = []

    def exchange(request: HttpRequest) -> HttpAnswer:
        seen.append(request)
        return HttpAnswer(status=200, headers=(), body=b"{}")

    provider = HttpProvider(GENERIC, base_url="https://api.example")
    if sdk == "requests":
        with requests_session(exchange, provider) as session:
            send(session, "https://api.example/files")
    else:
        with httpx_client(exchange, provider, httpx if sdk == "httpx" else httpx2) as client:
            send(client, "/files")
    return seen[0]


class TestMultipart:
    @pytest.mark.parametrize("sdk", ["httpx", "httpx2", "requests"])
    @settings(deadline=None)  # a busy machine is no failure
    @given(content=st.binary(max_size=300), name=st.text("abc -", min_size=1, max_size=9))
    def test_an_upload_is_the_same_whatever_its_boundary(self, sdk: str, content: bytes, name: str) -> None:
        def send(client: httpx.Client, url: str) -> object:
            return client.post(url, data={"purpose": "batch"}, files={"file": (name, content, "text/plain")})

        one, other = captured(sdk, send), captured(sdk, send)

        assert one.body != other.body
        assert differing(one, other) == ()
        field, file = cast("list[dict[str, object]]", one.fingerprint_payload()["parts"])
        assert field == {"head": ['Content-Disposition: form-data; name="purpose"'], "value": "batch"}
        assert file["size"] == len(content)
        assert f'filename="{name}"' in str(file["head"])

    def test_another_file_is_another_request(self) -> None:
        one, other = (
            captured("httpx2", lambda client, url, data=data: client.post(url, files={"file": ("a", data)}))
            for data in (b"one", b"two")
        )

        assert differing(one, other) == ("/parts/0/sha256",)

    @pytest.mark.parametrize("body", [b"text", "text", iter([b"te", b"xt"])])
    def test_requests_may_give_its_body_in_several_forms(self, body: object) -> None:
        assert captured("requests", lambda session, url: session.post(url, data=body)).body == b"text"

    def test_the_timeouts_of_a_request_are_taken_over(self) -> None:
        asked = captured("requests", lambda session, url: session.post(url, timeout=(3, 60)))
        plain = captured("requests", requests.Session.post)

        assert (asked.connect_timeout, asked.read_timeout) == (timedelta(seconds=3), timedelta(seconds=60))
        assert (plain.connect_timeout, plain.read_timeout) == (None, None)
