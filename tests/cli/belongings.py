"""Every kind of thing that a user may have in a tree: one function each, which puts it there as the user would.

`MARKER` in a planted command stands for a file that exists once the command ran.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from distribution import GIT_ENV, git

Plant = Callable[[Path], None]
KINDS: dict[str, Plant] = {}
PATCHED, UNPATCHED, NEW = "zoo/core.py", "zoo/plain.py", "zoo/new.py"
MINE = b"MINE = True\n"


def kind(plant: Plant) -> Plant:
    """Register it, under its name."""
    KINDS[plant.__name__.replace("_", " ")] = plant
    return plant


def write(file: Path, data: bytes = MINE) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data)


def marker(tree: Path) -> Path:
    """Where a planted command leaves its mark."""
    return tree.parent / "a command ran"


def loosely(tree: Path, *args: str, editor: str = "true") -> None:
    """git, which may end with an error: a conflict is what the test wants."""
    env = {**GIT_ENV, "GIT_EDITOR": "true", "GIT_SEQUENCE_EDITOR": editor}
    subprocess.run(["git", "-C", str(tree), *args], env=env, capture_output=True, check=False)


def commit(tree: Path, path: str, data: bytes) -> str:
    write(tree / path, data)
    git(tree, "add", "--force", path)
    git(tree, "commit", "--quiet", "-m", f"my own: {path}")
    return git(tree, "rev-parse", "HEAD").strip()


def aside(tree: Path) -> str:
    """Two commits of the user's on a branch `theirs`, of which the second alone conflicts; HEAD is where it was."""
    before = git(tree, "rev-parse", "--abbrev-ref", "HEAD").strip()
    place = before if before != "HEAD" else git(tree, "rev-parse", "HEAD").strip()
    git(tree, "checkout", "--quiet", "-b", "theirs")
    commit(tree, "README.md", b"first\n")
    second = commit(tree, "README.md", b"second\n")
    git(tree, "checkout", "--quiet", place)
    return second


# Files of the work tree


@kind
def an_edit_of_a_patched_file(tree: Path) -> None:
    write(tree / PATCHED, (tree / PATCHED).read_bytes() + MINE)


@kind
def an_edit_of_an_unpatched_file(tree: Path) -> None:
    write(tree / UNPATCHED)


@kind
def a_deletion(tree: Path) -> None:
    (tree / "README.md").unlink()


@kind
def an_untracked_file(tree: Path) -> None:
    write(tree / "mine.txt")


@kind
def an_untracked_file_in_the_way(tree: Path) -> None:
    """Of zoo/new.py, which full has and plain has not; and of zoo/gone.py, which it is the other way with."""
    for name in ("zoo/new.py", "zoo/gone.py"):
        if not (tree / name).exists():
            write(tree / name)


@kind
def an_untracked_folder(tree: Path) -> None:
    write(tree / "mine/deep/one.txt")
    write(tree / "mine/two.sh")
    (tree / "mine/two.sh").chmod(0o755)


@kind
def an_ignored_file(tree: Path) -> None:
    write(tree / "run.log")
    write(tree / "ignored/data.bin")


@kind
def an_ignored_file_in_the_way(tree: Path) -> None:
    write(tree / "zoo/later.py")


@kind
def a_mode(tree: Path) -> None:
    (tree / "tools/run.sh").chmod(0o644)


@kind
def modes_that_git_does_not_know(tree: Path) -> None:
    (tree / PATCHED).chmod(0o600)
    (tree / UNPATCHED).chmod(0o640)


@kind
def a_link_in_place_of_a_file(tree: Path) -> None:
    (tree / UNPATCHED).unlink()
    (tree / UNPATCHED).symlink_to("core.py")


@kind
def a_link_to_a_folder_in_place_of_a_folder(tree: Path) -> None:
    outside = tree.parent / "outside"
    (tree / "zoo/deep").rename(outside)
    (tree / "zoo/deep").symlink_to(outside)
    write(outside / "mine.txt")


@kind
def a_file_in_place_of_a_folder(tree: Path) -> None:
    shutil.rmtree(tree / "zoo/deep")
    write(tree / "zoo/deep")


@kind
def a_folder_in_place_of_a_file(tree: Path) -> None:
    (tree / UNPATCHED).unlink()
    write(tree / UNPATCHED / "mine.txt")


@kind
def a_folder_in_place_of_a_patched_file(tree: Path) -> None:
    (tree / PATCHED).unlink()
    write(tree / PATCHED / "mine.txt")


@kind
def a_fifo_in_place_of_a_file(tree: Path) -> None:
    (tree / UNPATCHED).unlink()
    os.mkfifo(tree / UNPATCHED)


@kind
def a_fifo_and_a_socket(tree: Path) -> None:
    os.mkfifo(tree / "zoo/pipe")
    os.mknod(tree / "zoo/socket", 0o140644)


@kind
def a_socket_in_place_of_a_patched_file(tree: Path) -> None:
    (tree / PATCHED).unlink()
    os.mknod(tree / PATCHED, 0o140644)


