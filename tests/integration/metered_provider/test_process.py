"""The process of the metered provider: its command line, its life and its fixture."""

import json
import os
import select
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dagster_idempotent.testing.metered_provider import MeteredProvider, MeteredProviderError, ProviderControl
from dagster_idempotent.testing.metered_provider.nursery import nursery
from tests.integration.metered_provider.conftest import ask

MODULE = "dagster_idempotent.testing.metered_provider"


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

    def test_providers_of_one_process_end_one_by_one(self, tmp_path: Path) -> None:
        with MeteredProvider.start(tmp_path / "a") as first, MeteredProvider.start(tmp_path / "b") as second:
            assert ask(first).status == ask(second).status == 200
            first.kill()
            assert first.pid is None
            with pytest.raises(MeteredProviderError, match="expected it to run"):
                first.bill()
            assert second.charges == 1
            first.restart()
            assert first.charges == 1

    def test_a_provider_that_was_killed_by_somebody_else_is_started_again(self, provider: MeteredProvider) -> None:
        assert provider.pid is not None
        os.kill(provider.pid, signal.SIGKILL)
        provider.restart()

        assert ask(provider).status == 200

    def test_a_folder_is_found_from_where_the_test_is(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        with MeteredProvider.start("here") as provider:
            assert ask(provider).status == 200

        assert (tmp_path / "here" / "bill.sqlite3").exists()

    def test_after_the_process_that_forks_them_was_killed_the_next_start_has_another(self, tmp_path: Path) -> None:
        forking = nursery()
        with MeteredProvider.start(tmp_path / "a") as orphan:
            os.kill(forking.pid, signal.SIGKILL)
            forking.wait()
            with MeteredProvider.start(tmp_path / "b") as provider:
                assert ask(provider).status == 200
            descriptor = os.pidfd_open(orphan.pid or 0)
        ended, _, _ = select.select([descriptor], [], [], 10)
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
