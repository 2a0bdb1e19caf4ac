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

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import feature_of
from patchctl.training.recipes.check import features_and_switches
from patchctl.training.recipes.read import Recipes, read_recipes
from patchctl.training.recipes.resolve import Run, bare, resolve
from patchctl.training.recipes.shell import override_text

MODULE = "verl.trainer.main_ppo"
DAPO = "recipe.dapo.main_dapo"
ROLLOUT = "actor_rollout_ref.rollout"
# What people write for off, besides False. Hydra makes text of all but the number.
SPELLINGS = ("off", "Off", "0", "none", '"false"')
DIST = Distribution.load(REPO)
RECIPES: Recipes = read_recipes(DIST)
KEYS = RECIPES.runnable()
# Sections with a boolean or a method that switches the rest on, and what a switch of the engine stands below.
ENGINE = f"{ROLLOUT}.engine_kwargs"

Of = Callable[[str], Any]


def declared(upstream: Upstream) -> set[str]:
    """The keys of verl's configuration that switch a feature of any profile on, of those in the tree."""
    profiles = {profile for profile, _ in KEYS}
    switches = [switch for profile in profiles for switch in features_and_switches(DIST, profile)[1]]
    names = {s.name for s in switches if s.kind == "config" and not upstream.lacks("verl", s.feature)}
    return {name for name in names if name.startswith("actor_rollout_ref.") and not name.startswith(ENGINE)}


def switches_of(upstream: Upstream, run: Run) -> list[str]:
    """The declared switches, and what the recipe itself sets of their sections; those that the configuration has."""
    names = declared(upstream)
    sections = {name.rpartition(".")[0] for name in names} - {ROLLOUT, "actor_rollout_ref.actor"}
    sections = {name for name in sections if not name.endswith(".megatron")} | {f"{ROLLOUT}.speculative_config"}
    set_here = {bare(key) for key in run.overrides if bare(key).rpartition(".")[0] in sections}
    megatron = "megatron" in run.entry.config
    return sorted(name for name in names | set_here if megatron or ".megatron." not in name)


