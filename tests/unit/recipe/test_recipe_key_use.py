"""Every key that rules and code read is one of the framework's: a rule on a key that is gone is never broken, a count is of nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pins import distribution, recipes

from patchctl.training.recipes.conditions import names_in, renamed_in, true_of, version_of
from patchctl.training.recipes.keys import FOLDER, KeyList, list_of
from patchctl.training.recipes.types import Condition

REPOSITORY = Path(__file__).parents[3]
DIST = distribution()
UPSTREAM = "verl"
_LOADED = recipes().rules
assert _LOADED is not None
RULES = _LOADED.value
# Read on one version, where another has nothing of the kind: why that is right.
OF_ONE_VERSION = {
    "trainer.use_v1": "of 0.9; without the key the trainer is the older one",
    "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes": "of 0.9, as its check is",
    "actor_rollout_ref.actor.load_weight": "of 0.6; 0.9 loads weights always",
    "actor_rollout_ref.actor.megatron.hybrid_data_parallel": "of 0.6's hdp, which has its own buffers",
    "reward.custom_reward_function.path": "of 0.9; rule reward-for-the-data reads both names, which 0.9 has",
}
_MORE = {"critic", "global_profiler", "ray_kwargs", "transfer_queue"}


def versions() -> list[str]:
    return sorted(path.stem for path in (REPOSITORY / FOLDER / UPSTREAM).glob("*.tsv"))


@cache
def listed(stack: str) -> KeyList:
    found = list_of(DIST, UPSTREAM, stack)
    assert found is not None
    return found


def knows(keys: KeyList, key: str) -> bool:
    """Whether some composition has the key, or takes it as one of a mapping."""
    kinds = {name: kind for name, kind, _ in keys.rows}
    above = key
    while above and above not in kinds:
        above = above.rpartition(".")[0]
    return key in kinds or kinds.get(above) in ("free", "field")


def sections() -> set[str]:
    return {key.partition(".")[0] for stack in versions() for key, _, _ in listed(stack).rows}


@pytest.mark.parametrize("stack", versions())
def test_every_key_of_a_rule_is_known_where_the_rule_is_asked(stack: str) -> None:
    of_stack = {UPSTREAM: version_of(DIST.stack(UPSTREAM, stack)) or ""}
    renamed, unknown = renamed_in(RULES, of_stack), {}
    for name, rule in RULES.rules.items():
        if not true_of({u: limits for u, limits in rule.of.items() if u == UPSTREAM}, of_stack):
            continue
        read = [key for part in (rule.when, rule.must) for key in names_in(part or Condition())]
        keys = [renamed.get(key, key) for key in read if key.partition(".")[0] in sections()]
        if gone := [key for key in keys if not knows(listed(stack), key) and key not in OF_ONE_VERSION]:
            unknown[name] = gone
    assert unknown == {}


def test_every_key_that_code_reads_is_known_to_the_newest_version_or_renamed() -> None:
    newest = versions()[-1]
    renamed = renamed_in(RULES, {UPSTREAM: version_of(DIST.stack(UPSTREAM, newest)) or ""})
    unknown = {
        key: where
        for key, where in keys_of_code()
        if not knows(listed(newest), renamed.get(key, key)) and key not in OF_ONE_VERSION
    }
    assert unknown == {}


def test_what_is_of_one_version_is_known_to_one() -> None:
    assert [key for key in OF_ONE_VERSION if not any(knows(listed(stack), key) for stack in versions())] == []
    assert [key for key in OF_ONE_VERSION if all(knows(listed(stack), key) for stack in versions())] == []


def keys_of_code() -> Iterator[tuple[str, str]]:
    """Texts of patchctl.training that are keys, with their modules; constants that they are made of are filled in."""
    for path in sorted((REPOSITORY / "patchctl" / "training").rglob("*.py")):
        known = constants(path)
        for node in ast.walk(ast.parse(path.read_text())):
            text = text_of(node, known)
            if text and re.fullmatch(r"[a-z_]+(\.[a-z0-9_]+)+", text) and text.partition(".")[0] in sections() | _MORE:
                yield text, path.name


@cache
def constants(path: Path) -> dict[str, str]:
    """The texts that a module gives names, those that it imports among them."""
    found: dict[str, str] = {}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            found[node.targets[0].id] = text_of(node.value, found) or ""
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("patchctl.training"):
            other = REPOSITORY / f"{(node.module or '').replace('.', '/')}.py"
            texts = constants(other) if other.is_file() else {}
            found |= {name.asname or name.name: texts[name.name] for name in node.names if name.name in texts}
    return {name: text for name, text in found.items() if text}


def text_of(node: ast.AST, known: dict[str, str]) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [text_of(part.value if isinstance(part, ast.FormattedValue) else part, known) for part in node.values]
        return None if None in parts else "".join(part or "" for part in parts)
    return None
