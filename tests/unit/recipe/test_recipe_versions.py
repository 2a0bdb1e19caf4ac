"""Rules, defaults and names of keys are true of versions of upstreams, as the stacks of a run have them, and of no release."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest
from pins import distribution, newest, oldest, recipes_on

from patchctl.manifest.load import read
from patchctl.manifest.types import Pin, Sdist, Stack
from patchctl.training.recipes.conditions import faults, table_of, true_of, version_of
from patchctl.training.recipes.read import RULES, Recipes
from patchctl.training.recipes.resolve import Given, RecipeRun, resolve
from patchctl.training.recipes.rules import broken_rules, facts_of
from patchctl.training.recipes.types import Rules

REPOSITORY = Path(__file__).parents[3]
DIST = distribution()
NEWEST, OLDEST = recipes_on(newest()), recipes_on(oldest())
assert NEWEST.rules is not None
ROLLOUT = "actor_rollout_ref.rollout"
MEGATRON = "actor_rollout_ref.actor.megatron"


def run_of(recipes: Recipes, recipe: str, **overrides: str) -> RecipeRun:
    profile, _, name = recipe.partition("/")
    return resolve(recipes, profile, name, Given(overrides=overrides))


def broken(recipes: Recipes, recipe: str, **overrides: str) -> set[str]:
    return {one.rule for one in broken_rules(run_of(recipes, recipe, **overrides), recipes.rules)}


@pytest.mark.parametrize(
    ("limits", "versions", "true"),
    [
        ({"verl": ">=0.9"}, {"verl": "0.9.0"}, True),
        ({"verl": ">=0.9"}, {"verl": "0.10.0"}, True),
        ({"verl": "<0.9"}, {"verl": "0.9.0"}, False),
        ({"vllm-ascend": ">=0.14"}, {"vllm-ascend": "0.14.1rc1"}, True),
        ({"verl": ">=0.6,<0.9", "megatron-lm": "<0.16"}, {"verl": "0.6.0", "megatron-lm": "0.16.0"}, False),
        ({"mindspeed": ">=0.1"}, {"verl": "0.9.0"}, False),
        ({}, {}, True),
    ],
)
def test_what_is_true_of_versions(limits: dict[str, str], versions: dict[str, str], true: bool) -> None:
    assert true_of(limits, versions) is true


@pytest.mark.parametrize(
    ("tag", "sdist", "version"),
    [("v0.9.0", "0.9.0", "0.9.0"), ("core_v0.16.0", None, "0.16.0"), (None, None, None)],
)
def test_the_version_of_a_pin(tag: str | None, sdist: str | None, version: str | None) -> None:
    pin = Pin(commit="a" * 40, tree=None, tag=tag, sdist=Sdist(sdist, "b" * 64) if sdist else None)
    some = next(iter(DIST.stacks.values()))
    assert isinstance(some, Stack)
    assert version_of(replace_pin(some, pin)) == version


def replace_pin(stack: Stack, pin: Pin) -> Stack:
    from dataclasses import replace as replaced

    return replaced(stack, pin=pin)


def test_the_table_of_a_version() -> None:
    assert table_of("all@verl>=0.6,<0.9") == ("all", {"verl": "<0.9,>=0.6"})
    assert table_of("ppo_trainer") == ("ppo_trainer", {})


def test_no_rule_names_a_release() -> None:
    assert re.findall(r"\b20[0-9]{2}\.[0-9]{2}\b", (REPOSITORY / RULES).read_text()) == []


def test_a_new_release_of_the_same_stacks_has_the_same_rules() -> None:
    run = run_of(NEWEST, "qwen3-32b/grpo", **{f"{ROLLOUT}.mode": "sync"})
    later = replace(run, release="2999.01")
    assert {one.rule for one in broken_rules(later, NEWEST.rules)} == {"servers-alone"}


@pytest.mark.parametrize(
    ("recipe", "key", "value", "rule"),
    [
        ("qwen3-32b/grpo", f"{ROLLOUT}.mode", "sync", "servers-alone"),
        ("qwen3-235b/grpo", f"{ROLLOUT}.log_prob_use_dynamic_bsz", "False", "log-prob-batches-as-the-actors"),
        (
            "qwen3-235b/grpo",
            f"{MEGATRON}.override_transformer_config.recompute_granularity",
            "selective",
            "selective-recompute",
        ),
        (
            "qwen3-32b/grpo",
            f"{ROLLOUT}.engine_kwargs.vllm.additional_config.weight_nz_mode",
            "1",
            "weights-put-into-nz",
        ),
    ],
)
def test_what_stops_a_run_of_the_newest_release_is_refused(recipe: str, key: str, value: str, rule: str) -> None:
    assert rule in broken(NEWEST, recipe, **{key: value})


def test_what_the_newest_release_takes_is_taken() -> None:
    """verl v0.9.0 takes the device that is there, and reads a converted checkpoint beside the bridge."""
    assert broken(NEWEST, "qwen3-32b/grpo", **{"trainer.device": "cuda"}) == set()
    converted = {f"{MEGATRON}.use_dist_checkpointing": "True", f"{MEGATRON}.dist_checkpointing_path": "/c"}
    assert broken(NEWEST, "qwen3-235b/grpo", **converted) == set()


def test_what_the_oldest_release_needs_is_asked_there() -> None:
    assert broken(OLDEST, "qwen3-32b/grpo", **{"trainer.device": "cuda"}) == {"device-is-npu"}


def test_weights_in_nz_are_asked_by_what_verl_does_with_the_variable() -> None:
    """v0.9.0 sets VLLM_ASCEND_ENABLE_NZ=0 where nobody has."""
    for recipes, rules in ((NEWEST, set()), (OLDEST, {"weights-not-in-nz"})):
        run = run_of(recipes, "qwen3-32b/grpo")
        environment = {name: v for name, v in run.environment.items() if name != "VLLM_ASCEND_ENABLE_NZ"}
        bare = replace(run, environment=environment)
        assert {one.rule for one in broken_rules(bare, recipes.rules)} == rules


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("algorithm.rollout_is", "algorithm.rollout_correction.rollout_is", "token"),
        (
            "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
            "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
            "8",
        ),
    ],
)
def test_a_renamed_key_is_read_under_both_names(old: str, new: str, value: str) -> None:
    assert NEWEST.rules is not None
    facts = facts_of(run_of(NEWEST, "qwen3-32b/grpo", **{new: value}), NEWEST.rules.value)
    assert facts.text(old) == facts.text(new) == value


def test_an_override_that_makes_another_configuration_has_its_defaults() -> None:
    assert NEWEST.rules is not None
    facts = facts_of(run_of(NEWEST, "qwen3-32b/gspo", model_engine="megatron"), NEWEST.rules.value)
    assert facts.text("actor_rollout_ref.actor.strategy") == "fsdp2"  # which the recipe says itself
    assert facts.text(f"{MEGATRON}.pipeline_model_parallel_size") == "1"
    assert facts.text("actor_rollout_ref.actor.ulysses_sequence_parallel_size") == "4"


RULE = """\
schema: 1
rules:
  one:
    says: a
    why: b
    source: c
    of: {CONDITION}
    must: {equals: {trainer.nodes: 1}}
    hint: d
    good: [{trainer.nodes: 1}]
    bad: [{trainer.nodes: 2}]
