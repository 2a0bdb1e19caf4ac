"""`drift`, changed names and `blame` on real upstream history: verdicts against git's own merge, names that really changed, and a
traceback that a real Python printed of a patched verl.

    PATCHCTL_MIRRORS=DIR     DIR/verl, DIR/vllm-ascend, ...: repositories with the releases' tags
    PATCHCTL_TORCH_PYTHON    for the traceback
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distribution import GIT_ENV, REPO, run_patchctl

from patchctl.drift.drift import Drifting
from patchctl.drift.types import ARRIVES, EXACT, UPSTREAM, ReleaseDrift
from patchctl.errors import DoesNotApply
from patchctl.git.catfile import ObjectReader
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack
from patchctl.source.types import SourceOptions
from patchctl.source.upstream_releases import UpstreamRelease, UpstreamReleases
from patchctl.stack.build import StackBuilder
from patchctl.stack.plan import load_patches
from patchctl.terminal.progress import Progress

MIRRORS, TORCH_PYTHON = os.environ.get("PATCHCTL_MIRRORS"), os.environ.get("PATCHCTL_TORCH_PYTHON")
RELEASES = [
    ("verl", "v0.6.1"),
    ("verl", "v0.7.0"),
    ("vllm-ascend", "v0.15.0rc1"),
    ("vllm-ascend", "v0.19.1rc1"),
    ("megatron-lm", "core_v0.12.3"),
    ("megatron-lm", "core_v0.15.0"),
    ("mindspeed", "2.2.0_core_r0.12.1"),
    ("mindspeed", "core_r0.17.0"),
]


def mirror(upstream: str) -> Path:
    place = Path(MIRRORS) / upstream if MIRRORS else None
    if place is None or not place.is_dir():
        pytest.skip(f"PATCHCTL_MIRRORS names no folder with a mirror of {upstream}")
    return place


@pytest.fixture(scope="module")
def dist() -> Distribution:
    return Distribution.load(REPO)


def stack_of(dist: Distribution, upstream: str) -> Stack:
    return next(s for (u, _), s in dist.stacks.items() if u == upstream)


def options(tmp_path: Path, upstream: str) -> SourceOptions:
    return SourceOptions(cache=tmp_path / "cache", mirrors={upstream: [str(mirror(upstream))]}, offline=True)


def drifted(dist: Distribution, upstream: str, release: str, tmp_path: Path) -> ReleaseDrift:
    drifting = Drifting(dist, options(tmp_path, upstream), Progress())
    (row,) = drifting.stack(stack_of(dist, upstream), [release]).releases
    return row


class Merging:
    """git merges each patch's commit, in stack order, into what came of the release so far."""

    def __init__(self, scratch: Path, repo: Path) -> None:
        self.scratch = scratch
        self.git("init", "--quiet", "--bare", ".")
        objects = repo / "objects" if (repo / "objects").is_dir() else repo / ".git" / "objects"
        (scratch / "objects" / "info" / "alternates").write_text(f"{objects}\n")

    def git(self, *args: str, ends: tuple[int, ...] = (0,)) -> tuple[int, str]:
        done = subprocess.run(
            ["git", *args], cwd=self.scratch, env=GIT_ENV, capture_output=True, text=True, check=False
        )
        assert done.returncode in ends, done.stderr
        return done.returncode, done.stdout.strip()

    def tree(self, commit: str) -> str:
        return self.git("rev-parse", f"{commit}^{{tree}}")[1]

    def verdicts(self, base: str, steps: list[str], release: str) -> Iterator[str]:
        ours = self.tree(release)
        for before, after in zip([base, *steps], steps, strict=False):
            # the merge base of the two is the stack before the patch
            (_, side) = self.git("commit-tree", ours, "-p", before, "-m", "ours")
            code, out = self.git("merge-tree", "--write-tree", "--name-only", side, after, ends=(0, 1))
            merged = out.splitlines()[0]
            yield "conflict" if code else UPSTREAM if merged == ours else "arrives"
            ours = ours if code else merged


