"""The pack of a base that goes into a bundle, and the base that comes out of it."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from source_builders import demo_stack, demo_upstream, git, make_repo

from patchctl.bundle.create import write_pack
from patchctl.git.fetch import proven_tree, take_pack
from patchctl.git.run import GitFailed
from patchctl.source.cache import new_repository
from patchctl.source.obtain import obtain_form
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

# Across the 65,535 bytes that a stored block holds at most, and at its edges.
SIZES = (0, 1, 65_535, 65_536, 131_070, 300_001)
TEXT = b"one line of many\n" * 200


@pytest.fixture
def base(tmp_path: Path, options: SourceOptions) -> Base:
    """The commit in the middle of three, with links, a submodule, two equal files and large ones."""
    noise = random.Random(7)
    files = {f"pkg/data/{size}.bin": noise.randbytes(size) for size in SIZES} | {"pkg/text.txt": TEXT}
    repo = make_repo(tmp_path / "origin", {**files, "pkg/__init__.py": b"x = 1\n", "pkg/twin.py": b"x = 1\n"})
    (repo.path / "pkg/link").symlink_to("__init__.py")
    git(repo.path, "checkout", "--quiet", repo.commit)
    git(repo.path, "add", "--all")
    git(repo.path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},third_party/sub")
    git(repo.path, "commit", "--quiet", "-m", "links")
    stack = demo_stack(git(repo.path, "rev-parse", "HEAD"), git(repo.path, "rev-parse", "HEAD^{tree}"))
    return obtain_form("git", demo_upstream((repo.path.as_uri(),)), stack, options, Progress())


def test_what_goes_in_comes_out(base: Base, tmp_path: Path) -> None:
    pack = write_pack(base, tmp_path / "pack")
    repo = new_repository(tmp_path / "out.git")
    take_pack(repo, pack.read_bytes(), base.commit)
    assert proven_tree(repo, base.commit) == base.tree
    assert git(repo, "ls-tree", "-r", base.commit) == git(base.repo, "ls-tree", "-r", base.commit)
    assert (repo / "shallow").read_text() == f"{base.commit}\n" == (base.repo / "shallow").read_text()
    git(repo, "fsck", "--full", "--strict", "--no-dangling")
    assert sorted(p.suffix for p in (repo / "objects/pack").iterdir()) == [".idx", ".pack"]


def test_the_bytes_do_not_depend_on_how_the_cache_is_packed(base: Base, tmp_path: Path) -> None:
    first = write_pack(base, tmp_path / "first").read_bytes()
    for pack in (base.repo / "objects/pack").glob("*"):
        pack.chmod(0o644)
    git(base.repo, "-c", "core.compression=9", "repack", "-adfq", "--depth=3")
    assert write_pack(base, tmp_path / "second").read_bytes() == first
    assert TEXT in first  # nor on the zlib that Python was built with: nothing is compressed


@pytest.mark.parametrize("damage", ["cut", "changed", "not-a-pack"])
def test_a_damaged_pack_is_no_base(base: Base, damage: str, tmp_path: Path) -> None:
    data = bytearray(write_pack(base, tmp_path / "pack").read_bytes())
    if damage == "changed":
        data[len(data) // 2] ^= 1
    repo = new_repository(tmp_path / "out.git")
    with pytest.raises(GitFailed):
        take_pack(repo, {"cut": bytes(data[:-100]), "changed": bytes(data), "not-a-pack": b"x"}[damage], base.commit)
