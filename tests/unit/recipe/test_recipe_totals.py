"""What a run comes to: counted by hand for the recipes here, and for the first run as it was."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pins import recipes

from patchctl.training.recipes.resolve import Given, resolve
from patchctl.training.recipes.totals import Totals, mean_length, totals_of

REPOSITORY = Path(__file__).parents[3]
RECIPES = recipes()
assert RECIPES.rules is not None
RULES = RECIPES.rules.value
ONE = 10**9
KEEP = "trainer.max_actor_ckpt_to_keep"


def totals(title: str, sizes: dict[str, str] | None = None, **overrides: str) -> Totals:
    given = Given(sizes=sizes or {}, overrides={key.replace("__", "."): value for key, value in overrides.items()})
    return totals_of(resolve(RECIPES, *title.split("/"), given), RULES, ONE)


def test_the_first_run_as_it_was() -> None:
    """Five epochs, a checkpoint every 20 steps, all kept, and all of MATH's test part every five steps."""
    found = totals(
        "qwen2.5-1.5b/grpo",
        {"validation_rows": "5000"},
        trainer__total_epochs="5",
        trainer__save_freq="20",
        trainer__test_freq="5",
        trainer__max_actor_ckpt_to_keep="null",
    )
    assert (found.steps, found.trained, found.at_most) == (585, 299_520, False)
    assert (found.written, found.kept, found.kept_bytes) == (30, 30, 30 * ONE)
    assert (found.validations, found.validated) == (118, 590_000)


def test_the_first_run_as_it_is() -> None:
    found = totals("qwen2.5-1.5b/grpo")
    assert (found.steps, found.trained) == (117, 59_904)
    assert (found.written, found.kept, found.kept_bytes) == (3, 2, 2 * ONE)
    assert (found.validations, found.validated) == (13, 6_500)


def test_a_run_that_only_validates_takes_no_step() -> None:
    found = totals("qwen2.5-1.5b/grpo", trainer__val_only="True", trainer__val_before_train="True")
    assert (found.steps, found.trained, found.written, found.validations) == (0, 0, 0, 1)


def test_filtered_groups_take_several_batches_a_step() -> None:
    found = totals("qwen3-32b/dapo", {"train_rows": "1791700"}, trainer__total_epochs="10")
    assert found.at_most and found.steps == 139_970


def test_the_v1_trainer_counts_steps_of_its_own_batch() -> None:
    """verl v0.9.0, ppo/v1/trainer_base.py: steps of an epoch are rows by train_batch_size, whatever is fetched at once."""
    found = totals("qwen3-32b/grpo", trainer__use_v1="True", data__gen_batch_size="32")
    assert (found.steps, found.trained) == (totals("qwen3-32b/grpo").steps, totals("qwen3-32b/grpo").trained)


def test_a_number_of_steps_that_is_said_ends_the_run_before_the_data_does() -> None:
    assert totals("qwen3-32b/dapo", trainer__total_training_steps="100").steps == 100
    assert totals("qwen3-32b/dapo", trainer__total_training_steps="999999").steps == 270


def test_never_and_unknown_are_two_things() -> None:
    never = totals("qwen3-235b/grpo-random-init")
    assert (never.written, never.kept, never.kept_bytes, never.validations, never.validated) == (0, 0, 0, 0, 0)
    run = resolve(RECIPES, "qwen3-235b", "grpo")
    nameless = {name: size for name, size in run.sizes.items() if name not in ("train_rows", "validation_rows")}
    unknown = totals_of(replace(run, sizes=nameless), RULES)
    assert (unknown.steps, unknown.trained, unknown.written, unknown.kept) == (None, None, None, 2)
    assert (unknown.checkpoint_bytes, unknown.kept_bytes) == (None, None)


@pytest.mark.parametrize("key", RECIPES.runnable(), ids="/".join)
def test_no_recipe_fills_a_disk_or_validates_more_than_it_trains(key: tuple[str, str]) -> None:
    run = resolve(RECIPES, *key)
    found = totals_of(run, RULES, ONE)
    assert found.steps is not None and found.trained is not None
    assert found.kept is not None and found.kept <= 2
    assert found.validated is not None and found.validated <= found.trained / 8


@pytest.mark.parametrize("key", RECIPES.runnable(), ids="/".join)
def test_every_recipe_says_how_long_its_sequences_are(key: tuple[str, str]) -> None:
    run = resolve(RECIPES, *key)
    mean = mean_length(run)
    assert mean is not None and mean <= int(run.sizes["prompt"].value) + int(run.sizes["response"].value)
    assert mean_length(resolve(RECIPES, *key, Given(sizes={"mean_length": "77"}))) == 77
