"""The recipes of the newest release against its verl: `make test-behaviour` runs them, in an environment of their own.

Hydra composes every override to the value that the recipe says, verl's own checks before a worker starts take it, and the list of
keys is that of the tree. Those of Megatron make a configuration of Megatron-LM with the model's own, through mbridge, and tiny models
step with their settings. Whole runs: `make test-recipes`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from harness import REPO, Upstream
from mbridge_source import check_out, commit_named
from pins import newest

from patchctl.catalog.chosen_release import on_release
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.conditions import defaults_for, same
from patchctl.training.recipes.keys import FOLDER, list_of
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import RecipeRun, bare, resolve
from patchctl.training.recipes.shell import override_text

RECIPES: Recipes = read_recipes(on_release(Distribution.load(REPO), newest(), print))
KEYS = RECIPES.runnable()
PLAIN = ("qwen2.5-1.5b", "grpo")
# What the trainer of this set refuses, and a key of the older one.
REFUSED = {
    "actor_rollout_ref.actor.ppo_mini_batch_size=1": "skip_old_log_prob: ",
    "actor_rollout_ref.rollout.calculate_log_probs=True": "skip_old_log_prob: ",
    "actor_rollout_ref.rollout.data_rebalance=True": "hydra: ",
    "+actor_rollout_ref.actor.no_such_field=1": "verl: ",
    "+actor_rollout_ref.rollout.no_such_field=1": "rollout: ",
    "actor_rollout_ref.actor.ppo_micro_batch_size=4": "verl: ",
    "reward.reward_manager.name=dapo +reward.reward_kwargs.overlong_buffer_cfg={enable:True,len:4096}": "reward: ",
}

# Settings of MindSpeed's adaptor.
MINDSPEEDS = {
    "context_parallel_algo",
    "position_embedding_type",
    "use_flash_attn",
    "use_fused_ring_attention_update",
    "use_fused_rotary_pos_emb",
    "use_fused_swiglu",
}
DEEPSEEK = ("deepseek-r1", "grpo")
# Of DeepSeek-R1's config.json, beside the shape in manifests/models.yaml.
PUBLISHED = {
    "n_group": 8,
    "topk_group": 4,
    "num_nextn_predict_layers": 1,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
}
TOLD = "actor_rollout_ref.actor.megatron.override_transformer_config."
TINY = {
    "qwen3-32b": {"architecture": "Qwen3", "num_hidden_layers": 4},
    "qwen3-235b": {"architecture": "Qwen3Moe", "num_hidden_layers": 3},
    "deepseek-r1": {"architecture": "DeepseekV3", "num_hidden_layers": 3},
}
GROUPS = {"moe_router_num_groups": 2, "moe_router_group_topk": 1}  # of the tiny one's eight experts
APART = 0.05  # of log-probabilities; 0.02 were seen

Of = Callable[[str], Any]


@pytest.fixture(scope="module")
def tree(upstream: Upstream) -> Path:
    upstream.skip_unless("verl", ">=0.9")
    return upstream.tree("verl")


@pytest.fixture(scope="module")
def looked_at(upstream: Upstream, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What verl says of each recipe by its title, and of PLAIN with what is refused. One process looks at all."""
    if why := upstream.lacks("verl", "skip_old_log_prob"):
        pytest.skip(why)
    jobs = {"/".join(key): job(run_of(key)) for key in KEYS}
    jobs |= {text: job(run_of(PLAIN), *text.split()) for text in REFUSED}
    jobs |= {
        config: jobs["/".join(PLAIN)] | {"config": config, "overrides": [], "keys": [*defaults(config)]}
        for config in CONFIGS
    }
    return asked("probe_recipes_v1.py", jobs, upstream, tree, tmp_path_factory.mktemp("recipes"), need=["verl"])


def asked(probe: str, jobs: dict[str, Any], upstream: Upstream, tree: Path, folder: Path, **where: Any) -> Of:
    """What a probe prints of each job, by the job's name. `where` is `upstream.run`'s."""
    file = folder / "jobs.json"
    file.write_text(json.dumps(list(jobs.values())))
    said = upstream.run(f"tests/behaviour/verl/{probe}", tree, file, timeout=300, **where)
    return dict(zip(jobs, said, strict=True)).__getitem__


@cache
def run_of(key: tuple[str, str]) -> RecipeRun:
    return resolve(RECIPES, *key)


CONFIGS = sorted({run_of(key).entry.config for key in KEYS})
MEGATRON = [key for key in KEYS if run_of(key).entry.config == "ppo_megatron_trainer"]


