"""Changes bytes, and values that came from JSON or YAML: at random, and towards what readers are known to get wrong."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

TOKENS: tuple[bytes, ...] = (
    b"\x00", b"\xff", b"\r\n", b"\n", b"\xef\xbb\xbf", b"\xc3\x28", b"\xed\xa0\x80", b"\x1b[2J", b"../", b"/", b"-1",
    b"0",
    b"9" * 20, b"9" * 5000, b"[" * 40, b"[" * 100_000, b"{", b"}", b'"', b"\\ud800", b"\\u0000", b"null", b"true",
    b"1e999", b"NaN", b"a" * 300,
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**63, 10**400, 0.5, 1e308, float("nan"), float("inf"), "", " ", "x", "..", "/", "../../x", "/etc",
    "a/../b", "a//b", ".git/config", ".GIT/x", "a\x00b", "\ud800", "\udcff", "\x1b]0;x\x07", "\u202e", "x" * 5000,
    "0" * 40, "f" * 40,
    "f" * 39, "f" * 64, "F" * 40, "HEAD", "--output=x", "unknown", "managed", "into", "git",
    "sdist", [], {}, [[]], {"": ""}, ["x"], [None],
)  # fmt: skip


def changed_bytes(rng: random.Random, data: bytes, tokens: Sequence[bytes] = TOKENS) -> bytes:
    """One change of some bytes: exchanged, put in, cut out, doubled, cut off, or a token of `tokens` put in."""
    at = rng.randrange(len(data) + 1)
    kind = rng.randrange(8)
    if kind == 0 and data:
        at = min(at, len(data) - 1)
        return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
    if kind == 1:
        return data[:at] + rng.randbytes(rng.randint(1, 4)) + data[at + rng.randint(0, 4) :]
    if kind == 2:
        return data[:at] + data[at + rng.randint(1, 40) :]
    if kind == 3:
        end = at + rng.randint(1, 60)
        return data[:end] + data[at:end] + data[end:]
    if kind == 4:
        return data[:at]
    if kind == 5:
        other = rng.randrange(len(data) + 1)
        return data[:at] + data[other : other + rng.randint(1, 60)] + data[at:]
    return data[:at] + rng.choice(tokens) + data[at + rng.choice((0, 0, 1, 8)) :]


def changed_value(rng: random.Random, value: Any, more: Sequence[Any] = ()) -> Any:
    """A copy of a value in which one to three places are other values, missing, doubled, or exchanged."""
    held = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _change_one(rng, held, more)
    return held[0]


def _change_one(rng: random.Random, held: list[Any], more: Sequence[Any]) -> None:
    places = list(_places(held))
    container, key = rng.choice(places)
    kind = rng.randrange(10)
    if kind < 5:
        container[key] = copy.deepcopy(_other(rng, container[key], more))
    elif kind == 5 and container is not held:
        del container[key]
    elif kind == 6 and isinstance(container, dict):
        name = rng.choice([v for v in (*VALUES, *more) if isinstance(v, str)])
        container[name] = container.pop(key) if rng.randrange(2) else copy.deepcopy(container[key])
    elif kind == 7 and isinstance(container, list):
        container.insert(rng.randrange(len(container) + 1), copy.deepcopy(container[key]))
        held[:] = held[:1]
    elif kind == 8:
        source, name = rng.choice(places)
        container[key] = copy.deepcopy(source[name])
    else:
        container[key] = [container[key]] if rng.randrange(2) else {"x": container[key]}


def _other(rng: random.Random, value: Any, more: Sequence[Any]) -> Any:
    if more and rng.randrange(2):
        return rng.choice(more)
    if isinstance(value, str) and value and rng.randrange(2):
        at = rng.randrange(len(value))
        return (
            value[:at]
            + rng.choice(("", "/", "..", "\x00", "A", "0", "\n", "\ud83d", " "))
            + value[at + rng.randrange(2) :]
        )
    if isinstance(value, int) and not isinstance(value, bool) and rng.randrange(2):
        return value + rng.choice((-1, 1, 512, -(10**9), 10**12))
    return rng.choice(VALUES)


def _places(held: list[Any]) -> Any:
    """(container, key) of every value below, the whole first."""
    todo: list[Any] = [held]
    while todo:
        container = todo.pop()
        for key in container if isinstance(container, dict) else range(len(container)):
            yield container, key
            if isinstance(container[key], (dict, list)):
                todo.append(container[key])
