"""The table of a task's moves."""

import pytest

from dagster_idempotent.domain.task import ENDED, MOVES, OPEN, TaskStatus


def test_every_status_has_its_moves() -> None:
    assert set(MOVES) == set(TaskStatus)


def test_completed_and_discarded_are_final_and_only_an_operator_leaves_dead() -> None:
    assert {status for status in TaskStatus if not MOVES[status]} == {TaskStatus.COMPLETED, TaskStatus.DISCARDED}
    assert MOVES[TaskStatus.DEAD] == {TaskStatus.PENDING, TaskStatus.DISCARDED}
    assert {TaskStatus.COMPLETED, TaskStatus.DEAD, TaskStatus.DISCARDED} == ENDED


@pytest.mark.parametrize("status", sorted(set(TaskStatus) - OPEN))
def test_only_a_task_under_a_lease_completes_or_is_held(status: TaskStatus) -> None:
    assert not MOVES[status] & {TaskStatus.COMPLETED, TaskStatus.HELD, TaskStatus.FAILED}
