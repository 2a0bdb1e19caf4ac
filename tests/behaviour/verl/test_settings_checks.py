"""settings_checks: a switch is True or False, and what the configuration alone tells is refused before Ray is started."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from entry_process import CAME_TO_RAY, start
from harness import REPO, Upstream
from models import TinyModels

from patchctl.check.recipes import features_and_switches
from patchctl.manifest.distribution import Distribution
from patchctl.recipe.read import Recipes, read_recipes
from patchctl.recipe.render import override_text
from patchctl.recipe.resolve import Run, bare, resolve

FOLDER = "tests/behaviour/verl"
MODULE = "verl.trainer.main_ppo"
DAPO = "recipe.dapo.main_dapo"
ROLLOUT = "actor_rollout_ref.rollout"
# What people write for off, besides False. Hydra makes text of all but the number.
SPELLINGS = ("off", "Off", "0", "none", '"false"')
NO_BOOLEAN = (*SPELLINGS, "null", "1")
DIST = Distribution.load(REPO)
RECIPES: Recipes = read_recipes(DIST)
KEYS = RECIPES.runnable()
# Sections with a boolean or a method that switches the rest on, and what a switch of the engine stands below.
ENGINE = f"{ROLLOUT}.engine_kwargs"

Of = Callable[[str], Any]


def declared() -> set[str]:
    """The keys of verl's configuration that switch a feature of any profile on."""
    profiles = {profile for profile, _ in KEYS}
    switches = [switch for profile in profiles for switch in features_and_switches(DIST, profile)[1]]
    names = {switch.name for switch in switches if switch.kind == "config"}
    return {name for name in names if name.startswith("actor_rollout_ref.") and not name.startswith(ENGINE)}


def switches_of(run: Run) -> list[str]:
    """The declared switches, and what the recipe itself sets of their sections; those that the configuration has."""
    sections = {name.rpartition(".")[0] for name in declared()} - {ROLLOUT, "actor_rollout_ref.actor"}
    sections = {name for name in sections if not name.endswith(".megatron")} | {f"{ROLLOUT}.speculative_config"}
    set_here = {bare(key) for key in run.overrides if bare(key).rpartition(".")[0] in sections}
    megatron = "megatron" in run.entry.config
    return sorted(name for name in declared() | set_here if megatron or ".megatron." not in name)


