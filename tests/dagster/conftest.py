"""Deployments for the tests of this folder, and the module that starts them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import dagster as dg
import psycopg
import pytest

sys.path.insert(0, os.fspath(Path(__file__).parent))

import real_dagster
from house import House
from quick_storage import quick_storage

from dagster_idempotent.store.database import Database
from dagster_idempotent.testing.metered_provider import MeteredProvider

# What Dagster says about itself, not about us.
DAGSTERS_OWN = (
    "ignore:Property `ScheduleDefinition.environment_vars` is deprecated",
    "ignore:Function `JobDefinition.run_request_for_partition` is deprecated",
    "ignore:InitResourceContext.dagster_run is deprecated",
    "ignore:Function `AssetSelection.sources` is deprecated",
    "ignore:Parameter `owners` of initializer `SensorDefinition",
    "ignore:.parse_obj_as. is deprecated",
    "ignore:Class `(LocalFileCodeReference|CodeReferencesMetadata)[A-Za-z]*` is currently in beta",
    "ignore:Non-compliant tag keys like .'dagster/partition/",
)
SECRET = "sk-never-to-be-written-anywhere"  # noqa: S105 - only the metered provider takes it


@pytest.fixture(scope="session", autouse=True)
def _quick() -> Iterator[None]:
    with quick_storage():
        yield


@pytest.fixture
def folder(tmp_path: Path, ledger_url: str, metered_provider: MeteredProvider, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give the folder that the code location writes to, with its environment set."""
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.setenv("TEST_FOLDER", os.fspath(place))
    monkeypatch.setenv("TEST_LEDGER_URL", ledger_url)
    monkeypatch.setenv("TEST_PROVIDER_URL", metered_provider.base_url)
    monkeypatch.setenv("TEST_API_KEY", SECRET)
    return place


@pytest.fixture
def secret() -> str:
    """Give the credential that the runs hold."""
    return SECRET


@pytest.fixture
def start_dagster(folder: Path) -> Callable[..., AbstractContextManager[real_dagster.Dagster]]:
    """Start a deployment with other settings than the usual ones."""
    return lambda **settings: real_dagster.deployment(folder.with_name("home"), **settings)


@pytest.fixture
def dagster(
    start_dagster: Callable[..., AbstractContextManager[real_dagster.Dagster]],
) -> Iterator[real_dagster.Dagster]:
    """Start a deployment with one code location."""
    with start_dagster() as started:
        yield started


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let Dagster warn about itself in this folder; every other warning stays an error."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            for said in DAGSTERS_OWN:
                item.add_marker(pytest.mark.filterwarnings(said))


@pytest.fixture
def workers() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep the processes of a test, which end with it."""
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def house(folder: Path) -> Iterator[House]:
    """Give a code location with its operator definitions, run in this process."""
    assert folder.exists()
    with dg.instance_for_test() as instance:
        yield House(instance, folder)


@pytest.fixture
def expire(ledger: Database) -> Callable[[], None]:
    """Let every lease and backoff of the ledger be over, as after a night."""

    def let_time_pass() -> None:
        with psycopg.connect(ledger.url) as connection:
            connection.execute("SET session_replication_role = replica")
            connection.execute(
                "UPDATE dagster_idempotent.submissions SET settle_delay = '0', "
                "sender_expires_at = now() - interval '1 day'"
            )
            connection.execute(
                "UPDATE dagster_idempotent.tasks SET next_attempt_at = NULL, "
                "lease_expires_at = now() - interval '1 day' WHERE owner IS NOT NULL"
            )

    return let_time_pass
