"""`pin` and `rebase` on the real thing: the shipped vllm-ascend stack to v0.15.0rc1, as far as it goes without a person."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, git, run_patchctl

from patchctl.source.cache import cache_root

# Taken while this module is imported, before the tests get an empty home: a cache that is there spares the index.
CACHE = cache_root()
MIRRORS = os.environ.get("PATCHCTL_MIRRORS")
OLD, NEW = "vllm-ascend/v0.14.0rc1", "v0.15.0rc1"


@pytest.fixture(scope="module")
def mirror() -> str:
    places = [Path(MIRRORS) / name for name in ("vllm-ascend", "vllm-ascend.git")] if MIRRORS else []
    found = next((p for p in places if p.is_dir()), None)
    if found is None:
        pytest.skip("PATCHCTL_MIRRORS names no folder with a git mirror of vllm-ascend")
    return f"--mirror=vllm-ascend={found}"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "distribution"
    for name in ("manifests", "patches"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def run(root: Path, *args: str, code: int = 0) -> Any:
    line = (f"--root={root}", f"--cache={CACHE}", *args, "--json")
    done = run_patchctl(*line, home=root.parent / "home", timeout=600)
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_pin(root: Path, mirror: str) -> None:
    found = run(root, "pin", "vllm-ascend", NEW, mirror)
    assert found["commit"] == "3d43ed997e715981321bffc10f72f11d9522a5ae"
    assert found["tree"] == "3190b1ad3453744e84de4b2073bff78979cdec5f"
    assert "__version__ = version = '0.15.0rc1'" in found["manifest"] and "(0, 15, 0, 'rc1')" in found["manifest"]
    runtime = {p["name"]: p["value"] for p in found["runtime"]}
    assert runtime.items() >= {"torch": "==2.9.0", "torch-npu": "==2.9.0", "cann": "8.5.0"}.items()


def test_rebase_to_the_first_conflict_and_back(root: Path, mirror: str) -> None:
    before = {f: f.read_bytes() for f in root.rglob("*") if f.is_file()}
    found = run(root, "rebase", OLD, "--to", NEW, "--drop-upstreamed", mirror, code=4)
    (dropped,) = found["steps"]
    assert (dropped["feature"], dropped["outcome"]) == ("npugraph_ex_static_kernel", "dropped")
    assert "a0315f6697" in dropped["reason"]
    stop = found["stopped_at"]
    assert stop["feature"] == "tp_hccl_expansion_mode"
    assert list(stop["files"]) == ["docs/source/user_guide/configuration/additional_config.md"]
    tree = Path(found["folder"])
    staged = git(tree, "diff", "--cached", "--name-only", "--diff-filter=M").split()
    assert staged == ["vllm_ascend/ascend_config.py", "vllm_ascend/utils.py"]
    run(root, "rebase", "--abort")
    assert not tree.exists() and {f: f.read_bytes() for f in before} == before
    assert {f.relative_to(root).parts[0] for f in root.rglob("*") if f.is_file() and f not in before} <= {"edit"}
