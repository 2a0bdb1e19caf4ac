"""Form sdist: an archive becomes a root commit with the same id everywhere, without the files that a build wrote."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from source_builders import (
    GIT_ENV,
    SETUP_CFG,
    IndexServer,
    demo_stack,
    demo_upstream,
    git,
    sdist_members,
    sha256,
    tar_gz,
)

from patchctl.errors import BadManifest, SourceMismatch, SourceUnavailable
from patchctl.manifest.types import Sdist
from patchctl.source.cache import entries, kept_archive
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.places import IndexConfig
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

ARCHIVE = tar_gz(sdist_members(), executable=("demo-1.0/demo/bin/run.sh",))
PINNED = Sdist(version="1.0", sha256=sha256(ARCHIVE))
GENERATED = ("demo/_version.py",)


@pytest.fixture(autouse=True)
def pip_knows_the_index(index: IndexServer, monkeypatch: pytest.MonkeyPatch) -> None:
    config = IndexConfig((index.simple,))
    monkeypatch.setattr("patchctl.source.package_index.machine_config", lambda: config)


def get(options: SourceOptions, *, generated: tuple[str, ...] = GENERATED, sdist: Sdist = PINNED) -> Base:
    stack = demo_stack(sdist=sdist, generated=generated)
    return obtain_form("sdist", demo_upstream(sdist="demo"), stack, options, Progress())


def listing(base: Base) -> list[str]:
    return git(base.repo, "ls-tree", "-r", "--full-tree", "--format=%(objectmode) %(path)", base.commit).splitlines()


def test_the_tree_holds_the_tracked_files_with_their_modes(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    assert listing(base) == ["100644 README.md", "100644 demo/__init__.py", "100755 demo/bin/run.sh"]
    assert base.origin == f"{index.url}/files/demo-1.0.tar.gz"
    assert base.fetched_bytes == len(ARCHIVE)
    assert check_base(base) == 3


def test_the_commit_says_what_it_is_and_is_the_same_everywhere(
    index: IndexServer, options: SourceOptions, tmp_path: Path
) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    assert git(base.repo, "cat-file", "commit", base.commit) == (
        f"tree {base.tree}\n"
        "author patchctl <patchctl@localhost> 0 +0000\n"
        "committer patchctl <patchctl@localhost> 0 +0000\n\n"
        f"demo 1.0 from its source distribution\n\nsha256: {PINNED.sha256}"
    )
    assert get(replace(options, cache=tmp_path / "elsewhere")).commit == base.commit
    # The same files, committed by git itself, have the same tree.
    unpacked = tmp_path / "unpacked"
    unpacked.mkdir()
    subprocess.run(["tar", "xz"], input=ARCHIVE, cwd=unpacked, check=True)
    top = unpacked / "demo-1.0"
    git(top, "init", "--quiet")
    git(top, "add", "README.md", "demo/__init__.py", "demo/bin/run.sh")
    assert git(top, "write-tree") == base.tree


def test_git_finds_no_fault_with_the_repository(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    done = subprocess.run(["git", "-C", str(base.repo), "fsck", "--full", "--strict"], env=GIT_ENV, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_setup_cfg_of_upstream_s_own_is_kept(index: IndexServer, options: SourceOptions) -> None:
    members = sdist_members()
    members["demo-1.0/setup.cfg"] = b"[metadata]\nname = demo\n\n" + SETUP_CFG
    archive = tar_gz(members)
    index.offer("demo-1.0.tar.gz", archive)
    base = get(options, sdist=Sdist(version="1.0", sha256=sha256(archive)))
    assert "100644 setup.cfg" in listing(base)


def test_other_declared_files_make_another_tree_without_a_download(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    first = get(options)
    asked = len(index.asked)
    second = get(options, generated=())
    assert len(index.asked) == asked
    assert "100644 demo/_version.py" in listing(second)
    assert second.commit != first.commit
    assert (second.fetched_bytes, second.origin) == (0, first.origin)
    assert get(options) == replace(first, fetched_bytes=0)


def test_a_second_run_asks_nobody(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    first = get(options)
    asked = len(index.asked)
    assert get(replace(options, offline=True)) == replace(first, fetched_bytes=0)
    assert len(index.asked) == asked


def test_the_archive_alone_is_enough_offline(index: IndexServer, options: SourceOptions) -> None:
    """What a run leaves that was killed between placing the archive and placing the repository."""
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    subprocess.run(["rm", "-rf", str(base.repo)], check=True)
    index.answers.clear()
    assert get(replace(options, offline=True)).commit == base.commit


def test_auto_goes_on_to_the_index_when_git_has_nothing(
    index: IndexServer, options: SourceOptions, tmp_path: Path
) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    upstream = demo_upstream((f"file://{tmp_path}/nowhere",), "demo")
    base = obtain(upstream, demo_stack(sdist=PINNED), options, Progress())
    assert base.form == "sdist"


def test_an_upstream_without_a_pinned_archive_says_so(options: SourceOptions) -> None:
    with pytest.raises(SourceUnavailable, match="no source distribution is pinned"):
        obtain(demo_upstream(), demo_stack(), replace(options, source="sdist"), Progress())


def test_a_version_that_is_a_path_never_reaches_the_disk(options: SourceOptions, tmp_path: Path) -> None:
    with pytest.raises(BadManifest):
        get(options, sdist=Sdist(version="../../evil", sha256="0" * 64))
    assert not list(tmp_path.rglob("*evil*"))


def test_a_changed_archive_in_the_cache_is_found(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    archive = kept_archive(base.repo)
    assert archive is not None
    archive.write_bytes(ARCHIVE[:-1] + b"\1")
    with pytest.raises(SourceMismatch, match="sha256") as caught:
        check_base(base)
    assert str(archive) in str(caught.value) and "--refresh" in (caught.value.hint or "")


def test_refresh_leaves_a_base_that_is_intact(index: IndexServer, options: SourceOptions) -> None:
    """Another run reads it; only the archive is another file, put there in one step."""
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    before = {file: file.stat().st_ino for file in base.repo.rglob("*")}
    assert get(replace(options, refresh=True)).fetched_bytes > 0
    assert {file: file.stat().st_ino for file in base.repo.rglob("*")} == before
    (base.repo / "config").write_text("[core]\n\tfsmonitor = touch pwned\n")
    get(replace(options, refresh=True))
    assert check_base(base) == 3


def test_a_zip_archive_gives_the_same_tree(index: IndexServer, options: SourceOptions, tmp_path: Path) -> None:
    import io
    import zipfile

    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as out:
        for name, data in sdist_members().items():
            info = zipfile.ZipInfo(name if data is not None else name + "/")
            info.external_attr = (0o100755 if name.endswith("run.sh") else 0o100644) << 16 if data is not None else 0x10
            out.writestr(info, data or b"")
    archive = raw.getvalue()
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    tree = get(options).tree
    index.offer("demo-1.0.zip", archive)
    zipped = get(replace(options, cache=tmp_path / "z"), sdist=Sdist(version="1.0", sha256=sha256(archive)))
    assert zipped.tree == tree
    assert kept_archive(zipped.repo) == zipped.repo.with_name(f"1.0-{sha256(archive)[:16]}.zip")
    assert check_base(zipped) == 3


def test_the_cache_lists_what_it_has(index: IndexServer, options: SourceOptions) -> None:
    index.offer("demo-1.0.tar.gz", ARCHIVE)
    base = get(options)
    [(repo, record)] = entries(options.cache)
    assert (repo, record.upstream, record.form, record.commit) == (base.repo, "demo", "sdist", base.commit)
    assert (record.archive, record.sha256, record.declared) == (
        f"1.0-{PINNED.sha256[:16]}.tar.gz",
        PINNED.sha256,
        GENERATED,
    )
