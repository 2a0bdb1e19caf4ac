"""`patchctl revert`: every byte back, with nothing but the workspace, and nothing of a person's lost."""

from __future__ import annotations

import shutil
from pathlib import Path

from chinese import IN_CHINESE, english_in
from distribution import Made, git
from on_disk import Snapshot, Workspace, snapshot, stamps


def base_of(made: Made, folder: Path) -> Snapshot:
    """The trees as the origins have them, checked out by git."""
    for name in ("greeter", "clock"):
        git(folder.parent, "clone", "--quiet", "--no-hardlinks", str(made.origins / name), str(folder / name))
    return {p: s for p, s in snapshot(folder).items() if ".git" not in p.split("/")}


def test_every_byte_and_mode_is_the_base_again(ws: Workspace, tmp_path: Path) -> None:
    ws.apply()
    ws.good("revert")
    assert ws.trees() == base_of(ws.made, tmp_path / "base")
    ws.assert_healthy()
    assert ws.state["profile"] is None
    assert git(ws.folder / "greeter", "log", "--format=%s") == "the pin\n"


def test_twice_changes_nothing(ws: Workspace) -> None:
    ws.apply()
    ws.good("revert")
    before = stamps(ws.folder)
    assert "every tree is at its base already" in ws.good("revert")
    after = stamps(ws.folder)
    before.pop(".patchctl/lock"), after.pop(".patchctl/lock")
    assert after == before


def test_needs_no_cache_no_distribution_and_no_network(own_ws: Workspace, tmp_path: Path) -> None:
    own_ws.apply()
    shutil.rmtree(own_ws.made.cache)
    shutil.rmtree(own_ws.made.root)
    nowhere = Made(tmp_path / "no-distribution", tmp_path / "no-origins", tmp_path / "no-cache")
    moved = Workspace(nowhere, own_ws.folder)
    env = {"PATCHCTL_ROOT": "", "http_proxy": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    done = moved.run("revert", env=env)
    assert done.returncode == 0, done.stderr
    own_ws.assert_healthy()
    assert not (tmp_path / "no-cache").exists()


def test_apply_after_revert(ws: Workspace) -> None:
    ws.apply()
    applied = ws.trees()
    ws.good("revert")
    ws.apply()
    assert ws.trees() == applied
    ws.assert_healthy()


def test_files_of_a_person_that_are_in_nobodys_way_stay(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "greeter/notes.txt").write_text("mine\n")
    (ws.folder / "greeter/greeter/__pycache__").mkdir()
    (ws.folder / "greeter/greeter/__pycache__/hello.pyc").write_bytes(b"\0")
    ws.good("revert")
    assert (ws.folder / "greeter/notes.txt").read_text() == "mine\n"
    assert (ws.folder / "greeter/greeter/__pycache__/hello.pyc").exists()


def test_an_edited_tree_stops_it_and_all_trees_stay(ws: Workspace) -> None:
    ws.apply()
    file = ws.folder / "greeter/greeter/manners.py"  # the patch made it: the base has no such file
    file.write_text("edited = True\n")
    message = ws.refused(5, "revert")
    assert str(file) in message and "greeter was edited since it was applied" in message


def test_a_file_that_a_person_deleted_is_an_edit(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "greeter/greeter/manners.py").unlink()
    assert "manners.py" in ws.refused(5, "revert")
    ws.good("revert", "--stash")
    ws.assert_healthy()


def test_stash_says_where_the_edits_are(ws: Workspace) -> None:
    ws.apply()
    file = ws.folder / "clock/clock/tick.py"
    file.write_text("edited = True\n")
    result = ws.json("revert", "--stash")
    assert (result["schema"], result["stashed"]) == ("patchctl.revert/1", {"clock": "patchctl-stash-1"})
    assert git(ws.folder / "clock", "show", "patchctl-stash-1:clock/tick.py") == "edited = True\n"
    assert "edited" not in file.read_text()


def test_in_chinese(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / "clock/clock/tick.py").write_text("edited = True\n")
    said = ws.run("revert", "--stash", env=IN_CHINESE).stdout
    assert "已恢复到基线" in said and "本地修改已保存到分支 patchctl-stash-1" in said and english_in(said) == [], said
    assert ws.run("revert", env=IN_CHINESE).stdout == "所有源码树都已在基线上\n"


def test_nothing_to_revert(ws: Workspace, tmp_path: Path) -> None:
    assert "is no workspace" in ws.refused(2, "revert")
    assert not ws.folder.exists()
    (ws.folder / ".patchctl").mkdir(parents=True)
    assert "nothing was applied" in ws.refused(2, "revert")


def test_a_workspace_whose_git_was_taken_away(ws: Workspace) -> None:
    ws.apply()
    shutil.rmtree(ws.folder / "greeter/.git")
    for verb in (("revert",), ("apply", "--profile", "plain")):
        assert "the repository of greeter is gone" in ws.refused(5, *verb)
