"""MindSpeed's operators compile on a compiler that does not declare std::memcpy by accident."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from harness import Upstream

PROBE = "probe_mindspeed_cstring.py"
# One that takes the list as it is, one that adds to it, one that removes from it.
BUILDERS = ["AlgorithmOpBuilder", "RotaryPositionEmbeddingOpBuilder", "SmartSwapBuilder"]


@pytest.fixture(scope="module")
def results(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    folder = tmp_path_factory.mktemp("sources")
    return dict(upstream.run(PROBE, folder, *BUILDERS, need=["mindspeed"], standins=["torch_npu"]))


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
