"""State and journal that are forged, cut off or from a newer version: refused by every verb, and nothing is done by them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from on_disk import Workspace, snapshot

pytestmark = pytest.mark.family("State")

Data = dict[str, Any]


def _tree(change: Callable[[Data], object]) -> Callable[[Data], object]:
    return lambda data: change(data["trees"]["greeter"])


def _named(name: str) -> Callable[[Data], object]:
    return lambda data: data["trees"].__setitem__(name, data["trees"].pop("greeter"))


STATES: dict[str, Callable[[Data], object]] = {
    "newer-version": lambda d: d.update(version=2),
    "no-version": lambda d: d.pop("version"),
    "version-as-text": lambda d: d.update(version="1"),
    "folder-outside": _tree(lambda t: t.update(folder="../../elsewhere")),
    "folder-of-another": _tree(lambda t: t.update(folder="clock")),
    "folder-full-and-managed": _tree(lambda t: t.update(folder="/etc")),
    "folder-as-number": _tree(lambda t: t.update(folder=7)),
    "into-relative": _tree(lambda t: t.update(kind="into", folder="greeter")),
    "into-with-dots": _tree(lambda t: t.update(kind="into", folder="/tmp/../etc")),
    "unknown-kind": _tree(lambda t: t.update(kind="linked")),
    "name-outside": _named("../greeter"),
    "name-hidden": _named(".git"),
    "name-with-escape": _named("\x1b[2Jgreeter"),
    "id-as-option": _tree(lambda t: t.update(tip_commit="--output=/tmp/x")),
    "id-as-number": _tree(lambda t: t.update(base_commit=12)),
    "stack-with-escape": _tree(lambda t: t.update(stack="v1\x1b]0;owned\x07")),
    "form-as-list": _tree(lambda t: t.update(form=["git"])),
    "patch-unknown-key": _tree(lambda t: t["patches"][0].update(run="rm")),
    "patch-id": _tree(lambda t: t["patches"][0].update(commit="HEAD")),
    "generated-outside": _tree(lambda t: t.update(generated={"../x": "0"})),
    "generated-full-path": _tree(lambda t: t.update(generated={"/etc/x": "0"})),
    "generated-in-git": _tree(lambda t: t.update(generated={".git/hooks/post-checkout": "0"})),
    "generated-in-git-upper-case": _tree(lambda t: t.update(generated={"a/.GIT/config": "0"})),
    "generated-as-list": _tree(lambda t: t.update(generated=["x"])),
    "trees-as-list": lambda d: d.update(trees=[]),
    "no-trees": lambda d: d.pop("trees"),
    "profile-with-escape": lambda d: d.update(profile="\x1b[31mfull"),
    "skipped-as-text": lambda d: d.update(skipped=["greeter"]),
    "locked-as-text": _tree(lambda t: t.update(locked="yes")),
}
TEXTS = {
    "empty": b"",
    "cut-off": b'{"version": 1, "trees": {"gre',
    "not-utf-8": b'{"version": 1, "root": "\xff"}',
    "a-list": b"[]",
    "null": b"null",
    "deep": b"[" * 100_000,
    "huge-number": b'{"version": 1' + b"0" * 5000 + b"}",
}


@pytest.fixture(scope="module")
def template(small: Any, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    ws = Workspace(small, tmp_path_factory.mktemp("template") / "ws")
    ws.apply()
    return ws


def refused_by_all(ws: Workspace, file: Path, verbs: tuple[tuple[str, ...], ...]) -> None:
    before = ws.everything()
    for verb in verbs:
        message = ws.refused(2, *verb)
        assert str(file) in message and "\x1b" not in message and "\x07" not in message
    assert ws.everything() == before


VERBS = (("status",), ("revert", "--stash"))


@pytest.mark.parametrize("fault", STATES)
def test_a_forged_state(template: Workspace, fault: str) -> None:
    file = template.folder / ".patchctl/state.json"
    good = file.read_bytes()
    data = json.loads(good)
    STATES[fault](data)
    file.write_text(json.dumps(data))
    try:
        refused_by_all(template, file, (("revert", "--stash"),))
    finally:
        file.write_bytes(good)


@pytest.mark.parametrize("fault", TEXTS)
def test_a_state_that_is_none(template: Workspace, fault: str) -> None:
    file = template.folder / ".patchctl/state.json"
    good = file.read_bytes()
    file.write_bytes(TEXTS[fault])
    try:
        refused_by_all(template, file, (("status",), ("apply", "--profile", "plain")))
    finally:
        file.write_bytes(good)


def _journal(ws: Workspace) -> Data:
    """A journal as a run writes it: back to the base."""
    state = json.loads((ws.folder / ".patchctl/state.json").read_text())
    tree = state["trees"]["greeter"]
    change = {
        "name": "greeter",
        "kind": "managed",
        "folder": "greeter",
        "base": tree["base_commit"],
        "source": tree["tip_commit"],
        "target": tree["base_commit"],
        "stash": None,
        "generated": {},
        "known": {},
        "forget": False,
    }
    after = {
        **state,
        "trees": {**state["trees"], "greeter": {**tree, "tip_commit": tree["base_commit"], "patches": []}},
    }
    return {"version": 1, "verb": "revert", "changes": [change], "after": after}


def _change(**values: object) -> Callable[[Data], object]:
    return lambda data: data["changes"][0].update(values)


JOURNALS: dict[str, Callable[[Data], object]] = {
    "newer-version": lambda d: d.update(version=2),
    "unknown-verb": lambda d: d.update(verb="\x1b[2Jrevert"),
    "folder-outside": _change(folder="../x"),
    "name-and-folder-outside": _change(name="../x", folder="../x"),
    "name-and-folder-full": _change(name="/etc", folder="/etc"),
    "into-relative": _change(kind="into", folder="x"),
    "target-as-option": _change(target="--exec=touch /tmp/x"),
    "source-as-name": _change(source="HEAD"),
    "stash-as-name": _change(stash="HEAD^{tree}"),
    "generated-in-git": _change(generated={".git/hooks/pre-commit": "#!/bin/sh\n"}),
    "generated-outside": _change(generated={"a/../../x": "x"}),
    "known-as-number": _change(known={"a": 1}),
    "unknown-key": _change(run="rm"),
    "no-changes": lambda d: d.pop("changes"),
    "state-inside-forged": lambda d: d["after"]["trees"]["greeter"].update(folder="/etc"),
}


@pytest.mark.parametrize("fault", [*JOURNALS, *TEXTS])
def test_a_forged_journal(template: Workspace, fault: str) -> None:
    file = template.folder / ".patchctl/journal.json"
    if fault in TEXTS:
        file.write_bytes(TEXTS[fault])
    else:
        data = _journal(template)
        JOURNALS[fault](data)
        file.write_text(json.dumps(data))
    try:
        refused_by_all(template, file, VERBS if fault in TEXTS else (("revert", "--stash"),))
    finally:
        file.unlink()


def test_the_journal_of_these_tests_is_a_good_one(ws: Workspace) -> None:
    """Else the refusals above would show nothing."""
    ws.apply()
    (ws.folder / ".patchctl/journal.json").write_text(json.dumps(_journal(ws)))
    assert "finished an interrupted revert first" in ws.good("revert")
    ws.assert_healthy()


def test_a_journal_of_a_tree_whose_repository_is_gone(ws: Workspace) -> None:
    ws.apply()
    (ws.folder / ".patchctl/journal.json").write_text(json.dumps(_journal(ws)))
    shutil.rmtree(ws.folder / "greeter/.git")
    before = snapshot(ws.folder / "clock")
    done = ws.run("revert")
    assert done.returncode == 5 and "the repository of greeter is gone" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(ws.folder / "clock") == before
