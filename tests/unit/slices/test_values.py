import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_driver.slices import values
from dra_driver_api.quantity import Quantity

SEMVER = re.compile(
    r"(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)\.(0|[1-9][0-9]*)"
    r"(-(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*)(\.(0|[1-9][0-9]*|[0-9]*[A-Za-z-][0-9A-Za-z-]*))*)?"
    r"(\+[0-9A-Za-z-]+(\.[0-9A-Za-z-]+)*)?"
)


@pytest.mark.parametrize(
    ("written", "published"),
    [
        ("580.159.04", "580.159.4"),
        ("535.54.03", "535.54.3"),
        ("9.0", "9.0.0"),
        ("13", "13.0.0"),
        ("v1.2.3", "1.2.3"),
        ("00.00.00", "0.0.0"),
        ("580.65.06-beta.1", "580.65.6-beta.1"),
    ],
)
def test_version_becomes_semver(written: str, published: str) -> None:
    assert values.version(written) == published


@pytest.mark.parametrize(
    "written",
    [
        "",
        "N/A",
        "1.2.3.4",
        "1..2",
        "1.2.3-01",
        "1.2.3-",
        "1.2.3-a..b",
        "1" * 21,
        "1.2.3+" + "a" * 64,
        "\u0661.2",
        None,
        5,
    ],
)
def test_version_is_none_when_it_cannot_be_semver(written: object) -> None:
    assert values.version(written) is None


@given(st.text(alphabet="0123456789.v-+aB ", max_size=90) | st.text())
def test_version_is_semver_of_64_characters_or_none_whatever_comes(written: str) -> None:
    published = values.version(written)
    assert published is None or (len(published) <= 64 and SEMVER.fullmatch(published))


@pytest.mark.parametrize(
    ("written", "published"), [("NVIDIA L4", "NVIDIA L4"), ("a" * 63 + "é", "a" * 63), ("", None), (7, None)]
)
def test_string_is_cut_at_a_character(written: object, published: str | None) -> None:
    assert values.string(written) == published


@given(st.text(alphabet=st.characters(exclude_categories=[])))
def test_string_fits_the_api_whatever_comes(written: str) -> None:
    published = values.string(written)
    assert (published is None) == (not written)
    assert published is None or 0 < len(published.encode("utf-8")) <= 64


@pytest.mark.parametrize(
    ("number", "written"),
    [
        (150754820096, "143771Mi"),
        (16 * 1024**3, "16Gi"),
        (2**60, "1Ei"),
        (1536, "1536"),
        (2048, "2Ki"),
        (7, "7"),
        (0, "0"),
        (-1, None),
        (2**63, None),
        (True, None),
        ("1Gi", None),
    ],
)
def test_quantity_is_written_with_the_largest_binary_suffix(number: object, written: str | None) -> None:
    assert values.quantity(number) == written


@given(st.integers(min_value=0, max_value=values.INT64_MAX))
def test_quantity_reads_back_as_the_number(number: int) -> None:
    assert Quantity.parse(str(values.quantity(number))).amount == number


@pytest.mark.parametrize(("number", "published"), [(3, 3), (2**63, None), (True, None), ("3", None)])
def test_integer_has_64_bits(number: object, published: int | None) -> None:
    assert values.integer(number) == published
