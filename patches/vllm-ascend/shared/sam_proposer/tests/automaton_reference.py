"""What the suffix automaton must answer, found by comparing every position; and the streams it is asked about."""

from __future__ import annotations

import ast
import re
import sys
import types
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def load_automaton() -> Any:
    """The module of the tree on PYTHONPATH, without running the packages' `__init__`: those import torch and vllm."""
    for name in ("vllm_ascend", "vllm_ascend.spec_decode"):
        package = types.ModuleType(name)
        package.__path__ = [str(Path(folder, *name.split("."))) for folder in sys.path]
        sys.modules[name] = package
    return import_module("vllm_ascend.spec_decode.suffix_automaton")


class Searched:
    """Histories, each compared with every position of every other: the reference for one automaton.

    `add` begins a history; a history that was dropped stays to be searched, as it stays in an automaton.
    """

    def __init__(self) -> None:
        self.histories: list[np.ndarray] = []

    def add(self) -> int:
        self.histories.append(np.zeros(0, np.int32))
        return len(self.histories) - 1

    def extend(self, index: int, tokens: Any) -> None:
        self.histories[index] = np.concatenate([self.histories[index], np.asarray(tokens, np.int32)])

    def followed(self, context: np.ndarray) -> tuple[int, list[int]]:
        """The length of the longest suffix of `context` that some token follows, and what follows it, in order of place."""
        longest, tokens = 0, []
        for history in self.histories:
            lengths = common_suffixes(context, history)
            best = int(lengths.max(initial=0))
            if best > longest:
                longest, tokens = best, []
            if best == longest > 0:
                tokens += history[np.flatnonzero(lengths == best)].tolist()
        return longest, tokens

    def is_followed(self, context: np.ndarray, token: int, shortest: int) -> bool:
        """Whether a suffix of `context` of at least `shortest` tokens was followed by this token."""
        return any(
            bool(((common_suffixes(context, history) >= shortest) & (history == token)).any())
            for history in self.histories
        )


def common_suffixes(context: np.ndarray, history: np.ndarray) -> np.ndarray:
    """For every place of `history`: how many tokens before it are the last ones of `context`."""
    lengths = np.zeros(len(history), np.int64)
    going = np.arange(len(history)) >= 0
    for back in range(1, min(len(context), len(history)) + 1):
        places = np.arange(len(history)) - back
        going &= (places >= 0) & (history[np.maximum(places, 0)] == context[-back])
        if not going.any():
            break
        lengths[going] = back
    return lengths


def fibonacci(length: int) -> list[int]:
    before, word = [1], [0]
    while len(word) < length:
        before, word = word, word + before
    return word[:length]


def source_tokens(length: int) -> list[int]:
    """Real text: words and signs of a Python module, numbered as they come."""
    text = Path(ast.__file__).read_text(encoding="utf-8")
    numbers: dict[str, int] = {}
    words = re.findall(r"\w+|[^\w\s]|\n *", text)
    return [numbers.setdefault(word, len(numbers)) for word in words][:length]


def streams(rng: np.random.Generator) -> dict[str, list[int]]:
    """Streams that are hard in different ways: few symbols, periods, no end of repetition, real text."""
    motif = rng.integers(0, 100, 23)
    noisy = np.tile(motif, 8)
    noisy[::17] = rng.integers(0, 100, len(noisy[::17]))
    made = {
        "one symbol": [7] * 90,
        "period 3": [1, 2, 3] * 40,
        "fibonacci": fibonacci(150),
        "noisy period": noisy.tolist(),
        "changes at the end": [0] + [1] * 80 + [2],
        "large ids": (rng.integers(0, 4, 120) + (1 << 30)).tolist(),
        "source": source_tokens(420),
    }
    for symbols in (2, 3, 5, 50):
        for repeat in range(3):
            made[f"random {symbols}.{repeat}"] = rng.integers(0, symbols, int(rng.integers(40, 150))).tolist()
    return made
