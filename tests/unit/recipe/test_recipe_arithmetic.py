"""Expressions: exact, small, and nothing of Python but arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest

from patchctl.training.recipes.conditions import (
    MAX_LENGTH,
    BadExpression,
    compared,
    evaluate,
    holds,
    number,
    sides,
    whole,
)

SIZES = {"prompt": Fraction(2048), "response": Fraction(20480), "sp": Fraction(4), "a.b": Fraction(3)}


def lookup(name: str) -> Fraction:
    if name not in SIZES:
        raise BadExpression(f"no size {name}")
    return SIZES[name]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(prompt + response) / sp", 5632),
        ("2048", 2048),
        (" prompt ", 2048),
        ("7 // 2 * 2", 6),
        ("7 % 4", 3),
        ("-prompt + 2049", 1),
        ("min(prompt, response, 5) + max(1, 2)", 7),
        ("a.b * 2", 6),
        ("max(a.b)", 3),
        ("0.5 * 4", 2),
        ("0.1 + 0.2 + 0.7", 1),  # which floating point misses
    ],
)
def test_what_is_computed(text: str, value: int) -> None:
    assert whole(text, lookup) == value


@pytest.mark.parametrize("text", ["(prompt + response) / 3", "1 / 2", "0.5"])
def test_what_is_no_whole_number_is_never_rounded(text: str) -> None:
    with pytest.raises(BadExpression, match="a whole number is needed"):
        whole(text, lookup)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "promt",
        "2 ** 99",
        "1 << 9",
        "open('x')",
        "__import__('os')",
        "min()",
        "min(1, key=2)",
        "min(*[1])",
        "abs(1)",
        "(lambda: 1)()",
        "[1]",
        "'a'",
        "True",
        "1 if 1 else 2",
        "prompt.real()",
        "x := 1",
        "1; 2",
        "1 / (2 - 2)",
        "1 % 0",
        "1" * (MAX_LENGTH + 1),
        "(" * 200 + "1" + ")" * 150,
        "\x00",
    ],
)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(BadExpression):
        evaluate(text, lookup)


@pytest.mark.parametrize(
    ("text", "true"),
    [
        ("prompt + response <= 22528", True),
        ("prompt > response", False),
        ("prompt % sp == 0", True),
        ("sp != 4", False),
        ("sp >= 4", True),
        ("sp < 4", False),
    ],
)
def test_comparisons(text: str, true: bool) -> None:
    assert holds(text, lookup) is true


@pytest.mark.parametrize("text", ["prompt", "1 < 2 < 3", "1 in sp", "1 is 1", "not 1"])
def test_what_is_no_comparison(text: str) -> None:
    with pytest.raises(BadExpression):
        holds(text, lookup)
    with pytest.raises(BadExpression):
        compared(text)


def test_sides_are_what_was_compared() -> None:
    assert sides("prompt * 2 == response", lookup) == (4096, 20480)


def test_names_are_found_in_order_and_functions_are_none() -> None:
    assert compared("min(a.b, prompt) + a.b <= 2 * sp") == ["a.b", "prompt", "sp"]


@pytest.mark.parametrize(("text", "value"), [("1e-6", Fraction(1, 10**6)), ("-1", -1), ("0.5", Fraction(1, 2))])
def test_numbers(text: str, value: Fraction) -> None:
    assert number(text) == value


@pytest.mark.parametrize("text", ["", "True", "[1]", "1/0", "nan", "inf", "x"])
def test_no_numbers(text: str) -> None:
    assert number(text) is None
