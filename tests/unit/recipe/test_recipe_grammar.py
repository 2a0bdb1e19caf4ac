"""Texts that nobody means are refused as others are, and in time."""

from __future__ import annotations

import pytest

from patchctl.training.recipes.grammar import BadElement, element

DEEP = 100_000


@pytest.mark.parametrize(
    "text", ["[" * DEEP, "{a:" * DEEP, "int(" * DEEP, "${" * DEEP, '"' * (DEEP + 1), "[" + "a," * DEEP]
)
def test_a_hostile_text_is_refused(text: str) -> None:
    with pytest.raises(BadElement):
        element(text)


def test_a_long_word_is_one() -> None:
    assert element("a" * DEEP) == "a" * DEEP
