"""Profiles on release sets: which set is taken, what every verb makes of it, and what a workspace remembers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distribution import Made, make_distribution


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Two sets: the newer one has a stack of the clock without patches, and the profile `full` stands on both."""
    made = make_distribution(tmp_path / "made", lock=True)
    manifests = made.root / "manifests"
    stack = next(manifests.glob("stacks/clock/*.yaml"))
    text = stack.read_text().replace(f"name: {stack.stem}", "name: later")
    (stack.parent / "later.yaml").write_text("\n".join(without_patches(text)) + "\n")
    (manifests / "sets").mkdir()
    greeter = next(manifests.glob("stacks/greeter/*.yaml")).stem
    for name, clock in (("2026.02", stack.stem), ("2026.11", "later")):
        lines = [
            f'name: "{name}"',
            f"summary: The set of {name}.",
            "stacks:",
            f"  greeter: {greeter}",
            f"  clock: {clock}",
        ]
        (manifests / f"sets/{name}.yaml").write_text("\n".join(["schema: 1", *lines]) + "\n")
    profile = 'schema: 1\nname: full\nsummary: On both.\nsets:\n  "2026.02": {}\n  "2026.11": {}\n'
    (manifests / "profiles/full.yaml").write_text(profile)
    made.good("lock")
    return made


def without_patches(text: str) -> list[str]:
    """The lines of a stack's manifest less its patches."""
    lines = text.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("patches:"))
    end = next((n for n in range(start + 1, len(lines)) if not lines[n].startswith((" ", "-"))), len(lines))
    return lines[:start] + lines[end:]


def clock_of(made: Made, workspace: Path, *args: str) -> str:
    data = json.loads(made.good("apply", "--profile", "full", "--workspace", str(workspace), "--json", *args))
    assert data["set"] == json.loads((workspace / ".patchctl/state.json").read_text())["set"]
    return str(data["trees"]["clock"]["stack"])


def test_the_set_that_is_named_is_taken_and_the_workspace_remembers_it(made: Made, tmp_path: Path) -> None:
    assert clock_of(made, tmp_path / "new", "--set", "2026.11") == "later"
    assert clock_of(made, tmp_path / "old", "--set", "2026.02") != "later"
    assert "set        2026.11" in made.good("status", "--workspace", str(tmp_path / "new"))
    for name in ("new", "old"):
        made.good("verify", "--workspace", str(tmp_path / name))
    assert "patchctl.set=2026.11" in made.good("labels", "--workspace", str(tmp_path / "new"))


def test_without_a_name_the_oldest_is_taken_while_none_is_proven_and_it_says_why(made: Made, tmp_path: Path) -> None:
    done = made.patchctl("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    assert done.returncode == 0
    assert "full is taken on 2026.02: on 2026.11" in done.stderr
    assert "`--set 2026.11` takes it there all the same" in done.stderr
    assert "set        2026.02" in made.good("status", "--workspace", str(tmp_path / "ws"))


def test_a_state_of_before_there_were_sets_is_of_the_oldest(made: Made, tmp_path: Path) -> None:
    clock_of(made, tmp_path / "ws", "--set", "2026.02")
    file = tmp_path / "ws/.patchctl/state.json"
    state = json.loads(file.read_text())
    del state["set"]
    file.write_text(json.dumps(state))
    made.good("verify", "--workspace", str(tmp_path / "ws"))


@pytest.mark.parametrize("verb", ["apply", "fetch", "requirements", "doctor", "list", "report"])
def test_an_unknown_set_is_told_with_the_nearest_one(made: Made, verb: str, tmp_path: Path) -> None:
    more = ["--out", str(tmp_path / "page.html")] if verb == "report" else []
    done = made.patchctl(verb, "--profile", "full", "--set", "2026.12", *more)
    assert done.returncode == 2
    assert "no release set '2026.12'; did you mean '2026.11'?" in done.stderr


def test_a_profile_that_does_not_stand_on_the_set_says_where_it_stands(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", '  "2026.11": {}\n', "")
    done = made.patchctl("fetch", "--profile", "full", "--set", "2026.11")
    assert done.returncode == 2
    assert "the profile full does not stand on" in done.stderr
    assert "it stands on 2026.02" in done.stderr


def test_list_shows_the_sets_and_every_profile_on_each(made: Made) -> None:
    data = json.loads(made.good("list", "--json"))
    assert [one["name"] for one in data["sets"]] == ["2026.11", "2026.02"]
    assert [one["set"] for one in data["profiles"] if one["name"] == "full"] == ["2026.11", "2026.02"]
    assert json.loads(made.good("list", "sets", "--json")).keys() == {"schema", "what", "sets"}


def test_what_a_profile_changes_of_a_set_must_be_in_it(made: Made) -> None:
    made.edit("manifests/profiles/full.yaml", '"2026.11": {}', '"2026.11": {leaves_out: [clokc]}')
    done = made.patchctl("list")
    assert done.returncode == 2
    assert "the set has no 'clokc'; did you mean 'clock'?" in done.stderr