@kind
def a_hard_link(tree: Path) -> None:
    os.link(tree / PATCHED, tree.parent / "outside")
    os.link(tree / UNPATCHED, tree / "ignored.log")


@kind
def a_repository_inside(tree: Path) -> None:
    inner = tree / "inner"
    git(tree.parent, "init", "--quiet", "--initial-branch=main", str(inner))
    commit(inner, "mine.txt", MINE)
    write(inner / "open.txt")


@kind
def a_repository_in_place_of_a_file(tree: Path) -> None:
    (tree / PATCHED).unlink()
    git(tree.parent, "init", "--quiet", str(tree / PATCHED))
    write(tree / PATCHED / "mine.txt")


@kind
def a_submodule(tree: Path) -> None:
    other = tree.parent / "other"
    git(tree.parent, "init", "--quiet", str(other))
    commit(other, "mine.txt", MINE)
    git(tree, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(other), "sub")


# The index


@kind
def staged_as_on_disk(tree: Path) -> None:
    write(tree / UNPATCHED)
    git(tree, "add", UNPATCHED)


@kind
def staged_and_edited_again(tree: Path) -> None:
    for path in (PATCHED, UNPATCHED):
        write(tree / path, b"STAGED = 1\n")
        git(tree, "add", path)
        write(tree / path)


@kind
def staged_and_restored_on_disk(tree: Path) -> None:
    for path in (PATCHED, UNPATCHED):
        before = (tree / path).read_bytes()
        write(tree / path, b"STAGED = 1\n")
        git(tree, "add", path)
        write(tree / path, before)


@kind
def a_staged_new_file(tree: Path) -> None:
    write(tree / "mine.txt")
    git(tree, "add", "mine.txt")


@kind
def a_staged_new_file_that_is_gone(tree: Path) -> None:
    write(tree / "mine.txt")
    git(tree, "add", "mine.txt")
    (tree / "mine.txt").unlink()


@kind
def a_staged_deletion(tree: Path) -> None:
    git(tree, "rm", "--quiet", UNPATCHED)


@kind
def a_staged_deletion_of_what_is_there(tree: Path) -> None:
    git(tree, "rm", "--quiet", "--cached", UNPATCHED, PATCHED)


@kind
def a_staged_mode(tree: Path) -> None:
    git(tree, "update-index", "--chmod=+x", UNPATCHED)


@kind
def an_intention_to_add(tree: Path) -> None:
    write(tree / "mine.txt")
    git(tree, "add", "--intent-to-add", "mine.txt")


@kind
def a_conflict_in_the_index(tree: Path) -> None:
    """As `git stash pop` leaves it: no operation is under way."""
    write(tree / UNPATCHED, b"PLAIN = 7\n")
    git(tree, "stash", "--quiet")
    before = git(tree, "rev-parse", "HEAD").strip()
    commit(tree, UNPATCHED, b"PLAIN = 8\n")
    loosely(tree, "stash", "pop")
    git(tree, "update-ref", "HEAD", before)


def _flagged(tree: Path, flag: str) -> None:
    for path in (PATCHED, UNPATCHED):
        git(tree, "update-index", flag, path)
        write(tree / path)


@kind
def edits_under_skip_worktree(tree: Path) -> None:
    _flagged(tree, "--skip-worktree")


@kind
def edits_under_assume_unchanged(tree: Path) -> None:
    _flagged(tree, "--assume-unchanged")


@kind
def flags_without_an_edit(tree: Path) -> None:
    git(tree, "update-index", "--skip-worktree", PATCHED, UNPATCHED)
    git(tree, "update-index", "--assume-unchanged", UNPATCHED, "README.md")


@kind
def a_sparse_checkout(tree: Path) -> None:
    git(tree, "status")  # git takes away what it knows to be unchanged
    git(tree, "sparse-checkout", "set", "--no-cone", "/zoo/", "!/zoo/deep/")


# References


@kind
def stash_entries(tree: Path) -> None:
    for text in (b"one\n", b"two\n"):
        write(tree / UNPATCHED, text)
        git(tree, "stash", "--quiet")


@kind
def commits_on_top(tree: Path) -> None:
    commit(tree, UNPATCHED, MINE)
    commit(tree, "mine.txt", MINE)


@kind
def a_commit_that_changes_no_file(tree: Path) -> None:
    git(tree, "commit", "--quiet", "--allow-empty", "-m", "a note")


@kind
def branches(tree: Path) -> None:
    git(tree, "branch", "mine")
    aside(tree)


@kind
def a_branch_checked_out(tree: Path) -> None:
    git(tree, "checkout", "--quiet", "-b", "mine")


@kind
def branches_with_our_names(tree: Path) -> None:
    write(tree / UNPATCHED)
    git(tree, "branch", "patchctl-stash-1/x")
    git(tree, "tag", "patchctl-stash-2")


@kind
def references_and_notes(tree: Path) -> None:
    second = aside(tree)
    git(tree, "update-ref", "refs/mine/kept", second)
    git(tree, "notes", "add", "-m", "a note", "HEAD")
    git(tree, "tag", "mine", second)


