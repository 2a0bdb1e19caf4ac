"""Form git, from real repositories: exactly the pinned commit, proven, and nothing of the user's or the mirror's with it."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from source_builders import GIT_ENV, Repo, demo_stack, demo_upstream, git, make_repo

from patchctl.errors import SourceMismatch, SourceUnavailable, WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK
from patchctl.source.cache import entries
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain, obtain_form
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress


def get(repo: Repo, options: SourceOptions, *, tree: str | None = None, address: str | None = None) -> Base:
    mirrored = replace(options, mirrors={"demo": [address or str(repo.path)]})
    stack = demo_stack(repo.commit, repo.tree if tree is None else tree)
    return obtain_form("git", demo_upstream(), stack, mirrored, Progress())


def bare(repo: Repo, where: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--bare", str(repo.path), str(where)], env=GIT_ENV, check=True)
    return where


def test_exactly_the_pinned_commit_comes_though_no_branch_names_it(repo: Repo, options: SourceOptions) -> None:
    base = get(repo, options)
    assert (base.form, base.commit, base.tree) == ("git", repo.commit, repo.tree)
    assert base.origin == str(repo.path)
    assert base.fetched_bytes > 0
    assert git(base.repo, "rev-list", "--all") == repo.commit  # shallow: its parent is not there
    assert len(list((base.repo / "objects" / "pack").glob("*.pack"))) == 1
    with ObjectReader(base.repo) as reader:
        files = reader.files(base.tree)
        assert {(path, oct(entry.mode)) for path, entry in files.items()} == {
            (b"README", "0o100644"),
            (b"pkg/__init__.py", "0o100644"),
            (b"pkg/run.sh", "0o100755"),
        }
    assert check_base(base) == 3


@pytest.mark.parametrize("how", ["bare", "file address", "bare file address", ".git folder", "linked work tree"])
def test_every_kind_of_local_repository_is_a_mirror(
    repo: Repo, options: SourceOptions, tmp_path: Path, how: str
) -> None:
    address = {
        "bare": lambda: str(bare(repo, tmp_path / "m.git")),
        "file address": lambda: repo.path.as_uri(),
        "bare file address": lambda: bare(repo, tmp_path / "m n.git").as_uri(),
        ".git folder": lambda: str(repo.path / ".git"),
        "linked work tree": lambda: linked(repo, tmp_path / "linked"),
    }[how]()
    assert get(repo, options, address=address).tree == repo.tree


def linked(repo: Repo, where: Path) -> str:
    git(repo.path, "worktree", "add", "--quiet", "--detach", str(where))
    return str(where)


def test_a_second_run_takes_the_cache_and_asks_nobody(repo: Repo, options: SourceOptions) -> None:
    first = get(repo, options)
    repo.path.rename(repo.path.with_name("gone"))
    second = get(repo, options)
    assert second == replace(first, fetched_bytes=0)
    offline = replace(options, offline=True)
    assert get(repo, offline).commit == repo.commit


def test_offline_asks_no_host_and_names_what_is_missing(options: SourceOptions) -> None:
    upstream, stack = demo_upstream(("https://patchctl.invalid/x.git",)), demo_stack("1" * 40)
    with pytest.raises(SourceUnavailable, match="offline") as caught:
        obtain(upstream, stack, replace(options, offline=True), Progress())
    assert caught.value.code == 3
    assert not (options.cache / "git").exists()


def test_a_local_mirror_needs_no_network(repo: Repo, options: SourceOptions) -> None:
    assert get(repo, replace(options, offline=True)).fetched_bytes > 0


def test_places_are_tried_in_order_and_each_is_named_with_its_reason(
    repo: Repo, options: SourceOptions, tmp_path: Path
) -> None:
    other = make_repo(tmp_path / "other")  # same files, and yet another commit is asked for
    bundle = tmp_path / "x.bundle"
    git(repo.path, "bundle", "create", str(bundle), "main")
    (tmp_path / "plain").mkdir()
    places = [str(tmp_path / "nowhere"), str(tmp_path / "plain"), str(bundle), str(other.path)]
    stack = demo_stack("1" * 40)
    upstream = demo_upstream(("https://me:secret@patchctl.invalid/x.git",))
    with pytest.raises(SourceUnavailable) as caught:
        obtain(upstream, stack, replace(options, mirrors={"demo": places}), Progress())
    shown = str(caught.value)
    assert [t.place for t in caught.value.tried] == [
        f"cache {options.cache}",
        *places,
        "https://patchctl.invalid/x.git",
        "package index",
    ]
    assert "no such folder" in shown and "not a git repository" in shown
    assert "not our ref" in shown or "couldn't find" in shown.lower()
    assert "secret" not in shown and "secret" not in str(caught.value.as_json())
    assert "--mirror demo=URL" in (caught.value.hint or "")


def test_a_mirror_that_has_it_is_used_though_an_earlier_one_has_not(
    repo: Repo, options: SourceOptions, tmp_path: Path
) -> None:
    mirrored = replace(options, mirrors={"demo": [str(tmp_path / "nowhere"), str(repo.path)]})
    base = obtain(demo_upstream(), demo_stack(repo.commit), mirrored, Progress())
    assert base.origin == str(repo.path)


def test_another_tree_than_the_pinned_one_is_a_mismatch(repo: Repo, options: SourceOptions) -> None:
    with pytest.raises(SourceMismatch, match=f"has tree {repo.tree}"):
        get(repo, options, tree="2" * 40)
    assert entries(options.cache) == []


def test_the_cached_tree_is_compared_with_the_pin_too(repo: Repo, options: SourceOptions) -> None:
    get(repo, options)
    with pytest.raises(SourceMismatch, match="is pinned"):
        get(repo, options, tree="2" * 40)


def test_the_id_of_a_tag_is_not_a_commit(repo: Repo, options: SourceOptions) -> None:
    git(repo.path, "tag", "-a", "-m", "x", "v1", repo.commit)
    tag = git(repo.path, "rev-parse", "v1")
    with pytest.raises(SourceUnavailable, match="is not a commit"):
        get(replace(repo, commit=tag), options)


def test_submodules_stay_entries(options: SourceOptions, repo: Repo) -> None:
    git(repo.path, "update-index", "--add", "--cacheinfo", f"160000,{'3' * 40},third_party/sub")
    (repo.path / ".gitmodules").write_text(
        '[submodule "sub"]\n\tpath = third_party/sub\n\turl = ext::sh -c "touch pwned"\n'
    )
    git(repo.path, "add", ".gitmodules")
    git(repo.path, "commit", "--quiet", "-m", "sub")
    changed = Repo(repo.path, git(repo.path, "rev-parse", "HEAD"), git(repo.path, "rev-parse", "HEAD^{tree}"), "")
    base = get(changed, options)
    with ObjectReader(base.repo) as reader:
        assert reader.files(base.tree)[b"third_party/sub"].mode == GITLINK
    assert not list(options.cache.rglob("pwned")) and not (base.repo / "modules").exists()
    check_base(base)


def test_no_hook_and_no_setting_of_the_run_s_surroundings_counts(
    repo: Repo, options: SourceOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks from a template, core.sshCommand of the repository around, and GIT_* variables: none may run or lead astray."""
    witness = tmp_path / "pwned"
    hooks = tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    for name in ("reference-transaction", "post-checkout", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\ntouch '{witness}'\n")
        (hooks / name).chmod(0o755)
    (Path.home() / ".gitconfig").write_text(
        f"[init]\n\ttemplateDir = {hooks.parent}\n[core]\n\thooksPath = {hooks}\n\tfsmonitor = touch {witness}\n"
    )
    around = make_repo(tmp_path / "around")
    git(around.path, "config", "core.sshCommand", f"touch {witness};")
    git(around.path, "config", "core.fsmonitor", f"touch {witness};")
    monkeypatch.chdir(around.path)
    monkeypatch.setenv("GIT_DIR", str(around.path / ".git"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", str(around.path / ".git/objects"))
    monkeypatch.setenv("GIT_SSH_COMMAND", f"touch {witness};")
    assert get(repo, options).tree == repo.tree
    with pytest.raises(SourceUnavailable):
        get(replace(repo, commit="4" * 40), options, address="ssh://git@127.0.0.1:1/x.git")
    assert not witness.exists()


def test_the_user_s_rewritten_addresses_and_ssh_command_are_used(
    repo: Repo, options: SourceOptions, tmp_path: Path
) -> None:
    script = tmp_path / "my-ssh"
    script.write_text('#!/bin/sh\nset -e\nwhile [ "$1" != "git@work" ]; do shift; done\nexec sh -c "$2"\n')
    script.chmod(0o755)
    (Path.home() / ".gitconfig").write_text(
        f'[core]\n\tsshCommand = "{script}"\n[url "ssh://git@work{tmp_path}/"]\n\tinsteadOf = https://patchctl.invalid/\n'
    )
    bare(repo, tmp_path / "m.git")
    base = get(repo, options, address="https://patchctl.invalid/m.git")
    assert (base.tree, base.origin) == (repo.tree, "https://patchctl.invalid/m.git")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
def test_a_mirror_that_belongs_to_somebody_else_is_read(repo: Repo, options: SourceOptions, tmp_path: Path) -> None:
    """git refuses such repositories (CVE-2022-24765) unless they are named; the one that was named is."""
    mirror = bare(repo, tmp_path / "m.git")
    for path in [mirror, *mirror.rglob("*"), repo.path, *repo.path.rglob("*")]:
        os.chown(path, 65534, 65534)
    assert get(repo, options, address=str(mirror)).tree == repo.tree
    assert get(repo, replace(options, cache=tmp_path / "c2"), address=str(repo.path)).tree == repo.tree


def test_a_partial_clone_that_lacks_files_is_said_to_lack_them(
    repo: Repo, options: SourceOptions, tmp_path: Path
) -> None:
    """git would have such a mirror fetch the rest from wherever it came from; it must not, and the reason is told."""
    git(repo.path, "config", "uploadpack.allowFilter", "true")
    git(repo.path, "config", "uploadpack.allowAnySHA1InWant", "true")
    partial = tmp_path / "partial.git"
    subprocess.run(
        ["git", "clone", "--quiet", "--bare", "--filter=blob:none", repo.path.as_uri(), str(partial)],
        env=GIT_ENV,
        check=True,
    )
    with pytest.raises(SourceUnavailable) as caught:
        get(repo, options, address=str(partial))
    assert "lazy" in str(caught.value) or "missing" in str(caught.value) or "promisor" in str(caught.value)
    assert entries(options.cache) == []


def test_a_mirror_with_a_missing_object_is_passed_over(repo: Repo, options: SourceOptions) -> None:
    blob = git(repo.path, "rev-parse", f"{repo.commit}:pkg/__init__.py")
    (repo.path / ".git/objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(SourceUnavailable):
        get(repo, options)
    assert entries(options.cache) == []


def test_five_upstreams_do_not_each_wait_for_a_dead_host(
    options: SourceOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("patchctl.source.places.CONNECT_SECONDS", 1.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(silent.getsockname())
        upstream = demo_upstream((f"https://127.0.0.1:{silent.getsockname()[1]}/x.git",))
        began = time.monotonic()
        for _ in range(5):
            with pytest.raises(SourceUnavailable, match="cannot be reached"):
                obtain(upstream, demo_stack(), options, Progress())
        assert time.monotonic() - began < 4  # one wait, not five
        for filler in fillers:
            filler.close()


def test_mirrors_are_checked_before_anything_is_asked(repo: Repo, options: SourceOptions) -> None:
    with pytest.raises(WrongUse) as caught:
        get(repo, options, address="--upload-pack=touch pwned")
    assert caught.value.code == 2


def test_refresh_replaces_what_the_cache_has(repo: Repo, options: SourceOptions) -> None:
    base = get(repo, options)
    (base.repo / "config").write_text("[core]\n\tfsmonitor = touch pwned\n")
    with pytest.raises(SourceMismatch):
        check_base(base)
    again = get(repo, replace(options, refresh=True))
    assert again.fetched_bytes > 0
    check_base(again)
    assert not list((options.cache / "tmp").iterdir())


def test_refresh_leaves_a_base_that_is_intact(repo: Repo, options: SourceOptions, tmp_path: Path) -> None:
    """Another run reads it: whatever it opens next must still be there, and the same."""
    base = get(repo, options)
    before = {file: file.stat().st_ino for file in base.repo.rglob("*")}
    elsewhere = shutil.copytree(repo.path, tmp_path / "elsewhere")
    again = get(repo, replace(options, refresh=True), address=str(elsewhere))
    assert again.fetched_bytes > 0 and again.origin == str(elsewhere)
    assert {file: file.stat().st_ino for file in base.repo.rglob("*")} == before
    assert not list((options.cache / "tmp").iterdir())


@pytest.mark.parametrize(
    "name", ["HEAD", "refs/heads/base", "patchctl.json", "objects/pack/*.idx", "objects/pack/*.pack"]
)
def test_refresh_mends_every_file(repo: Repo, options: SourceOptions, name: str) -> None:
    base = get(repo, options)
    [file] = base.repo.glob(name)
    whole = file.read_bytes()
    file.chmod(0o644)
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    get(repo, replace(options, refresh=True))
    assert file.read_bytes() == whole
    file.unlink()
    get(repo, replace(options, refresh=True))
    assert file.read_bytes() == whole


def test_progress_tells_bytes(options: SourceOptions, tmp_path: Path) -> None:
    class Recorder(Progress):
        bytes = 0
        notes: list[str] = []  # noqa: RUF012

        def advance(self, n: int) -> None:
            self.bytes += n

        def note(self, text: str) -> None:
            self.notes.append(text)

    big = make_repo(tmp_path / "big", {f"f{i}": os.urandom(40_000) for i in range(60)})
    recorder = Recorder()
    mirrored = replace(options, mirrors={"demo": [str(big.path)]})
    base = obtain_form("git", demo_upstream(), demo_stack(big.commit), mirrored, recorder)
    assert 0.9 < recorder.bytes / base.fetched_bytes < 1.1
    assert recorder.notes and all(re.fullmatch(r"[a-z]+ [a-z]+ [0-9]+ %", note) for note in recorder.notes)
