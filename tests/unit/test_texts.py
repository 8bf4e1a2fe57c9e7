"""Words that messages of several packages are made of."""

import pytest

from dra_driver.model.texts import listed


@pytest.mark.parametrize(
    ("names", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a, b"), (["a", "b", "c", "d"], "a, b and 2 more")]
)
def test_long_list_is_cut_and_says_how_much_is_left_out(names: list[str], text: str) -> None:
    assert listed(names, 2) == text