def packed(scratch: Path, dist: Distribution, stack: Stack, base: UpstreamRelease) -> list[str]:
    """The stack's commits, in the scratch repository."""
    with ObjectReader(base.repo) as reader:
        built = StackBuilder(reader, base.commit, base.tree).build(load_patches(dist, stack))
    built.objects.write(scratch / "objects" / "pack")
    return [step.commit for step in built.steps]


@pytest.mark.parametrize(("upstream", "release"), RELEASES, ids=lambda one: str(one))
def test_verdicts_are_those_of_git_merge_tree(dist: Distribution, upstream: str, release: str, tmp_path: Path) -> None:
    stack = stack_of(dist, upstream)
    row = drifted(dist, upstream, release, tmp_path)
    base = UpstreamReleases(stack, dist.upstream(upstream), options(tmp_path, upstream), Progress(), frozenset()).base()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    merging = Merging(scratch, mirror(upstream))
    wanted = list(merging.verdicts(base.commit, packed(scratch, dist, stack, base), row.commit))
    found = [UPSTREAM if p.state == UPSTREAM else "arrives" if p.state in ARRIVES else "conflict" for p in row.patches]
    assert dict(zip([p.feature for p in row.patches], found, strict=True)) == dict(
        zip([p.feature for p in row.patches], wanted, strict=True)
    )


@pytest.mark.parametrize(("upstream", "release"), RELEASES, ids=lambda one: str(one))
def test_exact_is_what_the_stack_function_takes(
    dist: Distribution, upstream: str, release: str, tmp_path: Path
) -> None:
    row = drifted(dist, upstream, release, tmp_path)
    patches = load_patches(dist, stack_of(dist, upstream))
    seen: set[bytes] = set()
    alone = 0
    with ObjectReader(mirror(upstream)) as reader:
        tree = reader.read(row.commit)[1][5:45].decode()
        for patch, drift in zip(patches, row.patches, strict=True):
            if not patch.paths & seen:  # on no file of a patch before it
                alone += 1
                try:
                    StackBuilder(reader, row.commit, tree).build([patch])
                    taken = True
                except DoesNotApply:
                    taken = False
                assert taken == (drift.state == EXACT), patch.feature
            seen |= patch.paths
    assert alone


def test_a_function_that_a_carried_file_calls_lost_a_parameter(dist: Distribution, tmp_path: Path) -> None:
    """vllm-ascend took `model_config` from model_register() between v0.14.0rc1 and v0.15.0rc1; no hunk is there."""
    row = drifted(dist, "vllm-ascend", "v0.15.0rc1", tmp_path)
    (reset,) = [p for p in row.patches if p.feature == "eplb_reset"]
    (name,) = reset.names
    assert (name.name, name.file) == ("vllm_ascend.eplb.utils.model_register", "vllm_ascend/eplb/on_demand.py")
    assert (name.was, name.now) == ("def model_register(model, model_config)", "def model_register(model)")
    assert "vllm_ascend/eplb/utils.py" not in [f.path for f in reset.files]


def test_a_function_that_a_file_carried_elsewhere_calls_lost_a_parameter(dist: Distribution, tmp_path: Path) -> None:
    """A file of verl's calls Megatron-LM; what the other stacks call is not looked at where no place has them."""
    mirrors = {upstream: [str(mirror(upstream))] for upstream in ("megatron-lm", "verl")}
    drifting = Drifting(dist, SourceOptions(cache=tmp_path / "cache", mirrors=mirrors, offline=True), Progress())
    found = drifting.stack(dist.stack("megatron-lm", "core_v0.12.1"), ["core_v0.16.0", "core_v0.17.0rc0"])
    before, after = ({n.name: n for c in r.callers for n in c.names} for r in found.releases)
    name = "megatron.core.dist_checkpointing.serialization.load_sharded_metadata"
    assert name not in before
    assert (after[name].file, after[name].was, after[name].now) == (
        "verl/models/mcore/grouped_experts.py",
        "def load_sharded_metadata(checkpoint_dir, sharded_strategy=None, common_strategy=None)",
        "def load_sharded_metadata(checkpoint_dir, sharded_strategy=None)",
    )
    assert {line.partition(":")[0].partition("/")[0] for line in found.unseen} == {"vllm", "vllm-ascend", "mindspeed"}


