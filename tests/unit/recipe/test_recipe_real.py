"""The recipes and rules that this repository ships, beyond what `verify` says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet
from pins import distribution, newest, on, recipes, recipes_on

from patchctl.errors import WrongUse
from patchctl.training.models import model_of, read_models
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.conditions import version_of
from patchctl.training.recipes.read import FOLDER
from patchctl.training.recipes.resolve import Given, RecipeRun, resolve
from patchctl.training.recipes.rules import broken_rules, sample_facts, verdict

REPOSITORY = Path(__file__).parents[3]
DIST = distribution()
RECIPES = recipes()
NEWEST = on(newest())
NEWER = recipes_on(newest())
assert RECIPES.rules is not None
RULES = RECIPES.rules.value
# Its model is made by scripts/demo/tiny_model.py, and published nowhere.
MADE = "demo"
EXPECTED = {
    "qwen3-235b": {
        "grpo",
        "grpo-eplb",
        "grpo-hdp",
        "grpo-random-init",
        "grpo-rebalance",
        "dapo",
        "dapo-longseq",
        "dapo-longseq-128k",
    },
    "qwen3-32b": {
        "grpo",
        "grpo-sam",
        "grpo-sam-npugraph",
        "dapo",
        "dapo-sam",
        "dapo-sam-npugraph",
        "gspo",
        "dapo-fsdp2",
    },
    "qwen3-8b": {"dapo", "grpo"},
    "deepseek-r1": {"grpo"},
    "qwen2.5-1.5b": {"grpo"},
    "demo": {"grpo"},
    "every-stack": set(),  # for bringing patches over
}


# By the newer release's name: USE_HDP of the practice is an option of verl's there.
RENAMED = {"grpo-dynamic-cp": "grpo-hdp"}
# Of features that the oldest release has not: what they are set beside.
BESIDE = {"grpo-sleep": "grpo", "grpo-delta": "grpo"}


def run_of(profile: str, name: str, given: Given | None = None) -> RecipeRun:
    return resolve(RECIPES, profile, name, given)


def value(run: RecipeRun, key: str) -> str | None:
    setting = run.override(key)
    return None if setting is None else setting.value


def test_every_recipe_of_the_practice_is_there() -> None:
    assert {profile: set(RECIPES.of(profile)) for profile in RECIPES.profiles} == EXPECTED


def test_the_newer_release_has_recipes_of_its_own() -> None:
    assert {"/".join(key) for key in NEWER.runnable()} == {
        "deepseek-r1/grpo",
        "demo/grpo",
        "demo/grpo-delta",
        "qwen2.5-1.5b/grpo",
        "qwen3-235b/dapo",
        "qwen3-235b/dapo-longseq",
        "qwen3-235b/dapo-longseq-128k",
        "qwen3-235b/grpo",
        "qwen3-235b/grpo-delta",
        "qwen3-235b/grpo-dynamic-cp",
        "qwen3-235b/grpo-eplb",
        "qwen3-235b/grpo-rebalance",
        "qwen3-235b/grpo-sleep",
        "qwen3-32b/dapo",
        "qwen3-32b/dapo-fsdp2",
        "qwen3-32b/dapo-sam",
        "qwen3-32b/grpo",
        "qwen3-32b/grpo-sam",
        "qwen3-32b/gspo",
        "qwen3-8b/dapo",
        "qwen3-8b/grpo",
        "qwen3-8b/grpo-delta",
    }


@pytest.mark.parametrize(
    "run",
    [resolve(recipes, *key) for recipes in (RECIPES, NEWER) for key in recipes.runnable()],
    ids=lambda run: f"{run.title}@{run.release}",
)
def test_every_value_names_who_gives_it(run: RecipeRun) -> None:
    values = {**run.sizes, **run.environment, **run.overrides}
    unnamed = [name for name, v in values.items() if not v.source and not v.ours and v.recipe != "computed"]
    assert unnamed == []


@pytest.mark.parametrize(
    "path", sorted((REPOSITORY / FOLDER).rglob("*.yaml")), ids=lambda p: p.relative_to(REPOSITORY / FOLDER).as_posix()
)
def test_editors_find_the_schema(path: Path) -> None:
    up = "../" * len(path.relative_to(REPOSITORY / FOLDER).parts)
    assert path.read_text().startswith(f"# yaml-language-server: $schema={up}schema/recipe.schema.json\n")


@pytest.mark.parametrize("name", RULES.rules)
def test_a_rule_keeps_its_good_samples_and_refuses_its_bad_ones(name: str) -> None:
    rule = RULES.rules[name]
    assert [verdict(rule, sample_facts(sample, RULES)) for sample in rule.good] == [None] * len(rule.good)
    assert None not in [verdict(rule, sample_facts(sample, RULES)) for sample in rule.bad]


@pytest.mark.parametrize(
    ("recipe", "figures"),
    [
        ("qwen3-235b/grpo", ("512", "16", "2048", "32768", "128")),
        ("qwen3-235b/dapo", ("128", "16", "2048", "34816", "128")),
        ("qwen3-235b/dapo-longseq", ("256", "16", "2048", "65536", "512")),
        ("qwen3-235b/dapo-longseq-128k", ("64", "16", "2048", "131072", "512")),
        ("qwen3-32b/grpo", ("128", "16", "2048", "34816", "32")),
        ("qwen3-32b/dapo", ("128", "16", "2048", "34816", "32")),
        ("qwen3-32b/dapo-fsdp2", ("64", "16", "2048", "20480", "64")),
        ("qwen3-8b/dapo", ("128", "8", "1024", "10000", "16")),
        ("deepseek-r1/grpo", ("512", "16", "1024", "3072", "256")),
    ],
)
def test_the_sizes_of_the_practice(recipe: str, figures: tuple[str, ...]) -> None:
    run = run_of(*recipe.split("/"))
    keys = (
        "data.train_batch_size",
        "actor_rollout_ref.rollout.n",
        "data.max_prompt_length",
        "data.max_response_length",
    )
    assert (*(value(run, key) for key in keys), run.sizes["devices"].value) == figures


@pytest.mark.parametrize("key", [key for key in RECIPES.runnable() if key[0] != MADE], ids="/".join)
def test_the_longest_sequence_fits_the_model_that_the_recipe_trains(key: tuple[str, str]) -> None:
    """verl asserts it when the engine is made: 64 K need the model with a context of 256 K."""
    run = run_of(*key)
    found = model_of(read_models(DIST), *key)
    assert found is not None
    longest = int(run.sizes["prompt"].value) + int(run.sizes["response"].value)
    assert longest <= int(found[1].config["max_position_embeddings"])


@pytest.mark.parametrize("recipe", ["dapo-longseq", "dapo-longseq-128k"])
def test_long_sequences_ask_for_their_own_model(recipe: str) -> None:
    """What is exported for the shorter recipes must not fill it: that model's context ends at 40,960."""
    run = run_of("qwen3-235b", recipe)
    short = run_of("qwen3-235b", "dapo")
    for path in ("model", "mcore_weights"):
        assert "Thinking-2507" in run.paths[path].what
        assert run.paths[path].variable != short.paths[path].variable
    found = model_of(read_models(DIST), "qwen3-235b", recipe)
    assert found is not None and found[0] == "Qwen3-235B-A22B-Thinking-2507"


