"""Kubernetes quantities: exact values, read and written as the API server does. No pydantic, no I/O here."""

import re
from dataclasses import dataclass, field
from decimal import Decimal, localcontext
from enum import Enum
from typing import Final


class Notation(Enum):
    """How a quantity was written, which decides how it is written again; no part of its value."""

    DECIMAL_SI = "DecimalSI"
    BINARY_SI = "BinarySI"
    DECIMAL_EXPONENT = "DecimalExponent"


_NANO: Final = 10**9
_LARGEST: Final = (2**63 - 1) * _NANO
_MAX_LENGTH: Final = 64
_DECIMAL: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_SUFFIX: Final = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_FORM: Final = re.compile(
    r"(?P<sign>[+-]?)(?:(?P<whole>[0-9]+)(?:\.(?P<part>[0-9]*))?|\.(?P<only>[0-9]+))"
    r"(?:(?P<suffix>[KMGTPE]i|[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)


@dataclass(frozen=True, slots=True)
class Quantity:
    """An exact amount, counted in billionths; equal when the values are, as ``1Gi`` and ``1024Mi``.

    Rules of ``k8s.io/apimachinery`` resource.Quantity: finer than 1n is rounded away from zero, larger than
    2^63 - 1 is cut to it.
    """

    nano: int
    notation: Notation = field(default=Notation.DECIMAL_SI, compare=False)

    @classmethod
    def parse(cls, text: str) -> "Quantity":
        """Read ``512Mi``, ``1.5G``, ``100m``, ``1e3``. Raises ValueError that names the text."""
        text = text.strip()
        form = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
        if form is None:
            shown = text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "…"
            raise ValueError(f"{shown!r} is not a Kubernetes quantity, such as 512Mi, 10Gi or 1500M")
        fraction = form["only"] or form["part"] or ""
        digits = int((form["whole"] or "") + fraction)
        suffix, exponent = form["suffix"] or "", form["exponent"]
        notation, factor, power = Notation.DECIMAL_SI, 1, 0
        if exponent is not None:
            notation, power = Notation.DECIMAL_EXPONENT, _clamp(exponent)
        elif suffix.endswith("i"):
            notation, factor = Notation.BINARY_SI, 1 << 10 * _BINARY.index(suffix)
        else:
            power = _DECIMAL[suffix]
        nano = min(_scale(digits * factor, power + 9 - len(fraction)), _LARGEST)
        if notation is Notation.BINARY_SI and 0 < nano < _NANO:
            notation = Notation.DECIMAL_SI
        return cls(-nano if form["sign"] == "-" else nano, notation)

    @classmethod
    def of(cls, amount: int, notation: Notation = Notation.BINARY_SI) -> "Quantity":
        """A whole number, by default a count of bytes."""
        return cls(amount * _NANO, notation)

    @property
    def amount(self) -> int:
        """The value as a whole number, rounded up; bytes for amounts of memory."""
        return -(-self.nano // _NANO)

    @property
    def decimal(self) -> Decimal:
        """The exact value."""
        with localcontext() as context:
            context.prec = 40
            return Decimal(self.nano).scaleb(-9).normalize()

    def __str__(self) -> str:
        """Canonical text in the notation it was read in: no fraction, the largest suffix that allows it."""
        if self.notation is Notation.BINARY_SI and _is_binary(self.nano):
            return _written_binary(self.nano // _NANO)
        return _written_decimal(self.nano, self.notation)


def format_bytes(amount: int) -> str:
    """A count as capacities are published (BinarySI): 5368709120 is ``5Gi``, 98 is ``98``, 1000 is ``1k``."""
    return str(Quantity.of(amount))


def _clamp(exponent: str) -> int:
    """An exponent no larger than matters: beyond it every amount is cut to the limit, or rounded to 1n."""
    sign = -1 if exponent.startswith("-") else 1
    digits = exponent.lstrip("+-").lstrip("0") or "0"
    return sign * (int(digits) if len(digits) <= 3 else 1000)


def _scale(amount: int, power: int) -> int:
    """amount * 10^power, rounded up to a whole number."""
    factor: int = 10 ** abs(power)
    return amount * factor if power >= 0 else -(-amount // factor)


def _is_binary(nano: int) -> bool:
    """Whether BinarySI can hold the value; small and fractional values are written in decimal."""
    return abs(nano) >= 1024 * _NANO and nano % _NANO == 0


def _written_binary(amount: int) -> str:
    rank = 0
    while amount % 1024 == 0 and rank < len(_BINARY) - 1:
        amount //= 1024
        rank += 1
    return f"{amount}{_BINARY[rank]}"


def _written_decimal(nano: int, notation: Notation) -> str:
    if nano == 0:
        return "0"
    power = -9
    while nano % 1000 == 0 and power < 18:
        nano //= 1000
        power += 3
    if notation is Notation.DECIMAL_EXPONENT:
        return f"{nano}e{power}" if power else str(nano)
    return f"{nano}{_DECIMAL_SUFFIX[power]}"