# Under way


@kind
def a_rebase(tree: Path) -> None:
    commit(tree, "README.md", MINE)
    loosely(tree, "rebase", "--autostash", "-i", "HEAD~1", editor="sed -i 1ibreak")


@kind
def a_merge(tree: Path) -> None:
    aside(tree)
    loosely(tree, "merge", "--strategy=ours", "--no-commit", "theirs")


@kind
def a_cherry_pick(tree: Path) -> None:
    loosely(tree, "cherry-pick", aside(tree))
    git(tree, "checkout", "--quiet", "HEAD", "--", "README.md")


@kind
def a_revert(tree: Path) -> None:
    loosely(tree, "revert", "--no-edit", aside(tree))
    git(tree, "checkout", "--quiet", "HEAD", "--", "README.md")


@kind
def an_am(tree: Path) -> None:
    second = aside(tree)
    mail = tree.parent / "mail"
    mail.write_text(git(tree, "format-patch", "--stdout", "-1", second))
    loosely(tree, "am", str(mail))


@kind
def a_bisect(tree: Path) -> None:
    second = aside(tree)
    git(tree, "bisect", "start", second, f"{second}~2")


# The repository's own settings


def _configured(*settings: tuple[str, str]) -> Plant:
    def plant(tree: Path) -> None:
        command = f"touch '{marker(tree)}'; cat; true"
        write(tree / UNPATCHED)  # what makes git look at files at all
        for key, value in settings:
            git(tree, "config", key, value.replace("MARKER", command))

    return plant


@kind
def hooks(tree: Path) -> None:
    write(tree / UNPATCHED)
    names = (
        "post-checkout",
        "post-index-change",
        "pre-commit",
        "reference-transaction",
        "post-commit",
        "fsmonitor-watchman",
    )
    for name in names:
        write(tree / ".git/hooks" / name, f"#!/bin/sh\ntouch '{marker(tree)}'\n".encode())
        (tree / ".git/hooks" / name).chmod(0o755)


@kind
def a_path_of_hooks(tree: Path) -> None:
    hooks(tree)
    (tree / ".git/hooks").rename(tree.parent / "hooks")
    git(tree, "config", "core.hooksPath", str(tree.parent / "hooks"))


@kind
def filters(tree: Path) -> None:
    _configured(("filter.mine.clean", "MARKER"), ("filter.mine.smudge", "MARKER"), ("filter.mine.required", "true"))(
        tree
    )
    write(tree / ".git/info/attributes", b"* filter=mine text eol=crlf\n")


@kind
def an_include(tree: Path) -> None:
    write(tree / UNPATCHED)
    included = tree.parent / "included"
    included.write_text(f"[core]\n\tfsmonitor = \"touch '{marker(tree)}'; true\"\n\tautocrlf = true\n")
    git(tree, "config", "includeIf.gitdir:/.path", str(included))
    git(tree, "config", "include.path", str(included))


@kind
def another_work_tree_in_the_configuration(tree: Path) -> None:
    elsewhere = tree.parent / "elsewhere"
    write(elsewhere / UNPATCHED, b"ELSEWHERE = 1\n")
    write(tree / UNPATCHED)
    git(tree, "config", "core.worktree", str(elsewhere))


@kind
def settings_that_change_files(tree: Path) -> None:
    _configured(
        ("core.autocrlf", "true"),
        ("core.symlinks", "false"),
        ("core.fileMode", "false"),
        ("core.ignoreCase", "true"),
        ("core.ignoreStat", "true"),
        ("core.sparseCheckout", "true"),
        ("submodule.recurse", "true"),
    )(tree)
    (tree / "tools/run.sh").chmod(0o644)


@kind
def a_broken_configuration(tree: Path) -> None:
    with (tree / ".git/config").open("a") as config:
        config.write("[this is no\n")


KINDS["a file system monitor"] = _configured(("core.fsmonitor", "MARKER"))
KINDS["drivers and programs"] = _configured(
    ("diff.external", "MARKER"),
    ("diff.mine.textconv", "MARKER"),
    ("merge.mine.driver", "MARKER"),
    ("core.pager", "MARKER"),
    ("core.editor", "MARKER"),
    ("gpg.program", "MARKER"),
    ("commit.gpgSign", "true"),
    ("credential.helper", "!MARKER"),
    ("alias.diff-index", "!MARKER"),
    ("core.sshCommand", "MARKER"),
    ("core.alternateRefsCommand", "MARKER"),
    ("diff.mine.command", "MARKER"),
    ("interactive.diffFilter", "MARKER"),
    ("core.askPass", "MARKER"),
)
KINDS["a promisor remote"] = _configured(
    ("remote.origin.url", "file:///nonexistent"),
    ("remote.origin.uploadpack", "MARKER"),
    ("remote.origin.promisor", "true"),
    ("core.repositoryFormatVersion", "1"),
    ("extensions.partialClone", "origin"),
    ("extensions.worktreeConfig", "true"),
)


@kind
def a_live_lock_of_the_index(tree: Path) -> None:
    write(tree / ".git/index.lock", b"")