@pytest.mark.parametrize(
    ("recipe", "sam", "npugraph_ex"),
    [
        ("grpo", None, "False"),
        ("grpo-sam", "sam", "False"),
        ("grpo-sam-npugraph", "sam", "True"),
        ("dapo", None, "False"),
        ("dapo-sam", "sam", "False"),
        ("dapo-sam-npugraph", "sam", "True"),
    ],
)
def test_the_three_rows_of_002_have_a_recipe_each(recipe: str, sam: str | None, npugraph_ex: str) -> None:
    run = run_of("qwen3-32b", recipe)
    assert value(run, "actor_rollout_ref.rollout.speculative_config.method") == sam
    assert value(run, "actor_rollout_ref.rollout.npugraph_ex.enable") == npugraph_ex


def test_every_feature_is_needed_by_a_recipe_or_by_a_setting_that_none_has() -> None:
    runs = [resolve(recipes, *key) for recipes in (RECIPES, NEWER) for key in recipes.runnable()]
    needed = {feature.partition("@")[0] for run in runs for feature in run.needs}
    features = {
        feature for dist in (DIST, NEWEST) for name in dist.profiles for feature in features_and_switches(dist, name)[0]
    }
    assert features - needed == {
        "dummy_step_slots",  # a fix of what engines do by themselves, which no setting asks for
        "hf_to_mcore_dense_cpu",  # the conversion of a dense model, which mbridge goes without
        "ngram_near_length",  # speculation with ngram, which no recipe has
        "npugraph_ex_static_kernel",  # npugraph_ex with enable_static_kernel
        "packed_cp_group_ring",  # which dynamic_cp_argument requires
        "packed_cp_group_rope",  # which dynamic_cp_groups requires
        "rollout_routing_replay",  # router replay, which no recipe has
        "sam_shared_history",  # sam with additional_config.sam_shared_history, measured with small models only
        "single_rank_rope",  # which packed_cp_group_ring requires
        "spec_decode_logprobs",  # speculation with calculate_log_probs; spec_and_graph_config requires it
        "wake_up_in_parts",  # a fix of what an engine does between two calls that wake it
        "wake_up_experts",  # a fix of what an engine does that wakes with the weights that it had
    }


