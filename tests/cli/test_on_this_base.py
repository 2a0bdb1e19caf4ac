"""`apply --in-place --on-this-base`: a tree that is not the pin's is patched if every file that a patch changes is the pin's."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from distribution import GREETER, Made, git
from on_disk import Workspace, snapshot

MORE = {"README.md": "greeter, on its branch\n", "greeter/__init__.py": "BRANCH = True\n"}


@pytest.fixture
def branch(small: Made, tmp_path: Path) -> Path:
    """A clone of greeter at the head of a branch: two files differ from the pin, none of them a patch's, and one is new."""
    folder = tmp_path / "greeter on a branch"
    git(tmp_path, "clone", "--quiet", str(small.origins / "greeter"), str(folder))
    for name, text in {**MORE, "greeter/new.py": "NEW = 1\n"}.items():
        (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=a", "-c", "user.email=a@localhost", "commit", "-qm", "the branch's head")
    return folder


def into(folder: Path) -> tuple[str, ...]:
    return "--in-place", f"greeter={folder}"


def findings(ws: Workspace, rule: str) -> list[dict[str, str]]:
    return [f for f in ws.json("verify")["findings"] if f["rule"] == rule]


def test_a_tree_that_is_no_pin_is_refused_and_the_option_is_named(ws: Workspace, branch: Path) -> None:
    before = snapshot(branch)
    said = ws.refused(5, "apply", "--profile", "full", *into(branch))
    assert "2 files differ" in said and "--on-this-base" in said
    assert snapshot(branch) == before


def test_it_is_patched_said_everywhere_and_given_back(ws: Workspace, branch: Path) -> None:
    before = {p: s for p, s in snapshot(branch).items() if not p.startswith(".git/")}
    said = ws.apply("full", *into(branch), "--on-this-base")
    assert "on another base: 2 files not the pin's" in said
    assert "LOUD" in (branch / "greeter/hello.py").read_text()
    for name, text in MORE.items():
        assert (branch / name).read_text() == text
    (tree,) = [t for t in ws.json("status")["trees"] if t["upstream"] == "greeter"]
    assert tree["differing"] == sorted(MORE) and tree["lock"] == "silent"
    assert "2 files not the pin's" in ws.good("status")
    (own,) = (file.parent for file in (ws.folder / ".patchctl").rglob("HEAD") if "greeter" in str(file))
    log = git(own, "log", "--format=%s", "refs/patchctl/tip").splitlines()
    assert log == [p.subject for p in reversed(GREETER.patches)] + [
        "2 files as they were found, on the pin's",
        "the pin",
    ]
    assert f"patchctl.base.greeter={tree['base_commit']}" in ws.good("status", "--labels").splitlines()
    (note,) = findings(ws, "other-base")
    assert note["severity"] == "note" and all(name in note["message"] for name in MORE)
    assert "unchanged" in ws.apply("full", *into(branch)), "it is remembered, with or without the option"
    assert "unchanged" in ws.apply("full")
    ws.apply("plain")
    assert "LOUD" not in (branch / "greeter/hello.py").read_text()
    ws.apply("full")
    ws.good("revert")
    assert {p: s for p, s in snapshot(branch).items() if not p.startswith(".git/")} == before


def test_the_base_is_the_same_commit_on_every_machine(ws: Workspace, small: Made, branch: Path, tmp_path: Path) -> None:
    ws.apply("full", *into(branch), "--on-this-base")
    first = ws.state["trees"]["greeter"]["base_commit"]
    plain = tmp_path / "elsewhere/plain"
    plain.mkdir(parents=True)
    git(branch, "archive", "--output", str(tmp_path / "head.tar"), "HEAD")
    with tarfile.open(tmp_path / "head.tar") as archive:
        archive.extractall(plain, filter="data")
    other = Workspace(small, tmp_path / "another workspace")
    other.apply("full", *into(plain), "--on-this-base")
    assert other.state["trees"]["greeter"]["base_commit"] == first


def test_a_changed_preimage_is_refused_with_a_verdict_for_each_patch(ws: Workspace, branch: Path) -> None:
    file = branch / "greeter/hello.py"
    file.write_text(file.read_text() + "# the branch's\n")
    before = snapshot(branch)
    said = ws.refused(4, "apply", "--profile", "full", *into(branch), "--on-this-base")
    assert "3 of 3 patches change files that are not the pin's" in said
    assert "typo: differs in greeter/hello.py" in said and "patchctl drift greeter/v1 --against REVISION" in said
    assert snapshot(branch) == before and not (ws.folder / "clock").exists()


def test_without_what_differs_the_rest_is_taken(ws: Workspace, branch: Path) -> None:
    """No fuzz: only when every patch of the file is left out is it left alone."""
    file = branch / "greeter/hello.py"
    text = file.read_text() + "# the branch's\n"
    file.write_text(text)
    without = [word for p in GREETER.patches for word in ("--without", f"{p.feature}@greeter")]
    ws.apply("full", *into(branch), "--on-this-base", *without, "--without", "step@clock")
    assert file.read_text() == text


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree["differing"].append("run.sh"),
        lambda tree: tree["differing"].pop(),
        lambda tree: tree.update(pin_base=tree["tip_commit"]),
        lambda tree: tree.update(pin_base="", differing=[]),
    ],
)
def test_a_state_that_was_edited_is_found(ws: Workspace, branch: Path, change: object) -> None:
    ws.apply("full", *into(branch), "--on-this-base")
    file = ws.folder / ".patchctl/state.json"
    state = json.loads(file.read_text())
    change(state["trees"]["greeter"])  # type: ignore[operator]
    file.write_text(json.dumps(state))
    done = ws.made.patchctl("verify", "--workspace", str(ws.folder), "--json")
    assert done.returncode == 1 and "wrong-base" in done.stdout, done.stdout


def test_an_edit_of_a_differing_file_is_seen_and_kept(ws: Workspace, branch: Path) -> None:
    ws.apply("full", *into(branch), "--on-this-base")
    (branch / "README.md").write_text("edited since\n")
    (tree,) = [t for t in ws.json("status", code=1)["trees"] if t["upstream"] == "greeter"]
    assert tree["edits"] == ["README.md"]


def test_at_the_pin_the_option_changes_nothing(ws: Workspace, small: Made, tmp_path: Path) -> None:
    folder = tmp_path / "at the pin"
    git(tmp_path, "clone", "--quiet", str(small.origins / "greeter"), str(folder))
    assert "another base" not in ws.apply("full", *into(folder), "--on-this-base")
    assert ws.state["trees"]["greeter"]["pin_base"] == ""
    assert "is for trees" in ws.refused(2, "apply", "--profile", "full", "--on-this-base")
