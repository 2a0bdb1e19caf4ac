"""Which lists and mappings Hydra parses: patchctl.training.recipes.grammar says the same without Hydra."""

from __future__ import annotations

import json
import random
from pathlib import Path

from harness import Upstream

from patchctl.training.recipes.grammar import BadElement, element

_PARTS = (
    *("a", "b1", "_", "0", "12", "1.5", "1e-3", "true", "null", "/", "-", "\\", "+", ".", "$", "%", "*", "@", "?", "|", " "),
    *(":", "=", "#", '"x"', "'y z'", '"', "\\,", '\\"', "${a}", "\t", "é", "!", "(", ")", "int(3)", "str(a)", "inf"),
)  # fmt: skip
_KEYS = ("a", '"k"', "k-1", "a b", "1", "true", "a/b", "a:b", "a,b")
_SEED = 3


def made(draw: random.Random, depth: int) -> str:
    """A list, a mapping or what may stand in one; about half of them are wrong."""
    kind = draw.random()
    if kind < 0.5 or depth > 3:
        return "".join(draw.choice(_PARTS) for _ in range(draw.randint(draw.random() > 0.1, 3)))
    items = [made(draw, depth + 1) for _ in range(draw.randint(0, 3))]
    if kind < 0.75:
        return f"[{draw.choice([',', ', ']).join(items)}]"
    return "{" + ",".join(f"{draw.choice(_KEYS)}{draw.choice([':', ': ', '='])}{item}" for item in items) + "}"


def taken(text: str) -> bool:
    try:
        element(text)
    except BadElement:
        return False
    return True


def test_the_grammar_is_hydras(upstream: Upstream, tmp_path: Path) -> None:
    draw = random.Random(_SEED)
    texts = [text for text in (made(draw, 0) for _ in range(4000)) if text.startswith(("[", "{"))]
    file = tmp_path / "texts.json"
    file.write_text(json.dumps(texts))
    parsed = upstream.run("tests/behaviour/verl/probe_hydra_grammar.py", file, need=[])
    assert {True, False} == set(parsed)
    assert {t: p for t, p in zip(texts, parsed, strict=True) if p != taken(t)} == {}
