"""What the ledger keeps can be read by a person: artifacts, outputs, answers, also one that was not accepted."""

import base64
import json
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from dagster_idempotent.engine import stages

Run = Callable[..., Any]
NOISE = bytes(range(256))


def _collected(world: Any, body: bytes) -> str:
    task_id = world.allocate()
    work = world.claim(task_id)
    with work.renewed():
        stages.collect(work, lambda: body)
    return task_id


def test_an_artifact_is_written_byte_for_byte_and_never_over_a_file(cli: Run, world: Any, tmp_path: Path) -> None:
    task_id = _collected(world, NOISE)
    file = tmp_path / "raw.bin"
    done = cli("tasks", "artifact", task_id, "--output", str(file))
    assert (done.code, done.out, file.read_bytes()) == (0, "", NOISE)
    assert sha256(NOISE).hexdigest() in done.err
    document = cli("tasks", "artifact", task_id, "raw", "--json").json()
    assert base64.b64decode(document["base64"]) == NOISE
    assert (document["size"], document["uri"]) == (256, None)
    file.write_bytes(b"mine")
    again = cli("tasks", "artifact", task_id, "-o", str(file))
    assert (again.code, file.read_bytes()) == (2, b"mine")
    assert "exists already" in again.err
    nowhere = cli("tasks", "artifact", task_id, "-o", str(tmp_path / "no" / "such" / "folder"))
    assert (nowhere.code, "cannot be written" in nowhere.err) == (2, True)


def test_an_artifact_that_is_not_there_names_those_that_are(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    none = cli("tasks", "artifact", task_id)
    assert (none.code, "its collect op has not succeeded" in none.err) == (1, True)
    other = cli("tasks", "artifact", _collected(world, b"x"), "picture")
    assert (other.code, "no artifact 'picture'; it has raw" in other.err) == (1, True)


def test_the_accepted_output_is_what_was_committed(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    early = cli("tasks", "output", task_id)
    assert (early.code, "has no accepted output: it is pending" in early.err) == (1, True)
    world.run(task_id)
    printed = cli("tasks", "output", task_id).out
    (row,) = world.query("SELECT output, output_sha256 FROM dagster_idempotent.tasks")
    assert printed == row["output"]
    assert sha256(printed.encode()).hexdigest() == row["output_sha256"]


def test_an_answer_that_was_paid_for_and_not_accepted_can_be_read(cli: Run, world: Any) -> None:
    task_id = world.allocate()
    world.metered.fault("answer_with", content="no digest")
    assert world.run(task_id) == "CandidateInvalid"
    answer = json.loads(cli("calls", "answer", task_id, "summary").out)
    assert answer["choices"][0]["message"]["content"] == "no digest"
    document = cli("calls", "answer", task_id, "summary", "--submission", "1", "--json").json()
    assert json.loads(document["text"]) == answer
    assert (
        "has no stored answer to submission 2: submission 1 is succeeded"
        in cli("calls", "answer", task_id, "summary", "--submission", "2").err
    )
    assert "it has summary" in cli("calls", "answer", task_id, "title").err


def test_a_call_in_doubt_has_no_answer_yet(cli: Run, world: Any) -> None:
    found = cli("calls", "answer", world.doubtful(), "summary")
    assert (found.code, found.out) == (1, "")
    assert "has no stored answer: submission 1 is in_doubt" in found.err


@pytest.mark.parametrize("words", ["tasks artifact {}", "tasks output {}", "calls answer {} summary"])
def test_what_was_pruned_says_so_and_keeps_its_hash(cli: Run, world: Any, words: str) -> None:
    task_id = world.allocate()
    world.run(task_id)
    assert cli("prune", "--older-than", "0s", "--actor", "ada", "--reason", "old").code == 0
    found = cli(*words.format(task_id).split())
    assert (found.code, found.out) == (1, "")
    assert "was pruned" in found.err
    assert "its hash" in found.err
