"""What a user has in a tree is kept, or the run is refused with 5 and a way out: every kind of thing times every verb."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from belongings import KINDS, UNPATCHED, marker
from custody import Ended, account, entries, lost, make_zoo, patchctl
from distribution import Made, git
from on_disk import copy_of, folder_for_all

from patchctl.git import locks
from patchctl.git import run as git_run

pytestmark = pytest.mark.heavy("a thousand pairs of what a person leaves and what a verb does")

FULL, PLAIN, NEXT = (("apply", "--profile", profile) for profile in ("full", "plain", "next"))
STASH = ("--stash",)
MANAGED = {
    "apply again": FULL,
    "switch": PLAIN,
    "another version": NEXT,
    "without": (*FULL, "--without", "polite"),
    "revert": ("revert",),
    "apply again --stash": FULL + STASH,
    "switch --stash": PLAIN + STASH,
    "another version --stash": NEXT + STASH,
    "revert --stash": ("revert", *STASH),
}
INTO = {
    "into": FULL,
    "into, again": FULL,
    "into, switch": PLAIN,
    "into, revert": ("revert",),
    "into, switch --stash": PLAIN + STASH,
    "into, revert --stash": ("revert", *STASH),
}
EDIT = {"edit": (), "edit again": ()}
# The exit codes, in the order of MANAGED (without and with --stash), INTO (likewise) and EDIT.
CODES = {
    "an edit of a patched file": "55555 0000 5555 00 55",
    "an edit of an unpatched file": "55555 0000 5555 00 55",
    "a deletion": "55555 0000 0000 00 55",
    "an untracked file": "00000 0000 0000 00 55",
    "an untracked file in the way": "55555 0000 5555 00 55",
    "an untracked folder": "00000 0000 0000 00 55",
    "an ignored file": "00000 0000 0000 00 55",
    "an ignored file in the way": "00500 0000 0000 00 55",
    "a mode": "55555 0000 0000 00 55",
    "modes that git does not know": "00000 0000 0000 00 50",
    "a link in place of a file": "55555 0000 5555 00 55",
    "a link to a folder in place of a folder": "55555 0000 0000 00 55",
    "a file in place of a folder": "55555 0000 0000 00 55",
    "a folder in place of a file": "55555 0000 5555 00 55",
    "a folder in place of a patched file": "55555 0000 5555 00 55",
    "a fifo in place of a file": "55555 5555 5555 55 55",
    "a fifo and a socket": "00000 0000 0000 00 55",
    "a socket in place of a patched file": "55555 5555 5555 55 55",
    "a hard link": "00000 0000 0000 00 55",
    "a repository inside": "00000 0000 0000 00 55",
    "a repository in place of a file": "55555 5555 5555 55 55",
    "a submodule": "55555 5555 0000 00 55",
    "staged as on disk": "55555 0000 5555 00 55",
    "staged and edited again": "55555 0000 5555 00 55",
    "staged and restored on disk": "55555 0000 0000 00 55",
    "a staged new file": "55555 0000 0000 00 55",
    "a staged new file that is gone": "55555 0000 0000 00 55",
    "a staged deletion": "55555 0000 0000 00 55",
    "a staged deletion of what is there": "55555 0000 0000 00 55",
    "a staged mode": "55555 0000 0000 00 55",
    "an intention to add": "55555 0000 0000 00 55",
    "a conflict in the index": "55555 5555 5555 00 55",
    "edits under skip worktree": "55555 0000 5555 00 55",
    "edits under assume unchanged": "55555 0000 5555 00 55",
    "flags without an edit": "00000 0000 0000 00 50",
    "a sparse checkout": "55555 5555 5000 00 55",
    "stash entries": "00000 0000 0555 00 55",
    "commits on top": "55555 0000 5555 00 55",
    "a commit that changes no file": "55555 0000 0000 00 55",
    "branches": "00000 0000 0000 00 55",
    "a branch checked out": "00000 0000 0000 00 55",
    "branches with our names": "55555 0000 5555 00 55",
    "references and notes": "00000 0000 0000 00 55",
    "a rebase": "55555 5555 5555 55 55",
    "a merge": "55555 5555 5555 55 55",
    "a cherry pick": "55555 5555 5555 55 55",
    "a revert": "55555 5555 5555 55 55",
    "an am": "55555 5555 5555 55 55",
    "a bisect": "55555 5555 5555 55 55",
    "hooks": "55555 0000 5555 00 55",
    "a path of hooks": "55555 0000 5555 00 55",
    "filters": "55555 0000 5555 00 55",
    "an include": "55555 0000 5555 00 55",
    "another work tree in the configuration": "55555 0000 5555 00 55",
    "settings that change files": "55555 0000 5555 00 55",
    "a broken configuration": "00000 0000 0000 00 55",
    "a file system monitor": "55555 0000 5555 00 55",
    "drivers and programs": "55555 0000 5555 00 55",
    "a promisor remote": "55555 0000 5555 00 55",
    "a live lock of the index": "05555 0555 0000 00 55",
}
VERBS = [*MANAGED, *INTO, *EDIT]
CELLS = [(kind, verb) for kind in KINDS for verb in VERBS]


@dataclass(frozen=True)
class Zoo:
    """The distribution, and what every cell starts from: a copy of a workspace, a checkout or a work tree of `edit`."""

    made: Made
    prepared: Path


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo")
    made = make_zoo(folder / "made")
    prepared = folder / "prepared"
    for name in ("managed", "into", "into first", "edit", "edit first"):
        (prepared / name).mkdir(parents=True)
    for name in ("into", "into first", "edit first"):
        git(folder, "clone", "--quiet", str(made.origins / "zoo"), str(prepared / name / "tree"))
        git(prepared / name / "tree", "reset", "--quiet", "--hard", "HEAD~1")
    for args in (
        (*FULL, "--workspace", str(prepared / "managed/ws")),
        (*FULL, "--workspace", str(prepared / "into/ws"), "--in-place", f"zoo={prepared / 'into/tree'}"),
        ("edit", "zoo/v1", "--dir", str(prepared / "edit/tree")),
    ):
        ended = patchctl(made, *args)
        assert ended.code == 0, ended.said
    return Zoo(made, prepared)


def layout(verb: str) -> str:
    if verb in MANAGED:
        return "managed"
    return {"into": "into first", "edit": "edit first", "edit again": "edit"}.get(verb, "into")


def set_up(zoo: Zoo, verb: str, place: Path) -> Path:
    """A copy for one cell; returns the tree."""
    source = zoo.prepared / layout(verb)
    shutil.copytree(source, place, symlinks=True)
    state = place / "ws/.patchctl/state.json"
    if state.exists():
        state.write_text(state.read_text().replace(str(source), str(place)))
    return place / ("ws/zoo" if verb in MANAGED else "tree")


def carry_out(zoo: Zoo, verb: str, place: Path) -> Ended:
    if verb in EDIT:
        return patchctl(zoo.made, "edit", "zoo/v1", "--dir", str(place / "tree"))
    args = (*{**MANAGED, **INTO}[verb], "--workspace", str(place / "ws"))
    return patchctl(zoo.made, *args, *(("--in-place", f"zoo={place / 'tree'}") if verb == "into" else ()))


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another git's lock is waited for before it counts: seconds that a matrix does not have."""
    monkeypatch.setattr(locks, "_SECONDS", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("kind", "verb"), CELLS, ids=[f"{kind}: {verb}" for kind, verb in CELLS])