@pytest.fixture(scope="module")
def said(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What the driver's check says of each recipe, by its title; asking for one that the tree cannot run skips."""
    tree = upstream.tree("verl")
    runs = {"/".join(key): resolve(RECIPES, *key) for key in KEYS}
    lacking = {title: reason for title, run in runs.items() if (reason := why_not(upstream, tree, run))}
    here = {title: job(run) for title, run in runs.items() if title not in lacking}
    file = tmp_path_factory.mktemp("switches") / "jobs.json"
    file.write_text(json.dumps({"jobs": list(here.values()), "spellings": SPELLINGS}))
    found = upstream.run(f"{FOLDER}/probe_settings_checks.py", tree, file, need=["verl"], timeout=300)
    answers = dict(zip(here, found, strict=True))

    def one(title: str) -> Any:
        if title in lacking:
            pytest.skip(lacking[title])
        return answers[title]

    return one


def why_not(upstream: Upstream, tree: Path, run: Run) -> str | None:
    if not (tree / f"{run.entry.module.replace('.', '/')}.py").is_file():
        return f"{run.entry.module} is not in this tree of verl: the source distribution has no recipe/"
    needs = [need.partition("@")[0] for need in run.needs]
    return next(filter(None, (upstream.lacks("verl", feature) for feature in needs)), None)


def job(run: Run) -> dict[str, Any]:
    overrides = [
        override_text(key, setting, run).replace("=$", "=/somewhere/") for key, setting in run.overrides.items()
    ]
    entry = {"module": run.entry.module, "folder": run.entry.folder or ".", "config": run.entry.config}
    return entry | {"overrides": overrides, "switches": switches_of(run)}


def each(answers: dict[str, dict[str, str | None]]) -> Iterator[tuple[str, str, str | None]]:
    return ((key, text, message) for key, by_text in answers.items() for text, message in by_text.items())


@pytest.mark.on
@pytest.mark.parametrize("title", ["/".join(key) for key in KEYS])
def test_no_spelling_of_off_turns_a_switch_of_a_recipe_on(said: Of, title: str) -> None:
    answers = said(title)
    assert answers["as it is"] is None
    assert answers["switches"].keys() >= {f"{ROLLOUT}.data_rebalance", f"{ROLLOUT}.cudagraph_mode"}
    # In verl no switch has a number 0 that means off, so that every one of them is refused, with its key.
    taken = [(key, text) for key, text, message in each(answers["switches"]) if key not in (message or "")]
    assert taken == []


@pytest.mark.on
@pytest.mark.parametrize("title", ["/".join(key) for key in KEYS])
def test_every_boolean_of_every_patch_is_true_or_false(said: Of, title: str) -> None:
    for key, text, message in each(said(title)["booleans"]):
        if text == "False":
            assert message is None, f"{key}=False"
        else:
            assert f"is neither True nor False: write {key}=False for off" in (message or ""), f"{key}={text}"


@pytest.mark.on
def test_every_declared_boolean_is_among_those_walked(upstream: Upstream) -> None:
    """The fields of type bool that patches add to verl's dataclasses, against the lists of the modules."""
    tree, listed = upstream.tree("verl"), set()
    for file in (tree / "verl/utils/settings_checks").glob("*.py"):
        listed |= set(re.findall(r"\b[a-z_]+\b", file.read_text()))
    assert added_booleans() - listed == set()


def added_booleans() -> set[str]:
    patches = [*(REPO / "patches/verl/v0.6.0").glob("*.patch")]
    added = re.findall(r"^\+    (\w+): bool =", "\n".join(patch.read_text() for patch in patches), re.MULTILINE)
    carried = (REPO / "patches/verl/v0.6.0/files/verl/workers/config").glob("*.py")
    found = {
        *added,
        *(name for file in carried for name in re.findall(r"^    (\w+): bool =", file.read_text(), re.MULTILINE)),
    }
    assert {"show_progress", "hybrid_data_parallel", "enable_static_kernel"} <= found
    return found


@pytest.mark.on
def test_nothing_spelled_as_python_does_is_told_to_be_null(said: Of) -> None:
    answers = said("qwen3-32b/grpo-sam")["switches"]
    for key in (f"{ROLLOUT}.cudagraph_mode", f"{ROLLOUT}.speculative_config.method"):
        assert (
            answers[key]["none"]
            == f"{key}='none' is text and sets {key.rpartition('.')[2]}: write {key}=null for nothing"
        )


# What the entry module says, as a process of its own, before it comes to Ray.
REFUSED = {
    f"{ROLLOUT}.show_progress=off": f"{ROLLOUT}.show_progress='off' is neither True nor False",
    f"{ROLLOUT}.cudagraph_mode=None": f"write {ROLLOUT}.cudagraph_mode=null for nothing",
    f"{ROLLOUT}.npugraph_ex=off": f"{ROLLOUT}.npugraph_ex='off' is no section",
    f"{ROLLOUT}.data_parallel_size=3": "needs a multiple of 6 processes for the rollout, and there are 8",
}


@pytest.mark.on
@pytest.mark.parametrize("override", REFUSED)
def test_the_driver_refuses_before_it_starts_ray(upstream: Upstream, override: str) -> None:
    status, output = start(upstream, MODULE, override)
    assert status == 1
    assert REFUSED[override] in output
    assert CAME_TO_RAY not in output


@pytest.mark.off
def test_what_is_right_comes_to_ray(upstream: Upstream) -> None:
    status, output = start(upstream, MODULE)
    assert (status, CAME_TO_RAY in output) == (1, True)


@pytest.mark.on
def test_workers_of_other_entry_modules_refuse_before_they_load_a_model(
    upstream: Upstream, tiny_models: TinyModels
) -> None:
    probe = f"{FOLDER}/probe_settings_checks_worker.py"
    need = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
    answers = upstream.run(probe, tiny_models.qwen3, timeout=180, **need)
    assert answers.keys() == {"fsdp", "megatron"}
    for worker, by_value in answers.items():
        assert f"ValueError: {ROLLOUT}.show_progress='off' is neither True nor False" in by_value["off"], worker
        assert "show_progress" not in (by_value["False"] or ""), worker
