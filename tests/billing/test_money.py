"""Exact amounts, and the one rounding rule."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portal.money import Money, round_amount, to_decimal


@pytest.mark.parametrize(
    ("currency", "amount", "rounded"),
    [
        ("USD", "1.005", "1.01"),
        ("USD", "-1.005", "-1.01"),
        ("USD", "0.004999999999", "0.00"),
        ("JPY", "9.325", "9"),
        ("JPY", "9.5", "10"),
        ("KWD", "1.2345", "1.235"),
        ("HUF", "0.125", "0.13"),
        ("IDR", "0.125", "0.13"),
    ],
)
def test_an_amount_is_rounded_half_away_from_zero_to_the_minor_unit(
    currency: str, amount: str, rounded: str
) -> None:
    assert str(round_amount(Decimal(amount), currency)) == rounded


def test_a_third_is_written_with_twelve_decimals() -> None:
    assert str(to_decimal(Fraction(1, 3))) == "0.333333333333"
    assert str(to_decimal(Fraction(-2, 3))) == "-0.666666666667"


def test_nothing_is_never_negative() -> None:
    assert format(to_decimal(Fraction(-1, 10**15)), "f") == "0.000000000000"


@given(st.fractions(), st.integers(0, 18))
def test_writing_decimals_is_off_by_half_a_digit_at_most(amount: Fraction, digits: int) -> None:
    written = to_decimal(amount, digits)

    assert abs(Fraction(written) - amount) * 2 <= Fraction(1, 10**digits)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, places=12, min_value=-(10**20), max_value=10**20
    )
)
def test_what_has_twelve_decimals_already_stays_as_it_is(amount: Decimal) -> None:
    assert to_decimal(amount) == amount


def test_two_currencies_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="cannot mix USD and EUR"):
        Money(Decimal(1), "USD") + Money(Decimal(1), "EUR")
