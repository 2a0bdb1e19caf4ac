"""A base that somebody changed in the cache is found, whatever was changed, and the message names it."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from source_builders import IndexServer, Repo, demo_stack, demo_upstream, sdist_members, sha256, tar_gz

from patchctl.errors import SourceMismatch
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import TreeBuilder, TreeEntry
from patchctl.git.pack import PackWriter
from patchctl.manifest.types import Sdist
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain
from patchctl.source.places import IndexConfig
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

pytestmark = pytest.mark.family("State")

ARCHIVE = tar_gz(sdist_members())


@pytest.fixture(params=["git", "sdist"])
def base(
    request: pytest.FixtureRequest,
    repo: Repo,
    index: IndexServer,
    options: SourceOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> Base:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    monkeypatch.setattr("patchctl.source.package_index.machine_config", lambda: IndexConfig((index.simple,)))
    stack = demo_stack(repo.commit, repo.tree, Sdist(version="1.0", sha256=sha256(ARCHIVE)))
    wanted = replace(options, source=request.param, mirrors={"demo": [str(repo.path)]})
    made = obtain(demo_upstream(sdist="demo"), stack, wanted, Progress())
    check_base(made)
    return made


def pack_of(base: Base, suffix: str) -> Path:
    [path] = (base.repo / "objects" / "pack").glob(f"*{suffix}")
    path.chmod(0o644)
    return path


def found(base: Base) -> SourceMismatch:
    with pytest.raises(SourceMismatch) as caught:
        check_base(base)
    assert caught.value.code == 3
    assert str(base.repo) in str(caught.value)
    return caught.value


@pytest.mark.parametrize("suffix", [".pack", ".idx"])
def test_a_byte_changed_anywhere_is_found(base: Base, suffix: str) -> None:
    path = pack_of(base, suffix)
    whole = path.read_bytes()
    places = {0, 4, 11, len(whole) - 1, len(whole) - 21, *random.Random(1).sample(range(len(whole)), 25)}
    for place in sorted(places):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        error = found(base)
        assert path.name in str(error)
        assert "--refresh" in (error.hint or "")
    path.write_bytes(whole)
    check_base(base)


def test_an_object_changed_with_every_digest_made_right_is_found(base: Base) -> None:
    """Somebody who knows the format: the pack's and the index's own digests agree, the object's id does not."""
    with ObjectReader(base.repo) as reader:
        objects = [reader.read(base.commit)]
        files = reader.files(base.tree)
        folders: dict[str, bytes] = {}
        TreeBuilder(files).write(folders)
        victim = next(iter(files.values())).id
        writer = PackWriter()
        writer.add_known(victim, "blob", b"evil\n")  # what is added first under an id stays
        for _, data in reader.blobs(files, files):
            writer.add("blob", data)
    for oid, data in folders.items():
        writer.add_known(oid, "tree", data)
    writer.add(*objects[0])
    for suffix in (".pack", ".idx"):
        pack_of(base, suffix).unlink()
    writer.write(base.repo / "objects" / "pack")
    assert victim in str(found(base))


@pytest.mark.parametrize("keep", [0, 1, 20, 100])
def test_a_cut_pack_is_found(base: Base, keep: int) -> None:
    path = pack_of(base, ".pack")
    path.write_bytes(path.read_bytes()[:keep])
    assert path.name in str(found(base))


@pytest.mark.parametrize("gone", ["objects/pack", "objects", "config", "HEAD"])
def test_what_is_gone_is_found(base: Base, gone: str) -> None:
    path = base.repo / gone
    path.rename(path.with_name("elsewhere"))
    found(base)


@pytest.mark.parametrize(
    ("added", "text"),
    [
        ("objects/info/alternates", "/tmp\n"),
        ("hooks/post-checkout", "#!/bin/sh\n"),
        ("info/attributes", "* filter=evil\n"),
        ("objects/pack/pack-0.pack", "PACK"),
        ("objects/pack/pack-0.keep", ""),
    ],
)
def test_what_was_added_is_found(base: Base, added: str, text: str) -> None:
    path = base.repo / added
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    found(base)


def test_changed_settings_are_found_and_never_run(base: Base, tmp_path: Path) -> None:
    witness = tmp_path / "pwned"
    config = base.repo / "config"
    config.write_text(config.read_text() + f"\tfsmonitor = touch {witness}\n\tsshCommand = touch {witness}\n")
    assert str(config) in str(found(base))
    assert not witness.exists()


def test_a_base_exchanged_for_another_whole_one_is_found(base: Base) -> None:
    """Every object and digest is right, and it is not the pin's tree."""
    writer = PackWriter()
    folders: dict[str, bytes] = {}
    tree = TreeBuilder({b"evil.py": TreeEntry(0o100644, writer.add("blob", b"evil\n"))}).write(folders)
    for oid, data in folders.items():
        writer.add_known(oid, "tree", data)
    for suffix in (".pack", ".idx"):
        pack_of(base, suffix).unlink()
    commit = writer.add("commit", f"tree {tree}\n\nx\n".encode())
    writer.write(base.repo / "objects" / "pack")
    found(base)
    if base.form == "sdist":  # also when the caller was told the exchanged commit, as a changed record would do
        found(replace(base, commit=commit, tree=tree))


def test_a_base_that_another_user_owns_is_read(base: Base) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a folder to somebody else")
    for path in [base.repo, *base.repo.rglob("*")]:
        os.chown(path, 65534, 65534)
    assert check_base(base) == (3 if base.form == "git" else 4)