def job(run: RecipeRun, *more: str) -> dict[str, Any]:
    overrides = [
        override_text(key, setting, run).replace("=$", "=/somewhere/") for key, setting in run.overrides.items()
    ]
    keys = [bare(key) for key in run.overrides]
    told = {
        bare(key).removeprefix(TOLD): yaml.safe_load(one.value) for key, one in run.overrides.items() if TOLD in key
    }
    return {
        "told": told,
        "module": run.entry.module,
        "folder": ".",
        "config": run.entry.config,
        "overrides": [*overrides, *more],
        "keys": keys,
    }


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_a_recipe_composes_and_verl_takes_it(looked_at: Of, key: tuple[str, str]) -> None:
    run, found = run_of(key), looked_at("/".join(key))
    assert found["error"] is None
    wrong = {
        name: (setting.value, found["values"][bare(name)])
        for name, setting in run.overrides.items()
        if setting.path is None and not arrived(setting.value, found["values"][bare(name)])
    }
    assert wrong == {}


def arrived(written: str, value: Any) -> bool:
    if isinstance(value, list):
        return written.strip("[]").split(",") == [str(item) for item in value]
    return same(written, "null" if value is None else str(value))


def defaults(config: str) -> dict[str, str]:
    assert RECIPES.rules is not None
    return defaults_for(RECIPES.rules.value, config, run_of(PLAIN).versions)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_defaults_of_the_rules_are_those_of_the_configuration(looked_at: Of, config: str) -> None:
    """A key that this verl does not have is off, however the rules call that."""
    found, declared = looked_at(config)["values"], defaults(config)
    wrong = {
        key: (text, found[key])
        for key, text in declared.items()
        if not arrived(text, found[key]) and (found[key], text) != (None, "False") and not text.startswith("=")
    }
    assert wrong == {}, json.dumps(wrong, indent=1)


