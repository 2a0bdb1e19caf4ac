"""`verify` says, without a network, when a lock of requirements no longer follows from trees, profiles, recipes and set.yaml."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from pins import oldest
from real_set import REPO, SET, copy_of_ours, edit, findings

from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.resolve import resolve

pytestmark = pytest.mark.heavy("resolves requirements")

LOCKS = {f"{SET}/x86_64.txt", f"{SET}/aarch64.txt"}
GRPO = f"manifests/recipes/{oldest()}/qwen3-32b/grpo.yaml"
REWARD = "scripts/rewards/deepscaler.py"
# The recipe with the path, and those that inherit it.
WITH_REWARD = {path.relative_to(REPO).as_posix() for path in (REPO / GRPO).parent.glob("grpo*.yaml")}
RELEASE = f"manifests/releases/{oldest()}.yaml"
BLOCK = '# dependencies = ["mathruler"]\n'


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return copy_of_ours(tmp_path / "ours")


def one(file: str, old: str, new: str) -> Callable[[Path], None]:
    return lambda root: edit(root, file, old, new)


@dataclass(frozen=True)
class Fault:
    """A change of the distribution: the rule that it breaks, in which files, and a part of what is said."""

    name: str
    rule: str
    files: set[str]
    says: str
    change: Callable[[Path], None]


FAULTS = (
    Fault("an_override", "requirements-lock", LOCKS, "no longer follows",
          one(f"{SET}/set.yaml", "xgrammar==0.1.30", "xgrammar==0.1.31")),
    Fault("a_package_left_out", "requirements-lock", LOCKS, "no longer follows",
          one(f"{SET}/set.yaml", "packages: arctic-inference", "packages: quart")),
    Fault("a_build_from_elsewhere", "requirements-lock", {f"{SET}/x86_64.txt"}, "no longer follows",
          one(f"{SET}/set.yaml", "packages: [torch, torchvision]", "packages: [torch]")),
    Fault("a_runtime", "requirements-lock", LOCKS, "no longer follows",
          one(RELEASE, 'transformers: "4.57.6"', 'transformers: "4.57.3"')),
    Fault("runtimes_that_differ", "manifest", {f"{SET}/set.yaml"}, "each needs a set of its own",
          one("manifests/profiles/qwen3-8b.yaml", f'">={oldest()}": {{}}', f'"{oldest()}": {{leaves_out: [mindspeed]}}')),
    Fault("a_set_that_is_not_there", "manifest", {"manifests/profiles/deepseek-r1.yaml"}, f"did you mean '{oldest()}'?",
          one(RELEASE, f'requirements: "{oldest()}"', 'requirements: "2026.03"')),
    Fault("a_need_of_a_recipe", "requirements-lock", LOCKS, "no longer follows",
          one(GRPO, "needs_packages: [mathruler]", "needs_packages: [mathruler, swanlab]")),
    Fault("a_lock_that_was_edited", "requirements-lock", {f"{SET}/aarch64.txt"}, "the lock was edited",
          one(f"{SET}/aarch64.txt", "numpy==1.26.0", "numpy==1.26.4")),
    Fault("a_lock_that_is_gone", "requirements-lock", {f"{SET}/x86_64.txt"}, "No such file",
          lambda root: (root / SET / "x86_64.txt").unlink()),
    Fault("a_tree_at_another_pin", "requirements-lock", {f"{SET}/declared.txt"}, "vllm/requirements/common.txt is not the pin's",
          lambda root: edit(root, "manifests/trees/vllm/v0.14.1.tsv", blob(root, "vllm/v0.14.1", "requirements/common.txt"), "0" * 40)),
    Fault("a_declared_file_more", "requirements-lock", {f"{SET}/declared.txt"}, "verl/requirements.txt is not in it",
          one(f"{SET}/set.yaml", "  - {upstream: verl, file: setup.py}\n",
              "  - {upstream: verl, file: setup.py}\n  - {upstream: verl, file: requirements.txt}\n")),
    Fault("a_requirement_edited_away", "requirements-lock", LOCKS, "no longer follows",
          one(f"{SET}/declared.txt", "codetiming\n", "")),
    Fault("a_reward_whose_recipe_does_not_say", "recipe-packages", WITH_REWARD,
          "imports mathruler", one(GRPO, "    needs_packages: [mathruler]\n", "")),
    Fault("a_reward_that_does_not_say", "recipe-packages", {REWARD}, "it imports mathruler", one(REWARD, BLOCK, "# dependencies = []\n")),
    Fault("a_reward_that_says_too_much", "recipe-packages", {REWARD}, "names sympy, and it does not import it",
          one(REWARD, BLOCK, '# dependencies = ["mathruler", "sympy"]\n')),
    Fault("a_block_that_cannot_be_read", "requirements-lock", {REWARD}, "cannot read", one(REWARD, BLOCK, "# dependencies = [mathruler]\n")),
)  # fmt: skip


def blob(root: Path, stack: str, path: str) -> str:
    """The blob of a file in a list of a pin."""
    lines = (root / "manifests/trees" / f"{stack}.tsv").read_text().splitlines()
    return next(line.split("\t")[1] for line in lines if line.endswith(f"\t{path}"))


def test_ours_follow(root: Path) -> None:
    assert findings(root) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f.name)
def test_one_fault(root: Path, fault: Fault) -> None:
    fault.change(root)
    found = [f for f in findings(root) if f.rule == fault.rule and fault.says in f.message]
    assert sorted(f.file.removeprefix(f"{root}/") for f in found) == sorted(fault.files)
    assert all(f.level == "error" for f in found)


def test_the_recipes_that_need_mathruler() -> None:
    """Those whose reward is that of deepscaler, whoever they inherit it from, and no other."""
    recipes = read_recipes(Distribution.load(REPO))
    runs = [resolve(recipes, profile, name) for profile, name in recipes.runnable()]
    needing = {run.title for run in runs if "mathruler" in run.needs_packages}
    assert needing == {run.title for run in runs if any(REWARD in path.what for path in run.paths.values())}
    assert {"deepseek-r1/grpo", "qwen3-32b/grpo", "qwen3-235b/grpo", "qwen3-235b/grpo-hdp"} <= needing


def release_with_a_stack_of_its_own(root: Path) -> Path:
    """A release more, as the newest but for a stack of vllm-ascend at the same pin; returns the list of that pin's files."""
    newest = next(iter(Distribution.load(root).releases.values()))
    stacks, trees = root / "manifests/stacks/vllm-ascend", root / "manifests/trees/vllm-ascend"
    old = newest.stacks["vllm-ascend"]
    text = (stacks / f"{old}.yaml").read_text().replace(f"\nname: {old}\n", "\nname: mine\n")
    (stacks / "mine.yaml").write_text(text)
    shutil.copytree(root / "patches/vllm-ascend" / old, root / "patches/vllm-ascend/mine")
    lines = [
        "schema: 1",
        'name: "2099.01"',
        "summary: Next.",
        f'extends: "{newest.name}"',
        "stacks: {vllm-ascend: mine}",
    ]
    (root / "manifests/releases/2099.01.yaml").write_text("\n".join(lines) + "\n")
    listed = (trees / f"{old}.tsv").read_text()
    (trees / "mine.tsv").write_text(listed.replace(f"# vllm-ascend {old}: ", "# vllm-ascend mine: "))
    return trees / "mine.tsv"


def test_a_release_may_have_the_locks_of_the_one_that_it_extends_while_its_trees_declare_the_same(root: Path) -> None:
    listed = release_with_a_stack_of_its_own(root)
    assert findings(root) == []
    edit(root, listed.relative_to(root).as_posix(), blob(root, "vllm-ascend/mine", "requirements.txt"), "0" * 40)
    (found,) = findings(root)
    assert found.rule == "requirements-lock" and "vllm-ascend/requirements.txt is not the pin's" in found.message
    assert "mine has 000000000000" in found.message
