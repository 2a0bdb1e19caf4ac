"""Switching profiles, there and back, with and without edits in the way."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from distribution import Made, Patch, Upstream, git, make_distribution
from on_disk import Workspace


def test_there_and_back_gives_the_same_bytes(ws: Workspace) -> None:
    ws.apply("full")
    full = ws.trees()
    ws.apply("plain")
    plain = ws.trees()
    assert plain != full
    ws.assert_healthy()
    ws.apply("full")
    assert ws.trees() == full
    ws.apply("plain")
    assert ws.trees() == plain
    ws.assert_healthy()


def test_only_what_differs_is_written(ws: Workspace) -> None:
    ws.apply("full")
    before = {p: p.stat().st_ino for p in ws.folder.rglob("*.py")}
    ws.apply("plain")
    written = {p.name for p, inode in before.items() if p.exists() and p.stat().st_ino != inode}
    gone = {p.name for p in before if not p.exists()}
    assert (written, gone) == ({"hello.py"}, {"manners.py"})


SHAPES = (
    Patch("polite", {"box": None, "bag/one.txt": None, "bag/two.txt": None}, "shape: take away a file and a folder"),
    Patch("loud", {"box/one.txt": "1\n", "box/two.txt": "2\n", "bag": "a bag\n"}, "shape: bring each as the other"),
)


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Made:
    files = {"box": "a box\n", "bag/one.txt": "1\n", "bag/two.txt": "2\n", "keep.txt": "k\n"}
    return make_distribution(tmp_path_factory.mktemp("shapes"), (Upstream("shape", "v1", files, SHAPES),), lock=True)


def test_files_become_folders_and_folders_files(shapes: Made, tmp_path: Path) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    plain = ws.trees()
    ws.apply("full")
    assert (ws.folder / "shape/box/two.txt").read_text() == "2\n" and (ws.folder / "shape/bag").read_text() == "a bag\n"
    ws.assert_healthy()
    ws.apply("plain")
    assert ws.trees() == plain
    ws.assert_healthy()


def test_a_file_of_a_person_in_a_folder_that_becomes_a_file(shapes: Made, tmp_path: Path) -> None:
    ws = Workspace(shapes, tmp_path / "ws")
    ws.apply("plain")
    mine = ws.folder / "shape/bag/mine.txt"
    mine.write_text("mine\n")
    assert str(mine) in ws.refused(5, "apply", "--profile", "full")
    ws.apply("full", "--stash")
    assert git(ws.folder / "shape", "show", "patchctl-stash-1:bag/mine.txt") == "mine\n"
    ws.assert_healthy()


def test_a_file_of_a_person_where_a_folder_has_to_be(ws: Workspace) -> None:
    ws.apply("full")
    shutil.rmtree(ws.folder / "greeter/greeter")
    (ws.folder / "greeter/greeter").write_text("a file\n")
    assert "hello.py" in ws.refused(5, "apply", "--profile", "plain")
    ws.apply("plain", "--stash")
    assert git(ws.folder / "greeter", "show", "patchctl-stash-1:greeter") == "a file\n"
    ws.assert_healthy()


def test_an_edit_of_a_touched_file_stops_the_switch(ws: Workspace) -> None:
    ws.apply("full")
    file = ws.folder / "greeter/greeter/hello.py"
    file.write_text(file.read_text() + "# mine\n")
    message = ws.refused(5, "apply", "--profile", "plain")
    assert str(file) in message and "--stash" in message


def test_an_edit_of_another_file_stops_it_too(ws: Workspace) -> None:
    ws.apply("full")
    file = ws.folder / "clock/clock/__init__.py"
    file.write_text("# mine\n")
    message = ws.refused(5, "apply", "--profile", "full")
    assert str(file) in message
    error = ws.json("apply", "--profile", "plain", code=5)["error"]
    assert error["files"] == [str(file)] and error["kind"] == "local-edits"


def test_a_mode_that_was_changed_is_an_edit(ws: Workspace) -> None:
    ws.apply("full")
    (ws.folder / "greeter/run.sh").chmod(0o644)
    assert "run.sh" in ws.refused(5, "apply", "--profile", "plain")
    ws.good("apply", "--profile", "plain", "--stash")
    assert git(ws.folder / "greeter", "ls-tree", "patchctl-stash-1", "run.sh").startswith("100644")
    ws.assert_healthy()


def test_stash_keeps_edits_new_files_and_deletions(ws: Workspace) -> None:
    ws.apply("full")
    repo = ws.folder / "greeter"
    edited = (repo / "greeter/hello.py").read_text() + "# mine\n"
    (repo / "greeter/hello.py").write_text(edited)
    (repo / "greeter/new.py").write_text("NEW = 1\n")
    (repo / "README.md").unlink()
    result = ws.json("apply", "--profile", "plain", "--stash")
    assert result["stashed"] == {"greeter": "patchctl-stash-1"}
    assert git(repo, "show", "patchctl-stash-1:greeter/hello.py") == edited
    assert git(repo, "show", "patchctl-stash-1:greeter/new.py") == "NEW = 1\n"
    assert "README.md" not in git(repo, "ls-tree", "--name-only", "patchctl-stash-1")
    assert (repo / "README.md").exists() and not (repo / "greeter/new.py").exists()
    ws.assert_healthy()
    (repo / "README.md").write_text("again\n")
    assert "patchctl-stash-2" in ws.apply("full", "--stash")
    assert git(repo, "show", "patchctl-stash-2:README.md") == "again\n"


def test_commits_of_a_person_are_kept(ws: Workspace) -> None:
    ws.apply("full")
    repo = ws.folder / "greeter"
    (repo / "README.md").write_text("committed\n")
    git(repo, "commit", "--quiet", "-am", "my own commit")
    mine = git(repo, "rev-parse", "HEAD").strip()
    (repo / "greeter/__init__.py").write_text("# not committed\n")
    assert "README.md" in ws.refused(5, "apply", "--profile", "plain")
    ws.apply("plain", "--stash")
    assert git(repo, "rev-parse", "patchctl-stash-1~1").strip() == mine
    assert git(repo, "show", "patchctl-stash-1:greeter/__init__.py") == "# not committed\n"
    assert git(repo, "show", "patchctl-stash-1:README.md") == "committed\n"
    ws.assert_healthy()


def test_a_commit_that_changes_no_file_is_kept_too(ws: Workspace) -> None:
    ws.apply("full")
    repo = ws.folder / "greeter"
    git(repo, "commit", "--quiet", "--allow-empty", "-m", "a note to myself")
    mine = git(repo, "rev-parse", "HEAD").strip()
    assert "HEAD of greeter was moved" in ws.refused(5, "revert")
    ws.good("revert", "--stash")
    assert git(repo, "merge-base", "--is-ancestor", mine, "patchctl-stash-1") == ""


def test_a_branch_with_a_name_as_long_as_an_id(ws: Workspace) -> None:
    """HEAD then holds 40 characters and is no commit id."""
    ws.apply("full")
    git(ws.folder / "greeter", "checkout", "--quiet", "-b", "x" * 24)
    assert len((ws.folder / "greeter/.git/HEAD").read_text().strip()) == 40
    ws.apply("plain")
    ws.assert_healthy()


def test_an_ignored_file_in_the_way_is_named_and_kept(ws: Workspace) -> None:
    ws.apply("plain")
    repo = ws.folder / "greeter"
    (repo / ".git/info/exclude").write_text("manners.py\n")
    (repo / "greeter/manners.py").write_text("mine\n")
    assert "manners.py" in ws.refused(5, "apply", "--profile", "full")
    ws.apply("full", "--stash")
    assert git(repo, "show", "patchctl-stash-1:greeter/manners.py") == "mine\n"
    assert "please" in (repo / "greeter/manners.py").read_text()


def test_a_folder_that_was_replaced_by_a_link_is_not_written_through(ws: Workspace, tmp_path: Path) -> None:
    ws.apply("full")
    outside = tmp_path / "outside"
    (ws.folder / "greeter/greeter").rename(outside)
    (ws.folder / "greeter/greeter").symlink_to(outside)
    before = {p.name: p.read_bytes() for p in outside.iterdir()}
    assert "hello.py" in ws.refused(5, "apply", "--profile", "plain")
    ws.apply("plain", "--stash")
    assert {p.name: p.read_bytes() for p in outside.iterdir()} == before
    assert not (ws.folder / "greeter/greeter").is_symlink()
    ws.assert_healthy()


def test_a_repository_inside_a_tree_is_left_alone(ws: Workspace) -> None:
    ws.apply("full")
    inner = ws.folder / "greeter/inner"
    git(ws.folder, "init", "--quiet", str(inner))
    (inner / "f.txt").write_text("f\n")
    (ws.folder / "greeter/README.md").write_text("edited\n")
    ws.apply("plain", "--stash")
    assert (inner / "f.txt").read_text() == "f\n" and (inner / ".git/HEAD").exists()


def test_what_is_staged_is_a_commit_below_what_is_on_disk(ws: Workspace) -> None:
    ws.apply("full")
    repo = ws.folder / "greeter"
    (repo / "README.md").write_text("staged\n")
    git(repo, "add", "README.md")
    (repo / "README.md").write_text("on disk\n")
    assert "README.md" in ws.refused(5, "revert")
    assert ws.json("revert", "--stash")["stashed"] == {"greeter": "patchctl-stash-1"}
    assert git(repo, "show", "patchctl-stash-1:README.md") == "on disk\n"
    assert git(repo, "show", "patchctl-stash-1~1:README.md") == "staged\n"
    ws.assert_healthy()


def test_times_before_1970_are_no_fault_of_the_tool(ws: Workspace) -> None:
    ws.apply("plain")
    tree = ws.folder / "greeter"
    for file in (tree / ".git/index", *tree.glob("greeter/*.py")):
        os.utime(file, (-10, -10))
    ws.apply("full", "--stash")
    assert ws.json("status")["clean"]


def test_a_refused_stash_leaves_no_branch(ws: Workspace) -> None:
    """Edits of one tree can be kept, those of the other cannot."""
    ws.apply("full")
    (ws.folder / "greeter/README.md").write_text("mine\n")
    (ws.folder / "clock/clock/tick.py").unlink()
    os.mkfifo(ws.folder / "clock/clock/tick.py")
    for verb in (("apply", "--profile", "plain"), ("revert",)):
        message = ws.refused(5, *verb, "--stash")
        assert str(ws.folder / "clock/clock/tick.py") in message and "move them away" in message
    assert "patchctl-stash" not in git(ws.folder / "greeter", "branch", "--list")


def test_settings_of_the_tree_leave_one_branch_and_equal_bytes(ws: Workspace) -> None:
    ws.apply("full")
    repo = ws.folder / "greeter"
    for setting in (("core.autocrlf", "true"), ("core.symlinks", "false"), ("core.fileMode", "false")):
        git(repo, "config", *setting)
    mine = b"one\r\ntwo\n"
    (repo / "README.md").write_bytes(mine)
    (repo / "run.sh").chmod(0o644)
    assert "patchctl-stash-1" in ws.good("revert", "--stash")
    assert git(repo, "show", "patchctl-stash-1:README.md").encode() == mine
    assert git(repo, "ls-tree", "patchctl-stash-1", "run.sh").startswith("100644")
    assert "stash" not in ws.good("revert", "--stash") and "at its base already" in ws.good("revert", "--stash")
    assert ws.good("verify", "--workspace", str(ws.folder))


@pytest.mark.parametrize("verb", [("apply", "--profile", "full"), ("revert", "--stash")], ids=["apply", "revert"])
def test_an_operation_in_progress_is_refused_and_shown(ws: Workspace, verb: tuple[str, ...]) -> None:
    """Its --abort would bring the old profile back after a switch."""
    ws.apply("full")
    repo = ws.folder / "greeter"
    tip = git(repo, "rev-parse", "HEAD").strip()
    git(repo, "checkout", "--quiet", "-b", "mine", "HEAD~1")
    git(repo, "commit", "--quiet", "--allow-empty", "-m", "aside")
    git(repo, "checkout", "--quiet", tip)
    git(repo, "merge", "--quiet", "--strategy=ours", "--no-commit", "mine")
    message = ws.refused(5, *verb)
    assert "a merge is in progress" in message and "`git merge --abort`" in message
    status = ws.json("status", code=1)
    assert ["a merge is in progress" in (t["problem"] or "") for t in status["trees"]] == [False, True]
    found = ws.json("verify", code=1)["findings"]
    assert [f["rule"] for f in found] == ["head-moved"] and "--abort" in found[0]["message"]
    git(repo, "merge", "--abort")
    ws.apply("plain")
