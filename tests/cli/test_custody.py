"""What a user has in a tree is kept, or the run is refused with 5 and a way out: every kind of thing times every verb."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from belongings import KINDS, marker
from custody import Ended, account, entries, lost, make_zoo, patchctl
from distribution import Made, git

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
CELLS = [(kind, verb) for kind in KINDS for verb in (*MANAGED, *INTO, *EDIT)]


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
        (*FULL, "--workspace", str(prepared / "into/ws"), "--into", f"zoo={prepared / 'into/tree'}"),
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
    return patchctl(zoo.made, *args, *(("--into", f"zoo={place / 'tree'}") if verb == "into" else ()))


@pytest.mark.parametrize(("kind", "verb"), CELLS, ids=[f"{kind}: {verb}" for kind, verb in CELLS])
def test_what_a_user_has_is_kept_or_the_run_is_refused(zoo: Zoo, tmp_path: Path, kind: str, verb: str) -> None:
    place = tmp_path / "place"
    tree = set_up(zoo, verb, place)
    before = account(tree)
    KINDS[kind](tree)
    marker(tree).unlink(missing_ok=True)  # the user's own git ran it
    planted, beside = account(tree), dict(entries(place))
    ended = carry_out(zoo, verb, place)
    assert not marker(tree).exists(), "a command of the tree's configuration ran"
    assert ended.code in (0, 5), ended.said
    assert "Traceback" not in ended.said
    if ended.code == 5:
        assert "  try: " in ended.said
        assert changed(beside, dict(entries(place))) == []
    assert lost(before, planted, account(tree), tree, ended) == [], ended.said


def changed(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Paths that are not as they were, but for our lock, and objects and logs that nothing names."""
    differing = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    return sorted(p for p in differing if not re.search(r"\.patchctl/lock$|\.git/(objects|logs)(/|$)", p))