@pytest.fixture(scope="module")
def megatron(upstream: Upstream, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What Megatron-LM is told for each recipe's model, by the recipe's title."""
    return configured(MEGATRON, upstream, tree, tmp_path_factory.mktemp("megatron"))


def configured(keys: list[tuple[str, str]], upstream: Upstream, tree: Path, folder: Path, *packages: str) -> Of:
    """`packages` are folders of packages that come before the environment's."""
    models = yaml.safe_load((REPO / "manifests/models.yaml").read_text())["models"]
    of_profile = {profile: model["config"] for model in reversed(models.values()) for profile in model["profiles"]}
    jobs = {"/".join(key): job(run_of(key)) | {"model": of_profile[key[0]]} for key in keys}
    if DEEPSEEK in keys:
        jobs["/".join(DEEPSEEK)]["model"] |= PUBLISHED
    where = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu", "torchvision", *packages]}
    return asked("probe_megatron_config_v1.py", jobs, upstream, tree, folder, **where)


@pytest.mark.parametrize("key", [key for key in MEGATRON if key != DEEPSEEK], ids="/".join)
def test_megatron_takes_what_mbridge_makes_of_a_recipes_model(megatron: Of, key: tuple[str, str]) -> None:
    found = megatron("/".join(key))
    assert found["error"] is None
    assert set(found["left out"]) <= MINDSPEEDS
    assert found["made"]["pipeline_model_parallel_size"] == int(run_of(key).sizes["pp"].value)


@pytest.fixture(scope="module")
def stepped(upstream: Upstream, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """What verl's engine makes of a tiny model of a recipe's kind, with what the recipe tells Megatron-LM and MindSpeed."""
    standins = [
        "torch_npu",
        "megatron_cpu",
        "npu_attention",
        "npu_training",
        "npu_training_0_9",
        "patchctl_standins",
        "torchvision",
    ]

    def found(key: tuple[str, str], *without: str, packages: Sequence[str] = (), **shrunk: int) -> Any:
        kind = TINY[key[0]] | {"data_source": "none", "answer": "1"}
        folder = tmp_path_factory.mktemp(key[0])
        upstream.run("tests/recipes/made_model.py", folder, json.dumps(kind), standins=["torchvision"])
        told = job(run_of(key))["told"] | {"context_parallel_size": 1, **shrunk}
        settings = {name: value for name, value in told.items() if name not in without and "pipeline_stage" not in name}
        return upstream.run(
            "tests/behaviour/verl/probe_megatron_step_v1.py",
            folder / "model",
            json.dumps(settings),
            need=["verl", "megatron-lm", "mindspeed"],
            standins=[*standins, *packages],
            env={"PATCHCTL_STANDINS": "0"},
            timeout=300,
        )

    return found


@pytest.mark.parametrize("key", [("qwen3-32b", "grpo"), ("qwen3-235b", "grpo")], ids="/".join)
def test_verls_engine_computes_as_hugging_face_with_a_recipes_settings(stepped: Any, key: tuple[str, str]) -> None:
    computes_as_hugging_face(stepped(key))


def computes_as_hugging_face(found: Any) -> None:
    """bf16 beside float32; the second bound of APART says that attention and positions matter in these models."""
    assert found["error"] is None
    assert found["engine"] == "MindspeedEngineWithLMHead"
    assert found["apart"] < APART < 0.1 * found["depends"]
    assert found["norm"] == pytest.approx(found["hf norm"], rel=0.01)
    assert found["names"] == []
    assert found["changed"] > 0.9 * found["sent"]  # not of experts to which no token went


def test_the_fused_rotary_embedding_has_to_be_told_of_its_kind(stepped: Any) -> None:
    """Rule fused-rope-type: upstream's own check ends so, and verl's examples leave the fused embedding out."""
    found = stepped(("qwen3-32b", "grpo"), "position_embedding_type")
    assert found["error"] == "AttributeError: 'TransformerConfig' object has no attribute 'position_embedding_type'"


def test_mbridge_of_the_package_index_does_not_make_a_deepseek(megatron: Of) -> None:
    """Why the recipe wants mbridge's repository: 0.15.1 asks transformers 5 for a field that it no longer has."""
    error = megatron("/".join(DEEPSEEK))["error"]
    assert error == "AttributeError: 'DeepseekV3Config' object has no attribute 'rope_theta'"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with mbridge as DeepSeek-R1's recipe names it."""
    folder = tmp_path_factory.mktemp("mbridge")
    commit = commit_named(run_of(DEEPSEEK).limits)
    assert commit
    try:
        check_out(commit, folder)
    except LookupError as lacking:
        pytest.skip(str(lacking))
    return str(folder)


def test_verls_engine_computes_a_deepseek_as_hugging_face(stepped: Any, repository: str) -> None:
    computes_as_hugging_face(stepped(DEEPSEEK, packages=[repository], **GROUPS))


def test_megatron_takes_what_mbridges_repository_makes(
    upstream: Upstream, tree: Path, tmp_path: Path, repository: str
) -> None:
    """Of DeepSeek-R1's recipe, and of the others, which share an environment with it."""
    made = configured(MEGATRON, upstream, tree, tmp_path, repository)
    assert {key: made("/".join(key))["error"] for key in MEGATRON} == dict.fromkeys(MEGATRON)
    deepseek = made("/".join(DEEPSEEK))["made"]
    rope = ("rope_type", "rotary_base", "rotary_scaling_factor", "original_max_position_embeddings", "mscale_all_dim")
    assert [deepseek[name] for name in rope] == ["yarn", 10000, 40, 4096, 1.0]
    assert [deepseek[f"moe_router_{name}"] for name in ("num_groups", "group_topk", "topk")] == [8, 4, 8]
    assert (deepseek["moe_shared_expert_overlap"], deepseek["mtp_num_layers"]) == (False, None)


@pytest.mark.parametrize("override", REFUSED)
def test_what_verl_refuses_is_refused_here(looked_at: Of, override: str) -> None:
    assert (looked_at(override)["error"] or "").startswith(REFUSED[override])


def test_the_list_of_keys_is_that_of_the_tree(upstream: Upstream, tree: Path) -> None:
    listed = (REPO / FOLDER / "verl" / f"{upstream.stack('verl').name}.tsv").read_text().splitlines()
    found = upstream.run("tests/behaviour/verl/probe_config_keys.py", tree, timeout=300, need=["verl"])
    assert [line for line in listed if not line.startswith("#")] == found


def test_the_words_of_the_list_are_those_that_verl_registers(upstream: Upstream, tree: Path) -> None:
    known = list_of(Distribution.load(REPO), "verl", upstream.stack("verl").name)
    assert known is not None
    found = upstream.run("tests/behaviour/verl/probe_words.py", timeout=300, need=["verl"])
    assert {key: sorted(known.words[key]) for key in found} == found


@pytest.mark.parametrize("variable", sorted({name for key in KEYS for name in run_of(key).environment}))
def test_a_variable_of_a_recipe_is_read_or_documented(upstream: Upstream, tree: Path, variable: str) -> None:
    """What a test, an example or a document sets, nothing reads."""
    assert RECIPES.rules is not None
    if variable in RECIPES.rules.value.variables:
        return
    code = [":!*test*", ":!*example*", ":!*doc*", ":!*benchmark*", "*.py", "*.cpp", "*.h"]
    trees = [upstream.tree(name) for name in ("verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed")]
    found = [
        one.name
        for one in trees
        if not subprocess.run(["git", "-C", one, "grep", "-qw", variable, "--", *code]).returncode
    ]
    assert found, f"no upstream reads {variable}, and manifests/rules.yaml has no address"
