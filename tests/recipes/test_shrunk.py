"""The table of sizes replaces sizes only: each replaced key is one of the table or an expression of the recipe's own sizes,
and the shrunk recipe keeps the recipe's rules."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from shrunk import REPO, TABLE, recipes, replaced, shipped, shrunk

from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.resolve import bare

KNOWN = recipes()
KEYS = shipped(KNOWN)


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_nothing_but_sizes_is_replaced(key: tuple[str, str]) -> None:
    one = shrunk(KNOWN, key, {})
    changed = replaced(KNOWN, one)
    computed = {name for name, value in one.recipe.overrides.items() if value.written.startswith("= ")}
    left_out = {name for name in one.recipe.overrides if bare(name) in TABLE["left_out"]}
    assert all(changed[name][1] == "" for name in left_out)
    allowed = {*left_out, *one.recipe.sizes, *computed, *TABLE["run"]} | {
        name for name in one.recipe.overrides if bare(name) in TABLE["amounts"]
    }
    assert set(changed) <= allowed


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_no_switch_of_a_feature_is_replaced(key: tuple[str, str]) -> None:
    switches = {switch.name for switch in features_and_switches(Distribution.load(REPO), key[0])[1]}
    amounts = {"actor_rollout_ref.rollout.data_parallel_size"}  # a switch by its number, which follows the sizes
    changed = {bare(name) for name in replaced(KNOWN, shrunk(KNOWN, key, {}))}
    lengths = {name for name in TABLE["amounts"] if name in switches}
    assert changed & switches <= amounts | lengths
    assert lengths <= {
        "actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.moe_chunk_tokens",
        "actor_rollout_ref.rollout.cudagraph_capture_sizes",
    }


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_ranks_are_at_most_eight(key: tuple[str, str]) -> None:
    one = shrunk(KNOWN, key, {})
    assert 1 <= one.ranks <= TABLE["most_ranks"]


def test_every_recipe_but_the_demos_is_run() -> None:
    assert {key[0] for key in KNOWN.runnable()} - {key[0] for key in KEYS} <= {"demo"}