defaults:
  TABLE: {trainer.nodes: 1}
renamed:
  NAME: {trainer.nodes: trainer.nnodes}
"""


@pytest.mark.parametrize(
    ("condition", "table", "name", "found"),
    [
        ("verl: '>=0.9'", "all@verl>=0.9", "verl>=0.9", []),
        ("vrl: '>=0.9'", "all", "verl>=0.9", [(7, "no upstream 'vrl'; did you mean 'verl'?")]),
        ("verl: '>=0.9'", "all@vrl>=0.9", "verl>=0.9", [(13, "no upstream 'vrl'; did you mean 'verl'?")]),
        ("verl: '>=0.9'", "all", "vrl>=0.9", [(15, "no upstream 'vrl'; did you mean 'verl'?")]),
    ],
)
def test_a_condition_on_an_upstream_that_there_is_not(
    tmp_path: Path, condition: str, table: str, name: str, found: list[tuple[int, str]]
) -> None:
    text = dedent(RULE).replace("CONDITION", condition).replace("TABLE", table).replace("NAME", name)
    (tmp_path / "rules.yaml").write_text(text)
    loaded = read(tmp_path / "rules.yaml", Rules)
    assert [(fault.line, fault.what) for fault in faults(loaded, ("verl", "vllm"))] == found
