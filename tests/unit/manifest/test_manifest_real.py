"""The manifests that this repository ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import read
from patchctl.manifest.types import Stack, Upstreams

REPOSITORY = Path(__file__).parents[3]
MANIFESTS = REPOSITORY / "manifests"
FILES = [
    MANIFESTS / "upstreams.yaml",
    *sorted(MANIFESTS.glob("stacks/*/*.yaml")),
    *sorted(MANIFESTS.glob("profiles/*.yaml")),
]
STACKS = sorted(MANIFESTS.glob("stacks/*/*.yaml"))


def test_the_distribution_is_right() -> None:
    dist = Distribution.load(REPOSITORY)
    assert list(dist.upstreams) == ["verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed"]
    assert {"qwen3-235b", "qwen3-32b"} <= set(dist.profiles)
    assert dist.unlisted_files() == []


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_editors_find_the_schema(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    start = "# yaml-language-server: $schema="
    assert first.startswith(start)
    kind = {"profiles": "profile", "manifests": "upstreams"}.get(path.parent.name, "stack")
    assert (path.parent / first.removeprefix(start)).resolve() == MANIFESTS / "schema" / f"{kind}.schema.json"


@pytest.mark.parametrize("path", STACKS, ids=lambda p: p.stem)
def test_a_stacks_name_is_the_pins_commit_tag_or_release_branch(path: Path) -> None:
    stack = read(path, Stack).value
    branches = Distribution.load(REPOSITORY).upstream(stack.upstream).releases
    if all(c in "0123456789abcdef" for c in stack.name):
        assert stack.pin.commit.startswith(stack.name)
    elif branches:
        assert stack.name.startswith(branches)
        assert stack.pin.tag is None
    else:
        assert stack.pin.tag == stack.name


def executed(stack: str, path: str) -> dict[str, Any]:
    files = {g.path: g.content for g in read(MANIFESTS / "stacks" / stack, Stack).value.generated}
    names: dict[str, Any] = {}
    exec(compile(files[path], path, "exec"), names)
    return names


@pytest.mark.parametrize(
    ("stack", "path", "version"),
    [
        ("vllm/v0.14.1.yaml", "vllm/_version.py", (0, 14, 1)),
        ("vllm/v0.23.0.yaml", "vllm/_version.py", (0, 23, 0)),
        ("vllm-ascend/v0.14.0rc1.yaml", "vllm_ascend/_version.py", (0, 14, 0, "rc1")),
        ("vllm-ascend/v0.23.0.yaml", "vllm_ascend/_version.py", (0, 23, 0)),
    ],
)
def test_generated_version_files_name_the_pin(stack: str, path: str, version: tuple[int | str, ...]) -> None:
    names, pin = executed(stack, path), read(MANIFESTS / "stacks" / stack, Stack).value.pin
    assert pin.sdist is not None
    assert names["__version__"] == names["version"] == pin.sdist.version
    assert names["__version_tuple__"] == names["version_tuple"] == version
    assert names["commit_id"] == names["__commit_id__"] == "g" + pin.commit[:9]
    assert all(name in names for name in names["__all__"])


def test_generated_build_info_is_for_a3() -> None:
    assert executed("vllm-ascend/v0.14.0rc1.yaml", "vllm_ascend/_build_info.py")["__device_type__"] == "A3"


def test_each_requirement_is_used_by_each_profile() -> None:
    dist = Distribution.load(REPOSITORY)
    requirements = read(MANIFESTS / "upstreams.yaml", Upstreams).value.requirements
    for profile in dist.profiles.values():
        assert set(profile.runtime) == set(requirements)
