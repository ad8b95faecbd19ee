"""Fixtures for a project that tests its pipelines."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider


@pytest.fixture
def metered_provider(tmp_path: Path) -> Iterator[MeteredProvider]:
    """Start a metered provider with an empty bill; it ends with the test."""
    with MeteredProvider.start(tmp_path / "metered_provider") as provider:
        yield provider
