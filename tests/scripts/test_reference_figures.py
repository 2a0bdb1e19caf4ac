"""docs/reference-figures.md: what it computes from the documents' figures is computed again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference-figures.md").read_text(encoding="utf-8")
TIB = 2**40


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its two first lines."""
    part = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(text: str) -> float:
    return float(re.sub(r"[^\d.-]", "", text))


GAINS = rows("What a change gained")
STEPS = [row for row in rows("Whole steps") if row[4] and row[6].endswith(" s")]


@pytest.mark.parametrize("row", GAINS, ids=lambda row: f"{row[0]}, {row[1]}")
def test_gains(row: list[str]) -> None:
    before, after, shown = number(row[2]), number(row[3]), row[4]
    digits = len(shown.removesuffix(" %").partition(".")[2])
    assert round(100 * (before - after) / before, digits) == number(shown)


def test_theirs_differ_where_the_page_says_so() -> None:
    theirs = {(row[2], row[3]): (row[4], row[5]) for row in GAINS}
    assert theirs["6400 s", "6000 s"] == ("6.25 %", "6.67 %")
    assert round(100 * (6400 / 6000 - 1), 2) == 6.67
    for before, after in ((2444, 2106), (2444, 1621)):
        computed, said = map(number, theirs[f"{before} s", f"{after} s"])
        assert int(computed) == said != round(computed)


@pytest.mark.parametrize("row", STEPS, ids=lambda row: row[0])
def test_tokens_a_second(row: list[str]) -> None:
    devices, step = number(row[1]), number(row[6])
    batch, n = map(number, row[2].split("×"))
    prompt, answer = map(number, row[4].split("/"))
    a_device = batch * n * (prompt + answer) / step / devices
    assert a_device == pytest.approx(number(row[8]), rel=0.005)
    assert 2 * a_device == pytest.approx(number(row[7].removesuffix(" tokens/s")), rel=0.005)
    assert len(STEPS) == 3


def test_memory_of_the_controller() -> None:
    def tib(response: int, batch: int) -> float:
        return response * 1024 * batch * 16 * 512 * 2 * 4 / TIB

    (row,) = [row for row in rows("Memory") if row[0].startswith("the controller")]
    assert (tib(64, 512), tib(64, 256), tib(128, 64)) == (2.0, 1.0, 0.5)
    assert [number(found) for found in re.findall(r"([\d.]+) TiB", row[1])] == [2.0, 1.0, 0.5]


def test_memory_that_was_not_given_back() -> None:
    (row,) = [row for row in rows("Memory") if row[0].startswith("not given back")]
    lost, first, second, freed = map(float, re.findall(r"\d+\.\d+", row[1]))
    assert round(first + second - freed, 2) == lost
