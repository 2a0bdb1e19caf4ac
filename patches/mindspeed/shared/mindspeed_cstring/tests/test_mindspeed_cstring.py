"""MindSpeed's operators compile on a compiler that does not declare std::memcpy by accident."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_mindspeed_cstring.py"
# One that takes the list as it is, one that adds to it, one that removes from it, and the one that has a list of its own.
BUILDERS = [
    "AlgorithmOpBuilder",
    "RotaryPositionEmbeddingOpBuilder",
    "SmartSwapBuilder",
    "AdaptiveRecomputingPluggableAllocatorBuilder",
]
# The sources whose own text, headers of MindSpeed's included, has names of <cstring>.
USERS = {
    "ops/csrc/algorithm/adaptive_cp/adaptive_cp.cpp": ["memmove"],
    "ops/csrc/pluggable_allocator/adaptive_recomputing/NpuCachingCustomAllocator.cpp": ["strlen"],
    "ops/csrc/pluggable_allocator/smart_swap/CachingAllocatorConfig.cpp": ["strlen"],
}


@pytest.fixture(scope="module")
def results(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    folder = tmp_path_factory.mktemp("sources")
    return dict(upstream.run(PROBE, folder, *BUILDERS, need=["mindspeed"], standins=["torch_npu"]))


@pytest.fixture(scope="module")
def sources(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of every operator source: what it uses of <cstring>, and how the command of each of its builders ends."""
    if lacking := [name for name in ("g++", "ninja") if shutil.which(name) is None]:
        pytest.skip(f"no {lacking[0]} on this machine")
    folder = tmp_path_factory.mktemp("commands")
    return dict(
        upstream.run("probe_cstring_commands.py", folder, need=["mindspeed"], standins=["torch_npu"], timeout=300)
    )


@pytest.mark.on
@pytest.mark.parametrize("source", USERS)
def test_the_command_of_each_source_declares_what_it_uses(sources: dict[str, Any], source: str) -> None:
    builds = sources[source]["builds"]
    assert len(builds) == 1
    assert all(done["returncode"] == 0 for done in builds.values()), builds


@pytest.mark.off
def test_these_sources_use_it_and_none_includes_it(sources: dict[str, Any]) -> None:
    assert len(sources) == 33
    assert {name: list(found["names"].items()) for name, found in sources.items() if found["names"]} == {
        name: [(name, used)] for name, used in USERS.items()
    }
    assert not any(found["includes it"] for found in sources.values())


@pytest.mark.on
@pytest.mark.parametrize("builder", BUILDERS)
def test_source_without_the_include_compiles(results: dict[str, Any], builder: str) -> None:
    done = results[builder]["relies on compiler"]
    assert done["returncode"] == 0, done["stderr"]


@pytest.mark.off
@pytest.mark.parametrize("builder", BUILDERS)
def test_upstreams_own_flags_do_not_compile_it(results: dict[str, Any], builder: str) -> None:
    done = results[builder]["relies on compiler, no forced include"]
    assert done["returncode"] != 0
    assert "std" in done["stderr"]


@pytest.mark.off
@pytest.mark.parametrize("builder", BUILDERS)
def test_source_with_the_include_gives_the_same_object(results: dict[str, Any], builder: str) -> None:
    forced, upstreams = results[builder]["includes it"], results[builder]["includes it, no forced include"]
    assert forced["returncode"] == 0, forced["stderr"]
    assert forced["object"] == upstreams["object"]
