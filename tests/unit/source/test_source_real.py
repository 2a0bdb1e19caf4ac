"""The four real source distributions, through our own code: each tracked file is the pinned commit's, byte for byte.

What the commit holds comes from manifests/trees (mode, blob id and path of every file of a pin). PATCHCTL_TEST_TREES names
another folder of such tables.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from patchctl.errors import SourceUnavailable
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK, Files, TreeBuilder, TreeEntry
from patchctl.manifest.types import GeneratedFile, Pin, Sdist, Stack, Upstream
from patchctl.source.archive import ArchivedFile, is_generated, read_archive
from patchctl.source.cache import cache_root, kept_archive
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

ROOT = Path(__file__).parents[3]
# Taken while this module is imported, before the tests get an empty home: a real cache spares the index, and pip's
# configuration, which says where the index is, lies in the real home.
CACHE = cache_root()
HOME = os.environ.get("HOME")
EGG = {"PKG-INFO", "SOURCES.txt", "dependency_links.txt", "requires.txt", "top_level.txt"}
# upstream: stack, distribution, tracked files in the archive, generated ones beside PKG-INFO and setup.cfg
CASES = {
    "verl": ("v0.6.0", "verl", 378, {f"verl.egg-info/{name}" for name in EGG}),
    "megatron-lm": ("core_v0.12.1", "megatron-core", 283, {f"megatron_core.egg-info/{name}" for name in EGG}),
    "vllm": (
        "v0.14.1",
        "vllm",
        3741,
        {"vllm/_version.py", *(f"vllm.egg-info/{name}" for name in {*EGG, "entry_points.txt"})},
    ),
    "vllm-ascend": (
        "v0.14.0rc1",
        "vllm-ascend",
        1153,
        {"vllm_ascend/_version.py", *(f"vllm_ascend.egg-info/{name}" for name in {*EGG, "entry_points.txt"})},
    ),
}
pytestmark = pytest.mark.network


def pinned(upstream: str) -> Stack:
    held = yaml.safe_load((ROOT / "manifests/stacks" / upstream / f"{CASES[upstream][0]}.yaml").read_text())
    pin = {**held["pin"], "sdist": Sdist(**held["pin"]["sdist"])}
    generated = [GeneratedFile(**entry) for entry in held.get("generated", [])]
    return Stack(schema=1, upstream=upstream, name=held["name"], pin=Pin(**pin), generated=generated)


@functools.cache
def real(upstream: str) -> Base | str:
    """The base of this upstream's archive, or why it cannot be had; asked for once."""
    try:
        return obtain_form(
            "sdist",
            Upstream(summary="", license="", sdist=CASES[upstream][1]),
            pinned(upstream),
            SourceOptions(cache=CACHE),
            Progress(),
        )
    except SourceUnavailable as error:
        return str(error)


@pytest.fixture
def had(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Base]:
    def get(upstream: str) -> Base:
        if HOME is not None:
            monkeypatch.setenv("HOME", HOME)
        base = real(upstream)
        if isinstance(base, str):
            pytest.skip(f"the package index cannot be reached: {base}")
        return base

    return get


def table(upstream: str, stack: str) -> Files:
    folder = Path(os.environ.get("PATCHCTL_TEST_TREES", ROOT / "manifests/trees"))
    for path in sorted(folder.rglob("*.tsv")):
        if path.stem in (stack, f"{upstream}-{stack}") and upstream in str(path.relative_to(folder)):
            rows = (line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#"))
            return {name.encode(): TreeEntry(int(mode, 8), oid) for mode, oid, name in rows}
    pytest.skip(f"{folder} has no table of {upstream} at {stack}")


def archived(base: Base) -> list[ArchivedFile]:
    sdist, archive = pinned(base.upstream).pin.sdist, kept_archive(base.repo)
    assert sdist is not None and archive is not None
    return list(read_archive(archive, sdist.sha256))


@pytest.mark.heavy("reads every object of four source distributions")
@pytest.mark.parametrize("upstream", CASES)
def test_every_object_is_read_back_and_the_tree_is_the_archive_s(upstream: str, had: Callable[[str], Base]) -> None:
    assert check_base(had(upstream)) == CASES[upstream][2]


@pytest.mark.parametrize("upstream", CASES)
def test_exactly_the_generated_files_are_left_out(upstream: str, had: Callable[[str], Base]) -> None:
    declared = {g.path.encode() for g in pinned(upstream).generated}
    left_out = [f.path.decode() for f in archived(had(upstream)) if is_generated(f, declared)]
    assert set(left_out) == {"PKG-INFO", "setup.cfg"} | CASES[upstream][3]


@pytest.mark.parametrize("upstream", ["verl", "megatron-lm", "vllm-ascend"])
def test_every_file_is_the_pinned_commit_s(upstream: str, had: Callable[[str], Base]) -> None:
    """vllm is not among them: no full copy of its repository was at hand to make a table from."""
    base = had(upstream)
    known = table(upstream, CASES[upstream][0])
    with ObjectReader(base.repo) as reader:
        files = reader.files(base.tree)
    assert {path: entry for path, entry in files.items() if known.get(path) != entry} == {}


def test_vllm_ascend_s_archive_and_its_submodule_make_the_pinned_tree(had: Callable[[str], Base]) -> None:
    base = had("vllm-ascend")
    with ObjectReader(base.repo) as reader:
        builder = TreeBuilder(reader.files(base.tree))
    builder.put(b"csrc/third_party/catlass", TreeEntry(GITLINK, "716fd7baa7fb7f6cac0488bb628fd1dd0e875641"))
    assert builder.write() == pinned("vllm-ascend").pin.tree


def test_vllm_s_archive_names_the_pinned_commit(had: Callable[[str], Base]) -> None:
    files = {file.path: file.data for file in archived(had("vllm"))}
    assert f"commit_id = 'g{pinned('vllm').pin.commit[:9]}'".encode() in files[b"vllm/_version.py"]
