from collections.abc import Iterator

import pytest

from dagster_idempotent import errors
from dagster_idempotent.engine.retry_policy import RULES, Verdict, rule_of
from dagster_idempotent.providers.send_window import SendWindowClosed


def tree(kind: type[errors.IdempotentError]) -> Iterator[type[errors.IdempotentError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from tree(child)


OURS = sorted({kind for kind in tree(errors.IdempotentError) if kind.__module__ == errors.__name__}, key=str)


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_tree_has_a_rule_of_its_own_with_a_reason(kind: type[errors.IdempotentError]) -> None:
    assert kind in RULES
    assert RULES[kind].why


def test_every_subclass_anywhere_resolves_within_our_tree() -> None:
    ours = {RULES[kind] for kind in OURS}
    assert [kind for kind in tree(errors.IdempotentError) if rule_of(kind) not in ours] == []


@pytest.mark.parametrize(
    "kind",
    [
        errors.CandidateInvalid,
        errors.PayloadMismatch,
        errors.InvalidPayload,
        errors.UnknownFingerprint,
        errors.PayloadPruned,
        errors.TaskNotFound,
    ],
)
def test_what_cannot_change_by_itself_is_a_dead_letter_at_once(kind: type[errors.IdempotentError]) -> None:
    assert rule_of(kind("x")).verdict is Verdict.DEAD_LETTER


@pytest.mark.parametrize(
    "kind", [errors.CallInDoubt, errors.TaskHeld, errors.BudgetExceeded, errors.LeaseLost, errors.LeaseBusy]
)
def test_doubt_gates_budgets_and_other_owners_are_no_failures(kind: type[errors.IdempotentError]) -> None:
    assert rule_of(kind("x")).verdict is Verdict.LEAVE


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt(), ExceptionGroup("x", [OSError()])])
def test_errors_that_are_not_ours_are_worth_another_attempt(error: BaseException) -> None:
    assert rule_of(error).verdict is Verdict.AGAIN


def test_an_error_that_a_layer_adds_shares_the_rule_of_its_base() -> None:
    assert rule_of(SendWindowClosed("x")) is RULES[errors.CallNotSent]
