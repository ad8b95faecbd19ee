"""The benchmark runs, and says ratios; how large they are is not a test."""

import json
from pathlib import Path

import pytest

from benchmarks.__main__ import main
from benchmarks.measuring import FLOOR, Arm, measure


def test_one_command_prints_a_row_for_each_arm_and_writes_the_same_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--rounds", "1", "--operations", "2", "--json", str(tmp_path / "figures.json")]) == 0
    written = json.loads((tmp_path / "figures.json").read_text())
    names = [arm["name"] for arm in written["arms"]]
    assert names[0] == FLOOR
    assert {"paid call: intent and outcome", "replayed call", "persist"} <= set(names)
    printed = capsys.readouterr().out.splitlines()
    assert [line[: len(name)] for line, name in zip(printed[1:], names, strict=True)] == names


def test_the_floor_is_one_and_preparing_is_never_timed_with_a_number_used_before() -> None:
    prepared: list[int] = []
    operated: list[int] = []
    arms = [Arm(name="least", operate=bool), Arm(name="other", prepare=prepared.append, operate=operated.append)]
    least, other = measure(arms, rounds=3, operations=4)
    assert least.times_floor == least.lowest == least.highest == 1
    assert prepared == operated == sorted(set(operated))
    assert other.lowest <= other.times_floor <= other.highest


def test_no_rounds_at_all_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--rounds", "0"])
    assert stopped.value.code == 2
    assert "at least 1" in capsys.readouterr().err
