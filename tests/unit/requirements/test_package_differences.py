"""An environment against the real lock."""

from __future__ import annotations

import pytest
from pins import oldest
from real_set import REPO

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.requirement_types import PLATFORMS, Platform
from patchctl.requirements.interpreter import RequiredPackages, compare
from patchctl.requirements.sets import read_set

SET = read_set(Distribution.load(REPO), oldest())


def wanted(platform: Platform = "x86_64") -> RequiredPackages:
    return RequiredPackages.read(SET, platform)


def as_locked(platform: Platform = "x86_64") -> dict[str, str]:
    return {name: one.version for name, one in wanted(platform).lock.packages.items()}


@pytest.mark.parametrize("platform", PLATFORMS)
def test_what_the_lock_installs_is_as_the_lock(platform: Platform) -> None:
    assert compare(as_locked(platform), wanted(platform), needs=["mathruler"]) == []


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_locks_hold_no_gpu(platform: Platform) -> None:
    packages = wanted(platform).lock.packages
    assert not [name for name in packages if name == "triton" or name.startswith("nvidia-")]
    assert (packages["torch-npu"].version, packages["triton-ascend"].version) == ("2.9.0", "3.2.0")
    bare = {name for name, one in packages.items() if not one.hashes}
    assert bare == ({"torch", "torchvision"} if platform == "x86_64" else set())
    assert packages["torch"].version == ("2.9.0+cpu" if platform == "x86_64" else "2.9.0")


@pytest.mark.parametrize(
    ("name", "version", "kind", "matters", "says"),
    [
        ("numpy", "2.4.0", "excluded", True, "verl/setup.py wants numpy<2.0.0"),
        ("numpy", "1.26.4", "excluded", False, "mindspeed/requirements.txt wants numpy<=1.26.0"),
        ("fastapi", "0.135.0", "excluded", True, "vllm-ascend/requirements.txt wants fastapi<0.124.0"),
        ("xgrammar", "0.1.29", "excluded", True, "vllm-ascend/requirements.txt wants xgrammar>=0.1.30"),
        ("xgrammar", "0.1.31", "other", False, "xgrammar 0.1.31 (lock 0.1.30)"),  # vllm's own limit was overridden
        ("tensordict", "0.10.0", "other", False, "tensordict 0.10.0 (lock 0.11.0)"),  # and verl's
        ("pillow", "9.0.0", "other", False, "pillow 9.0.0"),
        ("numpy", "not-a-version", "other", False, "numpy not-a-version"),
        ("Triton", "3.5.0", "left out", True, "the same files as triton-ascend"),
        ("nvidia_cublas_cu12", "12.8.4.1", "left out", False, "nothing that a recipe uses imports it"),
        ("codetiming", None, "missing", True, "codetiming is missing; the lock has 1.4.0, for verl/setup.py"),
        ("mathruler", None, "missing", False, "for verl/requirements-npu.txt"),
        ("zarr", None, "missing", False, "for megatron-lm/requirements/pytorch_25.03/requirements.txt"),
        ("absl-py", None, "missing", False, "for tensorboard"),
    ],
)
def test_one_package_otherwise(name: str, version: str | None, kind: str, matters: bool, says: str) -> None:
    there = {k: v for k, v in {**as_locked(), name: version}.items() if v is not None}
    (found,) = compare(there, wanted())
    assert (found.kind, found.matters) == (kind, matters) and says in str(found)


def test_what_the_recipe_needs_matters() -> None:
    there = {name: version for name, version in as_locked().items() if name != "mathruler"}
    (found,) = compare(there, wanted(), needs=["mathruler"])
    assert found.matters and "the recipe" in found.who


def test_a_build_of_the_locked_version_is_no_difference() -> None:
    assert compare({**as_locked("aarch64"), "torch": "2.9.0+gitabc"}, wanted("aarch64")) == []


def test_what_somebody_else_compares_is_passed_over() -> None:
    there = {**as_locked(), "torch": "2.5.1"}
    assert compare(there, wanted(), less=["torch"]) == []
