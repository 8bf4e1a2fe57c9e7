"""Quantities, against what ``k8s.io/apimachinery`` makes of the same texts."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver_api.config import Notation, Quantity, format_bytes

LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", "0"), ("1", "1"), ("+1", "1"), ("-1", "-1"), ("1.5", "1.5"), (".5", "0.5"), ("5.", "5"),
        ("007", "7"), (" 1Gi ", "1073741824"),
        ("1n", "0.000000001"), ("1u", "0.000001"), ("1m", "0.001"), ("1k", "1000"), ("1M", "1000000"),
        ("1G", "1000000000"), ("1T", "1000000000000"), ("1P", "1000000000000000"), ("1E", "1000000000000000000"),
        ("1Ki", "1024"), ("1Mi", "1048576"), ("1Gi", "1073741824"), ("1Ti", "1099511627776"),
        ("1Pi", "1125899906842624"), ("1Ei", "1152921504606846976"), ("0.5Gi", "536870912"),
        ("1e3", "1000"), ("1E3", "1000"), ("1.5e3", "1500"), ("1e+3", "1000"), ("1e-3", "0.001"), ("1e0", "1"),
    ],
)  # fmt: skip
def test_quantity_has_the_exact_value(text: str, value: str) -> None:
    assert Quantity.parse(text).decimal == Decimal(value)


@pytest.mark.parametrize(
    "text",
    ["", " ", ".", "-", "1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i", "-3.01e-", "1e", "1K",
     "1gi", "1GI", "1 Gi", "1Gi\n1", "1_000", "1e3Ki", "1kk", "0x10", "NaN", "inf", "\u0661", "1" * 65],
    ids=lambda text: text[:10] or "empty",
)  # fmt: skip
def test_text_that_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a Kubernetes quantity"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"), ("0Gi", "0"), ("00.0", "0"), ("1.5", "1500m"), ("1000", "1k"), ("1500k", "1500k"),
        ("1000k", "1M"), ("1234567", "1234567"), ("0.1", "100m"), ("-1000", "-1k"), ("1024", "1024"),
        ("1024Ki", "1Mi"), ("1025Ki", "1025Ki"), ("0.5Gi", "512Mi"), ("1.5Ki", "1536"), ("0.1Ki", "102400m"),
        ("100Ki", "100Ki"), ("-1024Mi", "-1Gi"), ("0.5Ki", "512"), ("1e3", "1e3"), ("1e4", "10e3"),
        ("12e5", "1200e3"), ("1e-3", "1e-3"), ("5e0", "5"),
    ],
)  # fmt: skip
def test_canonical_text_keeps_the_notation(text: str, canonical: str) -> None:
    assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("0.1n", 1), ("-0.1n", -1), ("1.0000000001", 10**9 + 1), ("1e-999", 1), ("1e-99999999999", 1),
        ("0e99999999999", 0), ("9223372036854775808", LARGEST * 10**9), ("8Ei", LARGEST * 10**9),
        ("-8Ei", -LARGEST * 10**9), ("1e99999999999", LARGEST * 10**9),
    ],
)  # fmt: skip
def test_quantity_beyond_the_limits_is_brought_inside(text: str, nano: int) -> None:
    assert Quantity.parse(text).nano == nano


@pytest.mark.parametrize(("text", "amount"), [("1Gi", 1 << 30), ("100m", 1), ("1500m", 2), ("-1500m", -1), ("0", 0)])
def test_amount_is_whole_and_rounded_up(text: str, amount: int) -> None:
    assert Quantity.parse(text).amount == amount


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"), (1, "1"), (98, "98"), (1000, "1k"), (1023, "1023"), (1024, "1Ki"), (1536, "1536"),
        (4864 * 2**20, "4864Mi"), (5 * 2**30, "5Gi"), (150754820096, "143771Mi"), (24 * 2**30 + 1, "25769803777"),
    ],
)  # fmt: skip
def test_bytes_are_written_in_binary_suffixes_when_divisible(amount: int, text: str) -> None:
    assert format_bytes(amount) == text


def test_notation_is_no_part_of_the_value() -> None:
    assert Quantity.parse("1Ki") == Quantity.parse("1024") == Quantity.of(1024, Notation.DECIMAL_EXPONENT)


@given(st.integers(-LARGEST, LARGEST), st.sampled_from(Notation))
def test_whole_quantity_survives_its_text(amount: int, notation: Notation) -> None:
    quantity = Quantity.of(amount, notation)
    assert Quantity.parse(str(quantity)) == quantity


@given(st.integers(-(10**18), 10**18), st.sampled_from(Notation))
def test_fraction_survives_its_text(nano: int, notation: Notation) -> None:
    quantity = Quantity(nano, notation)
    assert (Quantity.parse(str(quantity)), quantity.decimal) == (quantity, Decimal(nano).scaleb(-9))


@given(st.from_regex(r"[+-]?[0-9.]{1,6}[eEinumkKMGTP]{0,2}[+-]?[0-9]{0,2}", fullmatch=True))
def test_canonical_text_stays_as_it_is(text: str) -> None:
    try:
        once = str(Quantity.parse(text))
    except ValueError:
        return
    assert str(Quantity.parse(once)) == once
