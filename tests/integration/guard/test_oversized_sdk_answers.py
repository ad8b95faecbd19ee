"""An SDK's answer above the usual cap lies in a file where there is a place for files; elsewhere it is in doubt."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from dagster_idempotent import GuardedOpenAIResource
from dagster_idempotent.definitions import sdk_resources
from dagster_idempotent.engine.large_artifacts import LargeArtifacts
from dagster_idempotent.errors import CallInDoubt
from dagster_idempotent.providers import http_provider

if TYPE_CHECKING:
    from tests.integration.guard.conftest import Bench

LONG = "word " * 2000


@pytest.mark.parametrize("place", [True, False], ids=["with a place for files", "without"])
def test_an_answer_above_the_cap(
    bench: "Bench", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, place: bool
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setattr(http_provider, "MAX_ANSWER", 1000)
    monkeypatch.setitem(http_provider.HttpProvider.__init__.__kwdefaults__, "max_answer", 1000)
    assert len(LONG) < sdk_resources.MAX_ANSWER_IN_FILES
    resource = GuardedOpenAIResource(base_url=bench.metered.base_url)
    work = bench.claim(bench.allocate())
    work.large = LargeArtifacts(base_uri=str(tmp_path), threshold=1000) if place else None
    bench.metered.fault("answer_with", content=LONG)
    messages: Any = [{"role": "user", "content": "tell me everything"}]

    def ask() -> str | None:
        context: Any = None  # the resource asks for no context
        with work.renewed(), resource.get_client(context, call="summary") as client:
            return client.chat.completions.create(model="m", messages=messages).choices[0].message.content

    if place:
        assert ask() == ask() == LONG
        assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1
    else:
        with pytest.raises(CallInDoubt, match="larger than the 1000 bytes"):
            ask()
    assert bench.charges == 1