@pytest.fixture(scope="module")
def said(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Of:
    """What the driver's check says of each recipe, by its title; asking for one that the tree cannot run skips."""
    tree = upstream.tree("verl")
    runs = {"/".join(key): resolve(RECIPES, *key) for key in KEYS}
    lacking = {title: reason for title, run in runs.items() if (reason := why_not(upstream, tree, run))}
    here = {title: job(upstream, run) for title, run in runs.items() if title not in lacking}
    file = tmp_path_factory.mktemp("switches") / "jobs.json"
    file.write_text(json.dumps({"jobs": list(here.values()), "spellings": SPELLINGS}))
    found = upstream.run("probe_settings_checks.py", tree, file, need=["verl"], timeout=300)
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


def job(upstream: Upstream, run: Run) -> dict[str, Any]:
    overrides = [
        override_text(key, setting, run).replace("=$", "=/somewhere/") for key, setting in run.overrides.items()
    ]
    entry = {"module": run.entry.module, "folder": run.entry.folder or ".", "config": run.entry.config}
    return entry | {"overrides": overrides, "switches": switches_of(upstream, run)}


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
        if text == "False":  # what needs the switch may say so
            assert "is neither" not in (message or ""), f"{key}=False"
        else:
            assert f"is neither True nor False: write {key}=False for off" in (message or ""), f"{key}={text}"


@pytest.mark.on
def test_every_declared_boolean_is_among_those_walked(upstream: Upstream) -> None:
    """The fields of type bool that patches add to verl's dataclasses, against the lists of the modules."""
    tree, listed = upstream.tree("verl"), set()
    for file in (tree / "verl/utils/settings_checks").glob("*.py"):
        listed |= set(re.findall(r"\b[a-z_]+\b", file.read_text()))
    assert added_booleans(upstream) - listed == set()


def added_booleans(upstream: Upstream) -> set[str]:
    files = DIST.patch_files(upstream.stack("verl"))
    patches = [file for file in files if not upstream.lacks("verl", feature_of(file.name))]
    added = re.findall(r"^\+    (\w+): bool =", "\n".join(patch.read_text() for patch in patches), re.MULTILINE)
    folders = {patch.parent / "files/verl/workers/config" for patch in patches}
    carried = [file for folder in folders for file in folder.glob("*.py")]
    found = {
        *added,
        *(name for file in carried for name in re.findall(r"^    (\w+): bool =", file.read_text(), re.MULTILINE)),
    }
    assert {"show_progress", "enable_static_kernel"} <= found
    assert ("hybrid_data_parallel" in found) == (upstream.lacks("verl", "hdp") is None)
    return found


@pytest.mark.on
def test_nothing_spelled_as_python_does_is_told_to_be_null(said: Of) -> None:
    answers = said("qwen3-32b/grpo-sam")["switches"]
    for key in (f"{ROLLOUT}.cudagraph_mode", f"{ROLLOUT}.speculative_config.method"):
        assert (
            answers[key]["none"]
            == f"{key}='none' is text and sets {key.rpartition('.')[2]}: write {key}=null for nothing"
        )


VLLM = f"{ROLLOUT}.name=vllm"
SPMD = "ppo_trainer"
MEGATRON = "ppo_megatron_trainer"
ACTOR = "actor_rollout_ref.actor"
BALANCED = (
    f"{ROLLOUT}.eplb_lifecycle=True",
    f"{ROLLOUT}.moe_update_weights=True",
    f"{ROLLOUT}.tensor_model_parallel_size=8",
    f"{ROLLOUT}.expert_parallel_size=8",
)
ON_DEMAND = f"+{ROLLOUT}.engine_kwargs.vllm.additional_config.eplb_config.dynamic_eplb"
# What each feature refuses of the configuration: its name, the configuration, overrides, words of the message.
CONTRADICTIONS: list[tuple[str, str, tuple[str, ...], str]] = [
    (
        "data_rebalance",
        SPMD,
        (f"{ROLLOUT}.data_rebalance=True", f"{ROLLOUT}.mode=async"),
        "is for actor_rollout_ref.roll",
    ),
    ("rollout_data_parallel", SPMD, (f"{ROLLOUT}.expert_parallel_size=3",), "set it to 1 (experts are cut as other"),
    ("rollout_data_parallel", SPMD, (f"{ROLLOUT}.data_parallel_size=True",), "set it to a whole number, 1 or more"),
    (
        "rollout_progress",
        SPMD,
        (f"{ROLLOUT}.show_progress=True", f"{ROLLOUT}.mode=async"),
        "rollout.show_progress is for",
    ),
    (
        "moe_update_weights",
        SPMD,
        (f"{ROLLOUT}.moe_update_weights=True", f"{ROLLOUT}.mode=async"),
        "not vllm with async",
    ),
    ("skip_old_log_prob", SPMD, (f"{ACTOR}.skip_old_log_prob=True", f"{ACTOR}.ppo_epochs=2"), "set actor.ppo_epochs=1"),
    ("eplb_lifecycle", SPMD, (f"{ROLLOUT}.eplb_lifecycle=True",), "needs experts on several devices"),
    ("eplb_lifecycle", SPMD, (*BALANCED, f"{ON_DEMAND}=False"), "dynamic_eplb=False: leave one of them out"),
    ("eplb_lifecycle", SPMD, (*BALANCED, "trainer.nnodes=2"), "needs one engine over all 16 workers"),
    ("alltoall_overlap_load", MEGATRON, (f"{ACTOR}.megatron.grouped_experts=True",), "cannot be loaded into grouped"),
    (
        "ep_alltoallv_reshard",
        MEGATRON,
        (f"{ACTOR}.megatron.ep_alltoallv_reshard=True", f"{ACTOR}.megatron.use_mbridge=True"),
        f"needs {ACTOR}.megatron.use_mbridge=False",
    ),
    ("hdp", MEGATRON, (f"{ACTOR}.megatron.hybrid_data_parallel=True",), "context_parallel_size of 2 or more"),
    ("hdp", MEGATRON, ("critic.megatron.hybrid_data_parallel=True",), "set it to False for the critic"),
    (
        "spec_and_graph_config",
        SPMD,
        (f"{ROLLOUT}.npugraph_ex.enable=True", f"{ROLLOUT}.enforce_eager=False"),
        f"set {ROLLOUT}.cudagraph_mode=FULL_DECODE_ONLY",
    ),
    ("spec_and_graph_config", SPMD, (f"{ROLLOUT}.cudagraph_mode=None",), f"write {ROLLOUT}.cudagraph_mode=null"),
    ("spec_and_graph_config", SPMD, (f"{ROLLOUT}.speculative_config=off",), "speculative_config='off' is no section"),
    (
        "spec_and_graph_config",
        SPMD,
        (f"{ROLLOUT}.speculative_config.method=ngram", f"{ROLLOUT}.speculative_config.num_speculative_tokens=None"),
        f"write {ROLLOUT}.speculative_config.num_speculative_tokens=null",
    ),
    (
        "rollout_rebalance",
        SPMD,
        (f"{ROLLOUT}.rollout_rebalance.enable=True", f"{ROLLOUT}.rollout_rebalance.graph_sizes=None"),
        "graph_sizes=None: set it to whole numbers above 0, or to []",
    ),
]
# And what these are without the contradiction: the mode NONE and balancing over all workers are fine.
SOUND: list[tuple[str, str, tuple[str, ...], str]] = [
    ("eplb_lifecycle", SPMD, (*BALANCED, f"{ON_DEMAND}=True"), ""),
    ("spec_and_graph_config", SPMD, (f"{ROLLOUT}.cudagraph_mode=NONE", f"{ROLLOUT}.enforce_eager=False"), ""),
    ("hdp", MEGATRON, ("critic.megatron.hybrid_data_parallel=False",), ""),
]


@pytest.fixture(scope="module")
def told(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], str | None]:
    """What the driver's check says of CONTRADICTIONS and SOUND, by their overrides, of the features in the tree."""
    here = [case for case in CONTRADICTIONS + SOUND if not upstream.lacks("verl", case[0])]
    entry = {"module": MODULE, "folder": ".", "switches": []}
    jobs = [entry | {"config": config, "overrides": [VLLM, *overrides]} for _, config, overrides, _ in here]
    file = tmp_path_factory.mktemp("contradictions") / "jobs.json"
    file.write_text(json.dumps({"jobs": jobs, "spellings": []}))
    found = upstream.run("probe_settings_checks.py", upstream.tree("verl"), file, need=["verl"])
    return {case[2]: answer["as it is"] for case, answer in zip(here, found, strict=True)}


@pytest.mark.on
@pytest.mark.parametrize(("feature", "config", "overrides", "words"), CONTRADICTIONS + SOUND)
def test_what_the_configuration_tells_is_refused_by_the_driver(
    upstream: Upstream, told: Any, feature: str, config: str, overrides: tuple[str, ...], words: str
) -> None:
    if reason := upstream.lacks("verl", feature):
        pytest.skip(reason)
    if words:
        assert words in (told[overrides] or "")
    else:
        assert told[overrides] is None


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
    probe = "probe_settings_checks_worker.py"
    need = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
    answers = upstream.run(probe, tiny_models.qwen3, timeout=180, **need)
    assert answers.keys() == {"fsdp", "megatron"}
    for worker, by_value in answers.items():
        assert f"ValueError: {ROLLOUT}.show_progress='off' is neither True nor False" in by_value["off"], worker
        assert "show_progress" not in (by_value["False"] or ""), worker
