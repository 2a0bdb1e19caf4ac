"""The manifests that this repository ships."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

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
    elif stack.pin.commit is None:
        assert stack.pin.tag is None
        assert stack.pin.sdist is not None and stack.name == f"v{stack.pin.sdist.version}"
    else:
        assert stack.pin.tag == stack.name


def executed(path: Path, name: str) -> dict[str, Any]:
    """The names of a file that a stack generates; none where it does not."""
    names: dict[str, Any] = {}
    for generated in read(path, Stack).value.generated:
        if generated.path.endswith(f"/{name}"):
            exec(compile(generated.content, generated.path, "exec"), names)
    return names


def test_generated_version_files_name_the_pin() -> None:
    found = [(path, names) for path in STACKS if (names := executed(path, "_version.py"))]
    assert {path.parent.name for path, _ in found} == {"vllm", "vllm-ascend"}
    for path, names in found:
        pin = read(path, Stack).value.pin
        assert pin.sdist is not None
        version = Version(pin.sdist.version)
        assert names["__version__"] == names["version"] == pin.sdist.version
        candidate = "".join(map(str, version.pre or ()))
        post = "" if version.post is None else f"post{version.post}"
        assert (
            names["__version_tuple__"] == names["version_tuple"] == (*version.release, *filter(None, [candidate, post]))
        )
        assert names["commit_id"] == names["__commit_id__"]
        if pin.commit is not None:
            assert names["commit_id"] == "g" + pin.commit[:9]
        assert all(name in names for name in names["__all__"])


def test_generated_build_info_is_for_a3() -> None:
    found = [names["__device_type__"] for path in STACKS if (names := executed(path, "_build_info.py"))]
    assert found
    assert {*found} == {"A3"}


def test_each_requirement_is_used() -> None:
    """By each profile, on one of its releases at least."""
    dist = Distribution.load(REPOSITORY)
    requirements = read(MANIFESTS / "upstreams.yaml", Upstreams).value.requirements
    for profile in dist.variants:
        assert {name for on in dist.variants[profile] for name in on.runtime} == set(requirements)
