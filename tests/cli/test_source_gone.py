"""A source that is gone after an apply: what is applied is not taken back for it, with --skip-unavailable or without."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from distribution import CLOCK, GREETER, Patch, make_distribution
from on_disk import Workspace
from test_apply import without_sources

SKIP = ("apply", "--profile", "full", "--skip-unavailable")


def test_an_applied_tree_stays_as_it_is_and_is_named(own_ws: Workspace) -> None:
    own_ws.apply("full")
    trees, state = own_ws.trees(), own_ws.state
    without_sources(own_ws, "greeter")
    text = own_ws.good(*SKIP)
    assert own_ws.trees() == trees and own_ws.state == state
    assert "greeter      v1  git    kept as it was applied: its source cannot be had now" in text
    assert "origins/no-greeter" in text and "left out" not in text  # what requires a patch of it stays too
    result = own_ws.json(*SKIP)
    assert [k["upstream"] for k in result["kept"]] == ["greeter"] and not result["skipped"] and not result["changed"]
    own_ws.good("status")
    own_ws.good("verify")


def test_so_do_all_of_them(own_ws: Workspace) -> None:
    own_ws.apply("full")
    trees = own_ws.trees()
    without_sources(own_ws, "greeter", "clock")
    assert own_ws.good(*SKIP).count("kept as it was applied") == 2
    assert own_ws.trees() == trees
    own_ws.good("revert")
    own_ws.refused(3, *SKIP)  # nothing is applied any more: there is nothing to go on with


def test_what_had_no_patch_then_has_none_now(own_ws: Workspace) -> None:
    """clock's step requires typo@greeter: left out at the first apply, it stays out when clock's source is gone."""
    without_sources(own_ws, "greeter")
    own_ws.good(*SKIP)
    state = own_ws.state
    without_sources(own_ws, "clock")
    own_ws.good(*SKIP)
    assert own_ws.state["trees"] == state["trees"]
    assert [o["feature"] for o in own_ws.state["trees"]["clock"]["left_out"]] == ["step"]


def test_another_selection_of_a_source_that_is_gone_is_refused(own_ws: Workspace) -> None:
    own_ws.apply("full")
    without_sources(own_ws, "greeter")
    for args in (("--profile", "plain"), ("--profile", "full", "--without", "loud")):
        message = own_ws.refused(3, "apply", *args, "--skip-unavailable")
        assert "greeter: another tree is applied" in message and "patchctl revert" in message


def test_a_tree_that_was_deleted_is_not_kept(own_ws: Workspace) -> None:
    own_ws.apply("full")
    without_sources(own_ws, "greeter")
    shutil.rmtree(own_ws.folder / "greeter")
    result = own_ws.run(*SKIP)
    assert result.returncode == 5 and "the repository of greeter is gone" in result.stderr


def test_a_source_with_fewer_files_does_not_replace_the_one_that_is_gone(tmp_path: Path) -> None:
    """Applied from git; later only the source distribution can be had, which lacks a file that a patch changes."""
    files = {**GREETER.files, "recipe/main.py": "x = 1\n"}
    patches = (*GREETER.patches, Patch("recipe", {"recipe/main.py": "x = 2\n"}, "recipe: count to two"))
    greeter = replace(GREETER, files=files, patches=patches, sdist=tuple(GREETER.files))
    ws = Workspace(make_distribution(tmp_path, (greeter, CLOCK), lock=True), tmp_path / "ws")
    ws.apply("full", "--source", "git")
    trees = ws.trees()
    without_sources(ws, "greeter")
    result = ws.json(*SKIP)
    assert [k["upstream"] for k in result["kept"]] == ["greeter"] and ws.trees() == trees
