"""Which override's key the framework's configuration takes, by the list that is in the repository.

tests/behaviour/test_recipes.py asks Hydra the same questions, and compares the list with the trees.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pins import distribution, newest, on, recipes, recipes_on

from patchctl.errors import BadManifest, WrongUse
from patchctl.training.recipes.keys import FOLDER, KnownKeys, read_keys, unknown_keys
from patchctl.training.recipes.resolve import Given, RecipeRun, resolve
from patchctl.training.recipes.rules import facts_of
from patchctl.training.recipes.shell import environment_sh

REPOSITORY = Path(__file__).parents[3]
DIST = distribution()
RECIPES = recipes()
NEWEST = on(newest())
RECIPES_OF_NEWEST = recipes_on(newest())
ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
OVERRIDE = f"{ACTOR}.megatron.override_transformer_config"


def run_of(profile: str, name: str, **overrides: str) -> RecipeRun:
    return resolve(RECIPES, profile, name, Given(overrides=overrides))


def keys_of(profile: str, name: str) -> KnownKeys:
    found = read_keys(DIST, run_of(profile, name))
    assert found is not None
    return found


def newest(profile: str, name: str, **overrides: str) -> KnownKeys:
    """The keys of a recipe on the newest release, with overrides of it."""
    found = read_keys(NEWEST, resolve(RECIPES_OF_NEWEST, profile, name, Given(overrides=overrides)))
    assert found is not None
    return found


GRPO, DAPO = keys_of("qwen3-235b", "grpo"), keys_of("qwen3-32b", "dapo-fsdp2")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        (GRPO, "trainer.total_epochs"),
        (GRPO, "++trainer.total_epochs"),
        (GRPO, "~trainer.val_before_train"),
        (GRPO, f"{OVERRIDE}.recompute_method"),
        (GRPO, f"+{OVERRIDE}.moe_zero_memory"),
        (GRPO, f"+{ROLLOUT}.engine_kwargs.vllm.additional_config.eplb_config.eplb_policy_type"),
        (GRPO, "+custom_reward_function.reward_kwargs.thinking_opened"),
        (GRPO, f"+{ROLLOUT}.limit_images"),
        (GRPO, "+trainer.of_a_logger"),
        (GRPO, "hydra.run.dir"),
        (GRPO, f"+{OVERRIDE}.recompute_granularity"),
        (GRPO, "model@actor_rollout_ref.model"),
        (DAPO, "data.gen_batch_size"),
        (DAPO, f"{ACTOR}.fsdp_config.param_offload"),
    ],
)
def test_a_key_that_there_is(keys: KnownKeys, key: str) -> None:
    assert keys.fault(key) is None


@pytest.mark.parametrize(
    ("keys", "key", "found", "hint"),
    [
        (GRPO, f"{ROLLOUT}.max_num_seq", "is none of ppo_megatron_trainer", f"{ROLLOUT}.max_num_seqs"),
        (GRPO, f"+{ROLLOUT}.max_num_seq", "is none of", f"{ROLLOUT}.max_num_seqs"),
        (GRPO, f"++{ROLLOUT}.max_num_seq", "is none of", f"{ROLLOUT}.max_num_seqs"),
        (GRPO, "trainer.total_epoch", "is none of", "trainer.total_epochs"),
        (GRPO, "+data.max_respnse_length", "is none of", "data.max_response_length"),
        (GRPO, "actor_rollout_ref.max_num_seqs", "is none of", f"{ROLLOUT}.max_num_seqs"),
        (GRPO, "data.gen_batch_size", "is none of", "data.train_batch_size"),
        (GRPO, "trainer.quite_another", "is none of", "patchctl recipe show"),
        (GRPO, f"{OVERRIDE}.moe_zero_memory", "is not declared", f"+{OVERRIDE}.moe_zero_memory"),
        (GRPO, f"{ROLLOUT}.limit_images", "is not declared", f"+{ROLLOUT}.limit_images"),
        (GRPO, "+trainer.test_freq", "is declared", "trainer.test_freq, without +"),
        (DAPO, f"{ACTOR}.megatron.tensor_model_parallel_size", "is none of dapo_trainer", ""),
        (GRPO, f"{ACTOR}.fsdp_config.param_offload", "is none of", f"{ACTOR}.megatron.param_offload"),
    ],
)
def test_a_key_that_there_is_not(keys: KnownKeys, key: str, found: str, hint: str) -> None:
    fault = keys.fault(key)
    assert fault is not None
    assert found in fault[0] and hint in fault[1]


FSDP = newest("qwen3-32b", "gspo")
MEGATRON = newest("qwen3-32b", "gspo", model_engine="megatron")


@pytest.mark.parametrize(
    ("keys", "key", "value"),
    [
        (FSDP, "model_engine", "megatron"),
        (FSDP, "model_engine", "'veomni'"),
        (MEGATRON, f"{ACTOR}.megatron.use_dist_checkpointing", "False"),
        (MEGATRON, f"+{ACTOR}.megatron.override_transformer_config.recompute_method", "uniform"),
        (FSDP, f"{ACTOR}.fsdp_config.param_offload", "True"),
        (FSDP, "model@actor_rollout_ref.model", "hf_model"),
        (FSDP, "+npu_profile@profile_of_mine", "npu_profile"),
        (FSDP, "+trainer.logger", "[console]"),
        (FSDP, f"{ROLLOUT}.val_kwargs", "{top_p:0.9,temperature:1}"),
        (FSDP, f"+{ROLLOUT}.engine_kwargs.vllm", "{additional_config:{refresh:true}}"),
        (newest("qwen3-32b", "gspo", **{f"actor@{ACTOR}": "megatron_actor"}), f"{ACTOR}.megatron.seed", "1"),
    ],
)
def test_an_override_that_hydra_takes(keys: KnownKeys, key: str, value: str) -> None:
    assert keys.fault(key, value) is None


@pytest.mark.parametrize(
    ("keys", "key", "value", "found", "hint"),
    [
        (FSDP, "model_engine", "megatrn", "has no option megatrn", "model_engine=megatron"),
        (FSDP, "+model_engine", "megatron", "has chosen", "model_engine, without +"),
        (FSDP, "model", "hf_model", "none of the groups", "model@"),
        (FSDP, "model@actor_rollout_ref.modle", "hf_model", "none of the groups", "model@actor_rollout_ref.model"),
        (FSDP, "models@actor_rollout_ref.model", "hf_model", "no group", "model@actor_rollout_ref.model"),
        (FSDP, "npu_profile", "npu_profile", "none of the groups", "+npu_profile"),
        (FSDP, "model@actor_rollout_ref.model", "hf_modle", "has no option", "=hf_model"),
        (FSDP, f"{ROLLOUT}.val_kwargs", "{top_q:0.9}", "val_kwargs.top_q is none", "val_kwargs.top_p"),
        (
            MEGATRON,
            f"{ACTOR}.fsdp_config.param_offload",
            "True",
            "none of ppo_trainer with model_engine=megatron",
            f"{ACTOR}.megatron.param_offload",
        ),
    ],
)
def test_an_override_that_hydra_refuses(keys: KnownKeys, key: str, value: str, found: str, hint: str) -> None:
    fault = keys.fault(key, value)
    assert fault is not None
    assert found in fault[0] and hint in fault[1]


@pytest.mark.parametrize(
    ("key", "word", "near"),
    [
        (f"{ACTOR}.policy_loss.loss_mode", "gsop", "gspo"),
        (f"{ACTOR}.loss_agg_mode", "token_mean", "token-mean"),
        ("algorithm.adv_estimator", "grop", "grpo"),
        (f"{ROLLOUT}.name", "vlm", "vllm"),
        (f"{ROLLOUT}.checkpoint_engine.backend", "ncl", "nccl"),
        (f"{ACTOR}.fsdp_config.model_dtype", "bfloat", "bfloat16"),
        ("reward.reward_manager.name", "'naiv'", "naive"),
    ],
)
def test_a_word_that_nobody_registers(key: str, word: str, near: str) -> None:
    fault = FSDP.word_fault(key, word)
    assert fault is not None
    assert fault[1] == f"{key}={near}"
    assert FSDP.word_fault(key, f'"{near}"') is None


def test_a_module_of_the_users_may_register_words() -> None:
    with_module = newest("qwen3-32b", "gspo", **{"actor_rollout_ref.model.external_lib": "my.losses"})
    assert with_module.word_fault(f"{ACTOR}.policy_loss.loss_mode", "mine") is None
    assert FSDP.word_fault(f"{ACTOR}.policy_loss.loss_mode", "${oc.env:LOSS}") is None


def test_an_unknown_word_stops_a_recipe() -> None:
    run = resolve(RECIPES_OF_NEWEST, "qwen3-32b", "gspo", Given(overrides={"algorithm.adv_estimator": "grop"}))
    (broken,) = unknown_keys(run, read_keys(NEWEST, run), NEWEST.practice, ())
    assert broken.rule == "known-words" and broken.hint == "algorithm.adv_estimator=grpo"


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("trainer", "{nnodes: 4}", "is a mapping, and the recipe sets trainer."),
        ("trainer.val_before_train", "off", "Hydra reads a word there"),
        ("actor_rollout_ref.rollout.gpu_memory_utilization", "80%", "the recipe has a number there"),
        ("data.train_batch_size", "many", "the recipe has a number there"),
        ("data.train_batch_size", "1e3", "Hydra reads a float there"),
        ("data.max_prompt_length", "1024.0", "Hydra reads a float there"),
    ],
)
def test_a_value_that_the_framework_would_take_for_another(key: str, value: str, said: str) -> None:
    with pytest.raises(WrongUse, match=said):
        resolve(RECIPES_OF_NEWEST, "qwen2.5-1.5b", "grpo", Given(overrides={key: value}))


def test_a_mapping_is_seen_key_by_key() -> None:
    assert RECIPES_OF_NEWEST.rules is not None
    given = Given(overrides={"algorithm.rollout_correction": "{rollout_is: token, of: {a: 1}}"})
    facts = facts_of(resolve(RECIPES_OF_NEWEST, "qwen2.5-1.5b", "grpo", given), RECIPES_OF_NEWEST.rules.value)
    assert facts.text("algorithm.rollout_correction.rollout_is") == "token"
    assert facts.text("algorithm.rollout_correction.of.a") == "1"


def test_a_path_with_a_default_is_the_variables_where_it_is_set() -> None:
    run = resolve(RECIPES_OF_NEWEST, "qwen3-32b", "gspo")
    lines = "\n".join(environment_sh(run))
    assert 'LD_PRELOAD="${JEMALLOC_LIBRARY:-/usr/local/lib/libjemalloc.so.2}"' in lines
    given = Given(paths={"jemalloc": "/opt/a b.so"})
    lines = "\n".join(environment_sh(resolve(RECIPES_OF_NEWEST, "qwen3-32b", "gspo", given)))
    assert "LD_PRELOAD='/opt/a b.so'" in lines


def test_a_name_of_the_practice_is_told_with_ours() -> None:
    run = run_of("qwen3-235b", "grpo", **{f"{ACTOR}.recompute_old_log_prob": "False"})
    from patchctl.training.recipes.check import features_and_switches

    switches = features_and_switches(DIST, run.profile)[1]
    (broken,) = unknown_keys(run, read_keys(DIST, run), DIST.practice, switches)
    assert "the name of 004, 002" in broken.found and "the sense is the other way round" in broken.found
    assert f"{ACTOR}.skip_old_log_prob" in broken.hint


def test_a_list_that_nobody_made_checks_nothing() -> None:
    run = run_of("qwen3-235b", "grpo")
    elsewhere = replace(run, entry=replace(run.entry, upstream="mindspeed"))
    assert read_keys(DIST, elsewhere) is None
    assert list(unknown_keys(run, None, DIST.practice, ())) == []


@pytest.mark.parametrize("line", ["trainer", "trainer\tvalue", "trainer\tthing\tall", "a\tvalue\tall\tmore"])
def test_a_damaged_list_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    run = run_of("qwen3-235b", "grpo")
    file = tmp_path / FOLDER / "verl" / "v0.6.0.tsv"
    file.parent.mkdir(parents=True)
    file.write_text(f"# head\ntrainer\tmapping\tall\n{line}\n")
    with pytest.raises(BadManifest, match="expected KEY, KIND and configurations") as refused:
        read_keys(replace(DIST, root=tmp_path), run)
    assert refused.value.where is not None and refused.value.where.line == 3


def test_the_list_is_made_of_verl_from_git_only(tmp_path: Path) -> None:
    """The source distribution lacks recipe/, and a list without DAPO's configurations would refuse their keys."""
    command = [
        sys.executable,
        str(REPOSITORY / "scripts" / "config_keys.py"),
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "expected verl's tree from git, with recipe/" in done.stderr
    assert not (tmp_path / "out").exists()