def test_what_upstream_took_and_wrote_anew(dist: Distribution, tmp_path: Path) -> None:
    drifting = Drifting(dist, options(tmp_path, "vllm-ascend"), Progress())
    found = drifting.stack(stack_of(dist, "vllm-ascend"), ["v0.15.0rc1", "v0.19.1rc1", "v0.20.2rc1"])
    rows = [next(p for p in r.patches if p.feature == "npugraph_ex_static_kernel") for r in found.releases]
    assert [(p.state, p.taken) for p in rows] == [(UPSTREAM, None), (UPSTREAM, None), ("conflict", "v0.15.0rc1")]


PROGRAM = """
import torch
from verl.protocol import DataProto
def rank(**meta):
    return DataProto.from_dict({{"x": torch.zeros(1, 1)}}, meta_info=meta)
DataProto.concat([rank({0}), rank({1})])
"""
PATCHED = PROGRAM.format('timing={"gen": 1.0}', 'timing={"gen": "long"}')
UNPATCHED = PROGRAM.format("step=1", "step=2")


@pytest.fixture(scope="module")
def site(dist: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """verl's package, patched, as an installer would put it: no workspace, no repository."""
    if TORCH_PYTHON is None:
        pytest.skip("PATCHCTL_TORCH_PYTHON names no Python with torch")
    stack = stack_of(dist, "verl")
    folder = tmp_path_factory.mktemp("blame") / "site-packages"
    with ObjectReader(mirror("verl")) as reader:
        tree = reader.read(stack.pin.commit)[1][5:45].decode()
        built = StackBuilder(reader, stack.pin.commit, tree).build(load_patches(dist, stack))
        package = [p for p in built.files if p.startswith(b"verl/")]
        written = {t.path: step for step in built.steps for t in step.touched}
        plain = [p for p in package if p not in written]
        for path, data in reader.blobs(built.files, plain):
            _put(folder / path.decode(), data)
        built.objects.write(folder.parent)
    scratch = folder.parent / "scratch"
    scratch.mkdir()
    merging = Merging(scratch, mirror("verl"))
    for file in folder.parent.glob("pack-*"):
        file.rename(scratch / "objects" / "pack" / file.name)
    with ObjectReader(scratch) as reader:
        for path in written:
            if path.startswith(b"verl/") and path in built.files:
                _put(folder / path.decode(), reader.read(built.files[path].id)[1])
    assert merging.tree(built.tip_commit) == built.tip_tree
    return folder


def _put(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("program", "owner"), [(PATCHED, "dataproto_concat"), (UNPATCHED, "upstream")], ids=["patched", "unpatched"]
)
@pytest.mark.parametrize("place", ["site-packages", "a container's path"])
def test_blame_of_a_real_traceback(site: Path, tmp_path: Path, program: str, owner: str, place: str) -> None:
    assert TORCH_PYTHON is not None
    env = {"PYTHONPATH": str(site), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    done = subprocess.run([TORCH_PYTHON, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "protocol.py" in done.stderr, done.stderr
    text = done.stderr if place == "site-packages" else done.stderr.replace(str(site), "/opt/workspace/verl")
    (tmp_path / "trace").write_text(text)
    args = ("blame", "--json", "--traceback", str(tmp_path / "trace"), "--mirror", f"verl={mirror('verl')}")
    told = run_patchctl(f"--root={REPO}", f"--cache={tmp_path / 'cache'}", *args, home=tmp_path / "home")
    assert told.returncode == 0, told.stdout + told.stderr

    lines: list[dict[str, Any]] = [one for one in json.loads(told.stdout)["lines"] if one["upstream"]]
    assert lines and {one["owner"] for one in lines} == {owner}
    assert {one["told_by"] for one in lines} == {"content" if place == "site-packages" else "traceback"}
    if owner != "upstream":
        assert lines[-1]["page"] == "docs/patches/verl/v0.6.0/dataproto_concat.md"
