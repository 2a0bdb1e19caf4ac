"""Recipes against the patched verl: every override composes, every default of the rules is true, every variable is read.

Then verl's own checks, those of the features among them, take every recipe. The source distribution of verl has no recipe/,
so that DAPO's recipes are skipped there, as are recipes that need a feature which the trees lack.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from harness import REPO, Upstream

sys.path.append(str(REPO / "tests/recipes"))

from shrunk import shipped, shrunk
from variants import variants

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import feature_of
from patchctl.training.recipes.conditions import ALL, defaults_for, number, same
from patchctl.training.recipes.keys import FOLDER, read_keys
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import RecipeRun, bare, resolve
from patchctl.training.recipes.shell import override_text
from patchctl.training.recipes.types import Rules

pytestmark = pytest.mark.stack("verl", "<0.9")

PROBE = "tests/behaviour/verl/probe_recipes.py"
START_PROBE = "tests/behaviour/verl/probe_recipes_start.py"
RECIPES: Recipes = read_recipes(Distribution.load(REPO))
KEYS = RECIPES.runnable()
SHRUNK = {"/".join((*key, "shrunk")): shrunk(RECIPES, key, {}).run(RECIPES) for key in shipped(RECIPES)}
VARIED = {
    "/".join((*key, variant.name)): variant.made(RECIPES, key, {}, {}).run(RECIPES)
    for key, variant in variants(RECIPES, shipped(RECIPES), ["off", "one-rank"])
}
DAPO = "recipe.dapo.main_dapo"
MODULES = {
    "ppo_trainer": "verl.trainer.main_ppo",
    "ppo_megatron_trainer": "verl.trainer.main_ppo",
    "dapo_trainer": DAPO,
    "dapo_megatron_trainer": DAPO,
}
UPSTREAMS = ("verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed")
# Where the packages themselves lie: what a test, an example or a document sets, nothing reads.
NOT_CODE = re.compile(r"(^|/)(tests?|examples|docs?|benchmarks|docker|\.[^/]*)/")

MISTYPED = "actor_rollout_ref.rollout.data_rebalanse"
KEYS_PROBE = "tests/behaviour/verl/probe_config_keys.py"
# Keys of all kinds, some of which Hydra takes: the list of keys has to say the same.
ASKED = (
    "trainer.total_epochs",
    "++trainer.total_epochs",
    "+trainer.total_epochs",
    "trainer.total_epoch",
    "+trainer.of_a_logger",
    "data.gen_batch_size",
    "actor_rollout_ref.max_num_seqs",
    "actor_rollout_ref.rollout.max_num_seq",
    "actor_rollout_ref.actor.recompute_old_log_prob",
    "actor_rollout_ref.actor.megatron.override_transformer_config.moe_zero_memory",
    "+actor_rollout_ref.actor.megatron.override_transformer_config.moe_zero_memory",
    "+actor_rollout_ref.rollout.engine_kwargs.vllm.additional_config.moe_chunk_tokens",
    "actor_rollout_ref.rollout.limit_images",
    "+actor_rollout_ref.rollout.limit_images",
    "+actor_rollout_ref.actor.megatron.override_transformer_config.recompute_method",
    "+model@actor_rollout_ref.model",
    "models@actor_rollout_ref.model",
)

Of = Callable[[str], Any]
"""What a probe found, by the name of a job."""


@pytest.fixture(scope="module")
def composed(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What is composed of every job, by its name. One process composes all of them."""
    file = tmp_path_factory.mktemp("recipes") / "jobs.json"
    return probed(upstream, all_jobs(), file, PROBE)


