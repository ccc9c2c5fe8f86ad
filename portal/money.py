"""Exact amounts in one currency; rounding in one place."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

# Digits after the point that an invoice in this currency has (ISO 4217). Babel's table follows
# CLDR's cash usage and is wrong for HUF, IDR, COP and others, so this is our own.
_ZERO = "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF"
_THREE = "BHD IQD JOD KWD LYD OMR TND"
MINOR_DIGITS = dict.fromkeys(_ZERO.split(), 0) | dict.fromkeys(_THREE.split(), 3)

# Digits after the point of every amount that is stored or exported unrounded.
EXACT_DIGITS = 12


def minor_digits(currency: str) -> int:
    """Return how many decimals an amount in `currency` has on an invoice."""
    return MINOR_DIGITS.get(currency, 2)


def round_amount(amount: Decimal | Fraction, currency: str) -> Decimal:
    """Round an exact amount to the currency's minor unit, half away from zero.

    The one rounding rule of Corral: applied once per invoice line (decision 0004).
    """
    return to_decimal(amount, minor_digits(currency))


def to_decimal(amount: Decimal | Fraction, digits: int = EXACT_DIGITS) -> Decimal:
    """Write an exact amount with `digits` decimals, half away from zero.

    A third of a cent has no end in decimals; this is where its digits stop. Integer arithmetic,
    so no context of the decimal module can change the answer.
    """
    exact = Fraction(amount)
    scaled, rest = divmod(abs(exact.numerator) * 10**digits, exact.denominator)
    if 2 * rest >= exact.denominator:
        scaled += 1
    sign = 1 if exact < 0 and scaled else 0
    return Decimal((sign, tuple(int(digit) for digit in str(scaled)), -digits))


@dataclass(frozen=True, slots=True, order=False)
class Money:
    """An exact amount in a currency. Never a float; never mixed with another currency."""

    amount: Decimal
    currency: str

    def __add__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.amount + other.amount, self.currency)

    def __sub__(self, other: "Money") -> "Money":
        self._same(other)
        return Money(self.amount - other.amount, self.currency)

    def __neg__(self) -> "Money":
        return Money(-self.amount, self.currency)

    def rounded(self) -> "Money":
        """Return this amount rounded to the minor unit."""
        return Money(round_amount(self.amount, self.currency), self.currency)

    def as_json(self) -> dict[str, str]:
        """Return `{"amount": "12.34", "currency": "USD"}`, the API's form; exact digits kept."""
        return {"amount": format(self.amount, "f"), "currency": self.currency}

    def _same(self, other: "Money") -> None:
        if self.currency != other.currency:
            raise ValueError(f"cannot mix {self.currency} and {other.currency}")