def test_what_moves_to_the_newer_release_keeps_its_sizes() -> None:
    """The practice's figures are of no release; the settings' names are. The v1 trainer asks for prompts one at a time."""
    for profile, name in NEWER.runnable():
        was = {**RENAMED, **BESIDE}.get(name, name)
        older, newer = run_of(profile, was), resolve(NEWER, profile, name)
        sizes = {n: v.value for n, v in older.sizes.items() if n != "gen_batch"}
        if name == "grpo-rebalance":  # which moves requests between servers there, of which it takes two
            sizes["rollout_dp"] = "16"
        if (profile, name) == ("qwen3-235b", "grpo-delta"):  # whose update takes engines without data parallelism
            sizes |= {"rollout_tp": "16", "rollout_dp": "1"}
        apart = {"rollout_nodes", "rollout_devices"} if newer.engine_nodes else set()
        assert sizes == {n: v.value for n, v in newer.sizes.items() if n not in apart}
        assert not set(newer.overrides) & {"custom_reward_function.path", "actor_rollout_ref.rollout.data_rebalance"}


def test_a_recipe_of_a_later_version_is_nowhere_else() -> None:
    """The trainer of verl v0.9.0 makes engines on its own devices whatever hybrid_engine says, and has no delta_in_place."""
    name, lacking = "grpo-delta", []
    for release in distribution().releases:
        known, verl = recipes_on(release), version_of(distribution().stack("verl", stack_on(release))) or ""
        assert (name in known.of("qwen3-8b")) == SpecifierSet(">=0.9.1").contains(verl)
        lacking += [release] if name not in known.of("qwen3-8b") else []
    assert len(lacking) > 1
    with pytest.raises(WrongUse, match=f"'{name}' on {lacking[0]}: it is one of {newest()}"):
        resolve(recipes_on(lacking[0]), "qwen3-8b", name)


def stack_on(release: str) -> str:
    stack = on(release).profile("qwen3-8b").stacks["verl"]
    assert stack is not None
    return stack


def test_engines_apart_have_devices_of_their_own() -> None:
    run = resolve(NEWER, "qwen3-8b", "grpo-delta")
    assert (run.engine_nodes, run.machines, run.all_devices, run.sizes["devices"].value) == (1, 2, 32, "16")
    half = resolve(NEWER, "qwen3-8b", "grpo-delta", Given(sizes={"rollout_nodes": "2", "rollout_devices": "8"}))
    assert (half.machines, half.engine_devices_per_node, half.all_devices) == (3, 8, 32)
    together = resolve(NEWER, "qwen3-8b", "grpo")
    assert (together.engine_nodes, together.machines, together.all_devices) == (0, 1, 16)


def test_a_feature_that_graphs_need_is_asked_for() -> None:
    mode = Given(overrides={"actor_rollout_ref.rollout.cudagraph_mode": "FULL"})
    assert {b.rule for b in broken_rules(run_of("qwen3-235b", "grpo", mode), RECIPES.rules)} == {
        "graphs-of-mixed-batches"
    }
    assert "fia_tnd_padding" in run_of("qwen3-32b", "grpo-sam").needs


def test_experts_are_balanced_without_the_reshard_that_sends_them_to_fixed_ranks() -> None:
    run = run_of("qwen3-235b", "grpo-eplb")
    assert value(run, "actor_rollout_ref.rollout.eplb_lifecycle") == "True"
    assert value(run, "actor_rollout_ref.actor.megatron.ep_alltoallv_reshard") is None
    two_engines = run_of("qwen3-235b", "grpo-eplb", Given(sizes={"nodes": "16"}))
    assert {b.rule for b in broken_rules(two_engines, RECIPES.rules)} == {"eplb-engine"}


