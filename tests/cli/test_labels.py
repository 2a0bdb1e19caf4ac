"""`patchctl status --labels`: what an image says that it holds is what it holds, or nothing is said."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
from on_disk import Workspace


def labels(ws: Workspace) -> dict[str, str]:
    return dict(ws.json("status", "--labels")["labels"])


def expected_lock(root: Path, stacks: list[str]) -> str:
    """The digest again, as a shell would: the lock files' sha256 in order, a line each."""
    lines = ""
    for name in sorted(stacks):
        data = (root / f"manifests/locks/{name}.json").read_bytes()
        lines += f"{name} {hashlib.sha256(data).hexdigest()}\n"
    return hashlib.sha256(lines.encode()).hexdigest()


def test_what_they_say(ws: Workspace) -> None:
    ws.apply()
    found, status = labels(ws), ws.json("status")
    stacks = [f"{tree['upstream']}/{tree['stack']}" for tree in status["trees"]]
    assert found["patchctl.lock"] == expected_lock(ws.made.root, stacks)
    assert (found["patchctl.profile"], found["patchctl.without"], found["patchctl.skipped"]) == ("full", "", "")
    assert {name: value for name, value in found.items() if ".tree." in name} == {
        f"patchctl.tree.{tree['upstream']}": f"git:{tree['tip_tree']}" for tree in status["trees"]
    }
    assert ws.good("status", "--labels").splitlines() == [f"{name}={value}" for name, value in found.items()]


def test_what_was_left_out_is_said(ws: Workspace) -> None:
    ws.apply("full", "--without", "loud")
    assert labels(ws)["patchctl.without"] == "loud"


def test_what_could_not_be_had_is_left_out_too(own_ws: Workspace) -> None:
    """The greeter is gone, and with it what clock's step requires: that tree is not the one of a whole profile."""
    shutil.rmtree(own_ws.made.cache / "git" / "greeter")
    upstreams = own_ws.made.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/greeter", "/origins/gone"))
    own_ws.apply("full", "--skip-unavailable")
    found = labels(own_ws)
    assert (found["patchctl.skipped"], found["patchctl.without"]) == ("greeter", "step")


def test_half_the_trees_have_not_the_labels_of_all(own_ws: Workspace) -> None:
    own_ws.apply()
    whole = labels(own_ws)
    shutil.rmtree(own_ws.folder)
    shutil.rmtree(own_ws.made.cache / "git" / "clock")
    upstreams = own_ws.made.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/clock", "/origins/gone"))
    own_ws.apply("full", "--skip-unavailable")
    half = labels(own_ws)
    assert half["patchctl.lock"] == expected_lock(own_ws.made.root, ["greeter/v1"]) != whole["patchctl.lock"]
    assert half["patchctl.skipped"] == "clock" and "patchctl.tree.clock" not in half
    assert half["patchctl.tree.greeter"] == whole["patchctl.tree.greeter"]


def test_an_upstream_that_came_into_the_profile_later_is_not_passed_over(own_ws: Workspace) -> None:
    profile = own_ws.made.root / "manifests/profiles/single.yaml"
    profile.write_text("schema: 1\nname: single\nsummary: One.\nstacks:\n  greeter: v1\n")
    own_ws.apply("single")
    profile.write_text(profile.read_text() + "  clock: v2\n")
    assert "not as it should be" in own_ws.run("status", "--labels").stderr
    assert "the profile single names it, and the state has no tree of it" in own_ws.run("status").stdout


def test_a_tree_that_stays_without_its_source_is_labelled(own_ws: Workspace) -> None:
    own_ws.apply()
    before = labels(own_ws)
    shutil.rmtree(own_ws.made.cache / "git" / "clock")
    upstreams = own_ws.made.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/clock", "/origins/gone"))
    own_ws.apply("full", "--skip-unavailable")
    assert labels(own_ws) == before


def test_a_tree_that_went_back_to_its_base_and_is_wanted_again_is_not_passed_over(own_ws: Workspace) -> None:
    """Another profile that was applied in between does not have it, and this one does not either until it is applied again."""
    own_ws.apply()
    single = own_ws.made.root / "manifests/profiles/single.yaml"
    single.write_text("schema: 1\nname: single\nsummary: One.\nstacks:\n  greeter: v1\n")
    own_ws.apply("single")
    single.write_text(single.read_text() + "  clock: v2\n")
    assert "not as it should be" in own_ws.run("status", "--labels").stderr
    assert "the profile single names it, and the tree is at its base" in own_ws.run("status").stdout
    assert own_ws.run("verify").returncode == 1
    own_ws.apply("single")
    assert labels(own_ws)["patchctl.tree.clock"]


def test_the_lock_label_is_the_profiles(own_ws: Workspace) -> None:
    own_ws.apply()
    before = labels(own_ws)
    lock = own_ws.made.root / "manifests/locks/clock"
    (file,) = lock.iterdir()
    data = json.loads(file.read_text())
    file.write_text(json.dumps(data))  # the same for a reader, other bytes
    after = labels(own_ws)
    assert {name for name in before if before[name] != after[name]} == {"patchctl.lock"}


@pytest.mark.parametrize("spoil", ["edit", "delete", "lock", "revert", "nothing", "no-tree"])
def test_nothing_untrue_is_said(own_ws: Workspace, spoil: str) -> None:
    if spoil != "nothing":
        own_ws.apply()
    if spoil == "edit":
        (own_ws.folder / "greeter/README.md").write_text("mine\n")
    elif spoil == "delete":
        shutil.rmtree(own_ws.folder / "clock/clock")
    elif spoil == "lock":
        (file,) = (own_ws.made.root / "manifests/locks/clock").iterdir()
        tip = own_ws.state["trees"]["clock"]["tip_commit"]
        file.write_text(file.read_text().replace(tip, "0" * 40))
    elif spoil == "revert":
        own_ws.good("revert")
    elif spoil == "no-tree":
        file = own_ws.folder / ".patchctl/state.json"
        file.write_text(json.dumps({**own_ws.state, "trees": {}}))
    message = own_ws.refused(2, "status", "--labels")
    assert "try:" in message or "`patchctl" in message