@pytest.fixture(scope="module")
def started(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What verl's own checks before any worker starts say of every recipe, by its title."""
    jobs = {run.title: job_of(run, overrides_of(run), []) for run in map(run_of, KEYS)}
    jobs |= {title: job_of(run, overrides_of(run), []) for title, run in SHRUNK.items()}
    jobs["two mini-batches"] = refused_job("actor_rollout_ref.actor.ppo_mini_batch_size=256")
    jobs["asynchronous"] = refused_job("actor_rollout_ref.rollout.mode=async")
    jobs["no field"] = refused_job("+actor_rollout_ref.rollout.max_num_seq=4")
    return start(upstream, jobs, tmp_path_factory)


@pytest.fixture(scope="module")
def varied(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """The same of what shrunk recipes are compared with."""
    jobs = {title: job_of(run, overrides_of(run), []) for title, run in VARIED.items()}
    return start(upstream, jobs, tmp_path_factory)


def start(upstream: Upstream, jobs: Mapping[str, dict[str, Any]], folders: pytest.TempPathFactory) -> Of:
    file = folders.mktemp("starts") / "jobs.json"
    return probed(upstream, jobs, file, START_PROBE, need=["verl", "megatron-lm"], standins=["megatron_cpu"])


def refused_job(override: str) -> dict[str, Any]:
    run = run_of(("qwen3-235b", "grpo"))
    return job_of(run, [*overrides_of(run), override], [])


def probed(upstream: Upstream, jobs: Mapping[str, dict[str, Any]], file: Path, probe: str, **more: Any) -> Of:
    """Runs a probe on the jobs whose entry module and features are in the tree; asking for another one skips."""
    tree = upstream.tree("verl")
    lacking = {name: reason for name, job in jobs.items() if (reason := why_not(upstream, job))}
    here = {name: job for name, job in jobs.items() if name not in lacking}
    file.write_text(json.dumps(list(here.values())))
    found = dict(zip(here, upstream.run(probe, tree, file, timeout=600, **more), strict=True))

    def one(name: str) -> Any:
        if name in lacking:
            pytest.skip(lacking[name])
        return found[name]

    return one


def why_not(upstream: Upstream, job: dict[str, Any]) -> str | None:
    """Why a job cannot be tried on these trees; None if it can."""
    if not (upstream.tree("verl") / f"{job['module'].replace('.', '/')}.py").is_file():
        return f"{job['module']} is not in this tree of verl: the source distribution has no recipe/"
    return next(filter(None, (upstream.lacks("verl", feature) for feature in job["needs"])), None)


@cache
def all_jobs() -> dict[str, dict[str, Any]]:
    """Recipes as they are and with a mistyped key, configurations as they are, and two that must fail."""
    jobs: dict[str, dict[str, Any]] = {}
    for key in KEYS:
        run = run_of(key)
        keys = [bare(name) for name in run.overrides]
        jobs[run.title] = job_of(run, overrides_of(run), keys)
        jobs[f"{run.title} mistyped"] = job_of(run, [*overrides_of(run), f"{MISTYPED}=True"], [])
    run = run_of(("qwen3-235b", "grpo"))
    jobs["without +"] = job_of(run, [text.removeprefix("+") for text in overrides_of(run)], [])
    for config, module in MODULES.items():
        declared = [*rules().defaults[ALL], *rules().defaults[config]]
        jobs[config] = job(module, config, ["actor_rollout_ref.rollout.name=vllm"], declared)
    jobs |= {f"asked {key}": job(run.entry.module, run.entry.config, [f"{key}=1"], []) for key in ASKED}
    jobs["elsewhere"] = job(DAPO, "dapo_trainer", [], [], "recipe/dapo")
    return jobs


def job_of(run: RecipeRun, overrides: list[str], keys: list[str]) -> dict[str, Any]:
    found = job(run.entry.module, run.entry.config, overrides, keys, run.entry.folder or ".")
    return found | {"needs": [feature.partition("@")[0] for feature in run.needs]}


def job(module: str, config: str, overrides: list[str], keys: list[str], folder: str = ".") -> dict[str, Any]:
    return {"module": module, "folder": folder, "config": config, "overrides": overrides, "keys": keys, "needs": []}


def run_of(key: tuple[str, str]) -> RecipeRun:
    return resolve(RECIPES, *key)


def overrides_of(run: RecipeRun) -> list[str]:
    return [override_text(key, setting, run).replace("=$", "=/somewhere/") for key, setting in run.overrides.items()]


def rules() -> Rules:
    assert RECIPES.rules is not None
    return RECIPES.rules.value


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_the_overrides_of_a_recipe_compose(composed: Of, key: tuple[str, str]) -> None:
    run = run_of(key)
    found = composed(run.title)
    assert found["error"] is None
    values = {name: found["values"][bare(name)] for name in run.overrides}
    wrong = {
        name: (setting.value, values[name])
        for name, setting in run.overrides.items()
        if setting.path is None and not arrived(setting.value, values[name])
    }
    assert wrong == {}


def arrived(written: str, value: Any) -> bool:
    if isinstance(value, list):
        return written.strip("[]").split(",") == [str(item) for item in value]
    return same(written, "null" if value is None else str(value))


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_verl_and_the_features_take_a_recipe(started: Of, key: tuple[str, str]) -> None:
    assert started("/".join(key)) is None


@pytest.mark.parametrize("title", SHRUNK)
def test_verl_and_the_features_take_a_shrunk_recipe(started: Of, title: str) -> None:
    """What tests/recipes runs for minutes is refused here, if at all."""
    assert started(title) is None


@pytest.mark.slow
@pytest.mark.parametrize("title", VARIED)
def test_verl_and_the_features_take_it_without_its_switches_and_on_one_rank(varied: Of, title: str) -> None:
    assert varied(title) is None


def test_verl_and_the_features_refuse_what_the_rules_refuse(started: Of) -> None:
    assert "an update must be one mini-batch" in started("two mini-batches")
    assert "sync" in started("asynchronous")


@pytest.mark.parametrize("key", KEYS, ids="/".join)
def test_a_mistyped_key_does_not_compose(composed: Of, key: tuple[str, str]) -> None:
    assert MISTYPED.rpartition(".")[2] in (composed(f"{'/'.join(key)} mistyped")["error"] or "")


def test_an_undeclared_key_needs_its_plus(composed: Of) -> None:
    assert "To append to your config use +" in composed("without +")["error"]


def test_dapo_does_not_start_in_its_own_folder(composed: Of) -> None:
    assert "ppo_trainer" in composed("elsewhere")["error"]


@pytest.mark.parametrize("key", ASKED)
def test_the_list_of_keys_says_what_hydra_says(composed: Of, key: str) -> None:
    known = read_keys(Distribution.load(REPO), run_of(("qwen3-235b", "grpo")))
    assert known is not None
    assert (known.fault(key, "1") is None) is (composed(f"asked {key}")["error"] is None)


def test_a_key_that_a_class_does_not_have_ends_a_run_later(started: Of) -> None:
    """Hydra adds it; the class that takes the mapping refuses it. So the list does as well."""
    assert "max_num_seq" in started("no field")


def test_the_list_of_keys_is_that_of_the_trees(upstream: Upstream) -> None:
    tree = upstream.tree("verl")
    if not (tree / "recipe").is_dir():
        pytest.skip("the source distribution of verl has no recipe/")
    stack = upstream.stack("verl")
    lacking = (upstream.lacks("verl", feature_of(patch.name)) for patch in Distribution.load(REPO).patch_files(stack))
    if reason := next(filter(None, lacking), None):
        pytest.skip(reason)
    listed = (REPO / FOLDER / "verl" / f"{stack.name}.tsv").read_text().splitlines()
    assert [line for line in listed if not line.startswith("#")] == upstream.run(KEYS_PROBE, tree)


@pytest.mark.parametrize("config", MODULES)
def test_the_defaults_of_the_rules_are_those_of_the_configuration(
    upstream: Upstream, composed: Of, config: str
) -> None:
    patches = Distribution.load(REPO).patch_files(upstream.stack("verl"))
    lacking = [patch.read_text() for patch in patches if upstream.lacks("verl", feature_of(patch.name))]
    # Of a feature that is not in the tree, the keys that its patch declares.
    absent = {name for text in lacking for name in re.findall(r"(?m)^\+ +(\w+):", text)}
    known = defaults_for(rules(), config, run_of(("qwen3-235b", "grpo")).versions)
    declared = {key: value for key, value in known.items() if key.rpartition(".")[2] not in absent}
    found = composed(config)
    assert found["error"] is None
    wrong = {
        key: (text, found["values"][key])
        for key, text in declared.items()
        if not equal(declared[text[1:].strip()] if text.startswith("=") else text, found["values"][key])
    }
    assert wrong == {}


def equal(text: str, value: Any) -> bool:
    if value is None:
        return text == "null"
    return number(str(value)) == number(text) if number(text) is not None else same(text, str(value))


@pytest.mark.parametrize("variable", sorted({v for key in KEYS for v in run_of(key).environment}))
def test_a_variable_of_a_recipe_is_read_or_documented(upstream: Upstream, variable: str) -> None:
    if variable in rules().variables:
        return
    readers = [name for name in UPSTREAMS if variable in words_of(upstream.tree(name))]
    assert readers, f"no package of {', '.join(UPSTREAMS)} reads {variable}, and manifests/rules.yaml has no address"


def test_no_documented_variable_is_without_use() -> None:
    used = {v for loaded in RECIPES.files.values() for v in loaded.value.environment}
    assert set(rules().variables) <= used


@cache
def words_of(tree: Path) -> frozenset[str]:
    """The names in capitals that stand in quotes in the code of a tree; in C++ those in getenv calls as well."""
    found: set[str] = set()
    for path in tree.rglob("*"):
        relative = path.relative_to(tree).as_posix()
        if path.suffix in (".py", ".cpp", ".h", ".cc") and not NOT_CODE.search(relative) and path.is_file():
            found.update(re.findall(r"""["']([A-Z][A-Z0-9_]{3,})["']""", path.read_text(errors="replace")))
    return frozenset(found)