def test_what_a_user_has_is_kept_or_the_run_is_refused(zoo: Zoo, tmp_path: Path, kind: str, verb: str) -> None:
    place = tmp_path / "place"
    tree = set_up(zoo, verb, place)
    before = account(tree)
    KINDS[kind](tree)
    marker(tree).unlink(missing_ok=True)  # the user's own git ran it
    planted, beside = account(tree), dict(entries(place))
    assert planted != before, "nothing was put there"
    ended = carry_out(zoo, verb, place)
    assert not marker(tree).exists(), "a command of the tree's configuration ran"
    codes = CODES[kind].replace(" ", "")
    assert (ended.code, "Traceback" in ended.said) == (int(codes[VERBS.index(verb)]), False), ended.said
    if ended.code == 5:
        assert "  try: " in ended.said
        assert changed(beside, dict(entries(place))) == []
    assert lost(before, planted, account(tree), tree, ended) == [], ended.said


@pytest.mark.skipif(os.geteuid() != 0, reason="root reads every file, and another user can be taken on by root only")
@pytest.mark.parametrize("args", [("revert",), ("revert", *STASH)], ids=" ".join)
def test_a_file_that_cannot_be_read_is_left_alone(zoo: Zoo, args: tuple[str, ...]) -> None:
    with folder_for_all() as top:
        made = copy_of(zoo.made, top)
        place = top / "place"
        tree = set_up(zoo, "revert", place)
        (tree / UNPATCHED).write_bytes(b"MINE = 1\n")
        (tree / UNPATCHED).chmod(0)
        for path in (place, *place.rglob("*")):
            os.lchown(path, 65534, 65534)
        before = dict(entries(place))
        git_run.scratch_folder.cache_clear()  # that folder is root's
        os.seteuid(65534)
        try:
            ended = patchctl(made, *args, "--workspace", str(place / "ws"))
        finally:
            os.seteuid(0)
            git_run.scratch_folder.cache_clear()
        assert (ended.code in (2, 5), "Traceback" in ended.said) == (True, False), ended.said
        assert "Permission denied" in ended.said and "  try: " in ended.said
        assert changed(before, dict(entries(place))) == []


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Paths that are not as they were, but for our lock, and objects and logs that nothing names."""
    differing = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    return sorted(p for p in differing if not re.search(r"\.patchctl/lock$|\.git/(objects|logs)(/|$)", p))
