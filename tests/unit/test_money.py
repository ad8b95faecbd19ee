from decimal import Decimal

import pytest
from hypothesis import given, strategies as st

from dagster_idempotent.domain.money import Budget, BudgetScope, Money
from dagster_idempotent.errors import ConfigurationError

amounts = st.decimals(-(10**12), 10**12, allow_nan=False, places=12)


def _usd(text: str) -> Money:
    return Money.parse(f"{text} USD")


@given(amount=amounts, currency=st.from_regex(r"\A([A-Z]{3,8}|[a-z][a-z0-9_]{0,31})\Z"))
def test_money_is_read_back_as_it_is_written(amount: Decimal, currency: str) -> None:
    money = Money(amount=amount, currency=currency)
    assert Money.parse(str(money)) == money


@given(first=amounts, second=amounts)
def test_sums_are_exact(first: Decimal, second: Decimal) -> None:
    a, b = Money(amount=first, currency="USD"), Money(amount=second, currency="USD")
    assert a + b - b == a
    assert a + b == b + a
    assert (a + -a).amount == 0
    assert (a < b, a <= b, a > b, a >= b) == (
        first < second,
        first <= second,
        first > second,
        first >= second,
    )


def test_sums_do_not_round_where_decimals_would() -> None:
    large = _usd("123456789012345678.000000000001")
    assert str(large + _usd("0.000000000001")) == "123456789012345678.000000000002 USD"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2.00 USD", "2.00 USD"),
        ("0 USD", "0 USD"),
        ("-0.00 USD", "0.00 USD"),
        ("-1.5 USD", "-1.5 USD"),
        ("150 credits", "150 credits"),
        ("0.000000000001 USD", "0.000000000001 USD"),
        ("999999999999999999.999999999999 USD", "999999999999999999.999999999999 USD"),
        ("1.00000000000000 USD", "1.000000000000 USD"),
    ],
)
def test_money_is_plain_digits_and_a_currency(text: str, shown: str) -> None:
    assert str(Money.parse(text)) == shown


def test_equal_amounts_are_equal_money() -> None:
    assert _usd("2.00") == _usd("2")
    assert len({_usd("2.00"), _usd("2"), Money(amount=Decimal("0.2E+1"), currency="USD")}) == 1
    assert str(Money(amount=Decimal("1E+2"), currency="USD")) == "100 USD"
    assert str(Money(amount=Decimal("0E-99"), currency="USD")) == "0.000000000000 USD"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2.00",
        "USD",
        "2.00USD",
        "2.00  USD",
        " 2.00 USD",
        "2.00 USD\n",
        "2.00\u00a0USD",
        "$2.00",
        "2,00 USD",
        "1,000.00 USD",
        "1e3 USD",
        "+1 USD",
        ".5 USD",
        "5. USD",
        "007 USD",
        "NaN USD",
        "Infinity USD",
        "٢ USD",
        "2.00 US",
        "2.00 usD",
        "2.00 VERYLONGCODE",
        "1000000000000000000 USD",
        "0.0000000000001 USD",
        "1" * 10_000 + " USD",
        2.0,
        2,
        None,
    ],
)
def test_other_texts_are_no_money(text: object) -> None:
    with pytest.raises(ConfigurationError, match="Expected") as refusal:
        Money.parse(text)
    assert refusal.value.facts["field"] in {"amount", "currency"}
    assert len(str(refusal.value)) < 500


@pytest.mark.parametrize(
    "amount",
    [
        2.0,
        2,
        True,
        "2",
        None,
        Decimal("NaN"),
        Decimal("sNaN"),
        Decimal("Infinity"),
        Decimal("1e18"),
        Decimal("1e999999"),
        Decimal("1e-13"),
        Decimal("1e-999999"),
        Decimal("9" * 100),
    ],
)
def test_amounts_are_finite_decimals_of_bounded_length(amount: object) -> None:
    with pytest.raises(ConfigurationError, match="Expected") as refusal:
        Money(amount=amount, currency="USD")  # type: ignore[arg-type]
    assert refusal.value.facts["field"] == "amount"


def test_sums_stay_within_the_length_too() -> None:
    largest = _usd("999999999999999999")
    with pytest.raises(ConfigurationError):
        _ = largest + largest


def test_two_currencies_are_never_mixed() -> None:
    euro = Money.parse("1 EUR")
    for operation in (
        lambda: _usd("1") + euro,
        lambda: _usd("1") - euro,
        lambda: _usd("1") < euro,
        lambda: _usd("1") <= euro,
        lambda: _usd("1") > euro,
        lambda: _usd("1") >= euro,
    ):
        with pytest.raises(ConfigurationError, match="two currencies"):
            operation()
    assert _usd("1") != euro


def test_only_adjustments_may_be_negative() -> None:
    assert _usd("0").non_negative(field="cost") == Money.zero("USD")
    with pytest.raises(ConfigurationError) as refusal:
        _usd("-0.01").non_negative(field="cost")
    assert refusal.value.facts["field"] == "cost"


def test_a_budget_reads_texts() -> None:
    assert Budget.per_task("2.00 USD") == Budget(per_task=_usd("2"))
    assert Budget.per_period("2.00 USD") == Budget(per_period="2 USD")
    assert Budget.per_pipeline(_usd("2")) == Budget(per_pipeline="2 USD")
    assert Budget.per_task("2.00 USD").task == _usd("2")
    assert Budget.per_task("2.00 USD").period is None


def test_limits_come_in_the_order_of_locking() -> None:
    budget = Budget(per_task="1 USD", per_period="5 EUR", per_pipeline="9 credits")
    assert [scope for scope, _ in budget.limits()] == [
        BudgetScope.PIPELINE,
        BudgetScope.PERIOD,
        BudgetScope.TASK,
    ]
    assert Budget().limits() == ()
    assert Budget(per_task="0 USD").limits() == ((BudgetScope.TASK, Money.zero("USD")),)


@pytest.mark.parametrize("field", ["per_call", "per_task", "per_period", "per_pipeline"])
def test_limits_are_not_negative(field: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        Budget(**{field: "-1 USD"})
    assert refusal.value.facts["field"] == field
