"""A second, real stack of vllm-ascend beside the shipped one, with one feature that carries over: each has its own evidence.

second_stack/ was made from the shipped stack as docs/writing-patches.md says: two manifests, `edit` of both stacks, one commit
cherry-picked (a row of a table in the docs had to be mended), `export`, `lock`, `prove`. It is not in the distribution: a stack
that carries one feature of eight, and no verl that drives its vllm, is none that anybody would train with.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distribution import REPO, run_patchctl

from patchctl.catalog.evidence import read_record
from patchctl.source.cache import cache_root

SECOND = Path(__file__).with_name("second_stack")
OLD, NEW = "vllm-ascend/v0.14.0rc1", "vllm-ascend/v0.16.0rc1"
FEATURE = "tp_hccl_expansion_mode"
# Taken while this module is imported, before the tests get an empty home: a cache that is there spares the index.
CACHE = cache_root()
TORCH_PYTHON, MIRRORS = os.environ.get("PATCHCTL_TORCH_PYTHON"), os.environ.get("PATCHCTL_MIRRORS")

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the distribution with both stacks."""
    root = tmp_path_factory.mktemp("second") / "distribution"
    for name in ("manifests", "patches", "standins", "tests/behaviour"):
        shutil.copytree(REPO / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "tests/pins.py"):
        shutil.copy(REPO / name, root / name)
    shutil.copytree(SECOND, root, dirs_exist_ok=True)
    return root


@pytest.fixture(scope="module")
def patchctl(root: Path) -> Run:
    """Runs a verb on it with the user's index, mirrors and cache; its JSON. Skipped where a source cannot be had."""
    places = sorted(Path(MIRRORS).iterdir()) if MIRRORS else []
    mirrors = [f"--mirror={place.name.removesuffix('.git')}={place}" for place in places if place.is_dir()]

    def run(verb: str, *args: str, sources: bool = True, codes: tuple[int, ...] = (0,)) -> Any:
        line = (f"--root={root}", f"--cache={CACHE}", verb, "--json", *args, *(mirrors if sources else []))
        env = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PATCHCTL_TORCH_PYTHON": TORCH_PYTHON or ""}
        done = run_patchctl(*line, home=root.parent / "home", env=env, timeout=3600)
        if done.returncode == 3:
            pytest.skip(f"a source of the second stack cannot be had: {(done.stderr or done.stdout)[-600:]}")
        assert done.returncode in codes, done.stdout + done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def locked(root: Path, patchctl: Run) -> Path:
    before = {file: file.read_bytes() for file in (root / "manifests/locks").rglob("*.json")}
    for upstream in ("vllm", "vllm-ascend"):
        patchctl("lock", "--upstream", upstream)
    assert {file: file.read_bytes() for file in before} == before
    return root


def unproven(patchctl: Run, stack: str) -> dict[str, str]:
    """What `verify --proven` says of a stack's features."""
    findings = patchctl("verify", "--static", "--proven", sources=False, codes=(1,))["findings"]
    of = f"is not proven on {stack}: "
    return {f["patch"]: f["message"].removeprefix(of) for f in findings if f["message"].startswith(of)}


@pytest.mark.heavy("runs a proof")
def test_both_stacks_build_and_neither_proves_the_other(locked: Path, patchctl: Run, tmp_path: Path) -> None:
    names = {s["stack"] for s in patchctl("list", "stacks", "--upstream", "vllm-ascend", sources=False)["stacks"]}
    assert names >= {OLD.partition("/")[2], NEW.partition("/")[2]}
    tree = patchctl("apply", "--profile", "next", "--workspace", str(tmp_path))["trees"]["vllm-ascend"]
    assert tree["locked"] is True and [p["feature"] for p in tree["patches"]] == [FEATURE]
    assert "get_tp_hccl_op_expansion_mode" in (tmp_path / "vllm-ascend/vllm_ascend/utils.py").read_text()
    assert unproven(patchctl, NEW) == {FEATURE: "no record"}


@pytest.mark.slow
def test_the_feature_is_proven_on_its_new_stack(locked: Path, patchctl: Run) -> None:
    if not TORCH_PYTHON:
        pytest.skip("PATCHCTL_TORCH_PYTHON is not set: it names a Python 3.11 that has a CPU torch")
    before = unproven(patchctl, OLD)
    (feature,) = patchctl("prove", FEATURE, "--stack", NEW, codes=(0, 1))["features"]
    assert (feature["status"], feature["reasons"]) == ("proven", [])
    assert unproven(patchctl, NEW) == {} and unproven(patchctl, OLD) == before
    record = read_record(locked, *NEW.split("/"), FEATURE)
    assert record is not None and record.tests is not None and set(record.mutants) == {FEATURE}
    assert record.tests.trees["vllm"].startswith("v0.16.0 sdist ")