def test_the_dynamic_batch_of_003_is_5632_tokens() -> None:
    run = run_of("qwen3-32b", "dapo-fsdp2")
    assert value(run, "actor_rollout_ref.actor.ppo_max_token_len_per_gpu") == "5632"
    assert value(run, "actor_rollout_ref.rollout.max_num_batched_tokens") == "22528"


def test_grpo_of_8b_is_what_003_takes_out_and_what_it_forgets() -> None:
    dapo, grpo = run_of("qwen3-8b", "dapo"), run_of("qwen3-8b", "grpo")
    gone = set(dapo.overrides) - set(grpo.overrides)
    assert gone == {
        "data.gen_batch_size",
        "algorithm.filter_groups.enable",
        "algorithm.filter_groups.metric",
        "algorithm.filter_groups.max_num_gen_batches",
        "actor_rollout_ref.actor.clip_ratio_low",
        "actor_rollout_ref.actor.clip_ratio_high",
        "reward_model.overlong_buffer.enable",
        "reward_model.overlong_buffer.len",
        "reward_model.overlong_buffer.penalty_factor",
        "reward_model.reward_manager",
    }
    assert grpo.entry.module == "verl.trainer.main_ppo"


def test_deepseek_needs_what_latent_attention_needs() -> None:
    run = run_of("deepseek-r1", "grpo")
    assert {"moe_update_weights", "mla_update_weights", "dpskv3_group_routing", "mla_attention_sizes"} <= set(run.needs)
    assert value(run, "actor_rollout_ref.rollout.moe_update_weights") == "True"
    assert any("What a device has to show" in limit for limit in run.limits)


def test_another_number_of_nodes_is_computed_and_held_against_the_rules() -> None:
    run = run_of("qwen3-235b", "grpo", Given(sizes={"nodes": "16"}))
    assert value(run, "actor_rollout_ref.rollout.data_parallel_size") == "32"  # two engines of 128 devices
    assert value(run, "trainer.nnodes") == "16"
    assert list(broken_rules(run, RECIPES.rules)) == []
    broken = {b.rule for b in broken_rules(run_of("qwen3-235b", "grpo", Given(sizes={"nodes": "4"})), RECIPES.rules)}
    assert broken == {"experts-divide-devices"}
    run = run_of("qwen3-32b", "grpo", Given(sizes={"nodes": "1"}))
    assert {b.rule for b in broken_rules(run, RECIPES.rules)} == {"megatron-divides-devices"}


@pytest.mark.parametrize("recipe", ["dapo-longseq", "grpo", "dapo-longseq-128k"])
def test_a_batch_that_the_controller_can_hold_is_not_refused(recipe: str) -> None:
    """512 prompts at 64 K were: as if every device answered with the whole batch, and in a recipe that asks for no old
    log-probabilities."""
    for given in (Given(sizes={"batch": "512"}), Given(sizes={"nodes": "64"})):
        assert list(broken_rules(run_of("qwen3-235b", recipe, given), RECIPES.rules)) == []


def test_a_batch_that_no_controller_can_hold_is_refused_with_the_way_out() -> None:
    whole = {"response": "65536", "batch": "1024", "cp": "8", "nodes": "32"}
    asked = {"actor_rollout_ref.actor.skip_old_log_prob": "False"}
    broken = {
        b.rule: b
        for b in broken_rules(run_of("qwen3-235b", "grpo", Given(sizes=whole, overrides=asked)), RECIPES.rules)
    }
    found = broken["controller-memory"]
    assert "--size batch=N" in found.hint and found.found.endswith(f"does not hold: {1 << 40} and {1 << 40}")
    half = Given(sizes={**whole, "batch": "512"}, overrides=asked)
    assert "controller-memory" not in {b.rule for b in broken_rules(run_of("qwen3-235b", "grpo", half), RECIPES.rules)}


def test_every_document_that_a_recipe_cites_has_a_title() -> None:
    """`recipe show` prints it below the values."""
    practice = NEWEST.practice
    assert practice is not None
    files = [file for file in (REPOSITORY / "manifests").rglob("*.yaml") if "recipes" in file.parts]
    cited = {number for file in files for number in re.findall(r"\b00\d\b", file.read_text())}
    assert cited and cited <= practice.documents.keys()
