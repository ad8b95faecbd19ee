"""A provider of one's own, and plain HTTP to ask it by."""

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider, ProviderControl

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
