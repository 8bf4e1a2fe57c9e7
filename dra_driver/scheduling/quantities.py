"""Kubernetes quantities, as the API server reads them. Pure functions.

Rule: k8s.io/apimachinery ``resource.Quantity``.
"""

import re
from fractions import Fraction

_SUFFIXES = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY = re.compile(r"^([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d{1,3})|(n|u|m|[kMGTPE]|[KMGTPE]i)?)$")


def parse(value: object) -> Fraction | None:
    """The exact number behind a quantity (text, or a JSON number), None when it is none."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    found = _QUANTITY.match(str(value))
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    scale = Fraction(10) ** int(exponent) if exponent else _SUFFIXES[suffix or ""]
    return Fraction(number) * scale
