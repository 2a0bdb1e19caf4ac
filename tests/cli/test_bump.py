"""`patchctl bump`: a release from an older one, stopped only where a person is needed, and never lost by a kill."""

from __future__ import annotations

import itertools
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution, write_files
from json_schema import faults
from killing import killed, points
from on_disk import snapshot
from test_prove import CONFTEST, MUTATION, TESTS

from patchctl.errors import SourceUnavailable
from patchctl.requirements.relock import NoSolution

pytestmark = pytest.mark.heavy("whole bumps, killed at many points")

RELEASE = 'schema: 1\nname: "2001.01"\nsummary: The first.\nstacks: {greeter: v1, clock: v2}\n'
PROFILE = "schema: 1\nname: full\nsummary: All.\nreleases: {'>=2001.01': {}}\n"
HELLO = "greeter/hello.py"
TICK = "clock/tick.py"
MANNERS = "polite/files/greeter/manners.py"
NAMES = "{folder: lists/names, suffix: .txt, program: scripts/names.py, needs: json}"
PROGRAM = """import ast, pathlib, sys
tree, _, out = sys.argv[1:]
text = pathlib.Path(tree, "greeter/hello.py").read_text()
pathlib.Path(out).write_text(str([node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]))
"""
POINTS = 10


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """A release of both, clock naming the greeter that it goes with."""
    clock = replace(CLOCK, files={**CLOCK.files, "Dockerfile": "FROM x\nRUN get greeter v1\n"})
    made = make_distribution(tmp_path / "made", (GREETER, clock))
    where = "    companions: {file: Dockerfile, revisions: {greeter: 'get greeter (\\S+)'}}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n" + where)
    write_files(made.root, {"manifests/releases/2001.01.yaml": RELEASE, "manifests/profiles/full.yaml": PROFILE})
    (made.root / "manifests/profiles/plain.yaml").unlink()
    follows = "    follows: [{what: names, command: 'list-names of {release}', made: " + NAMES + "}]\n"
    made.edit("manifests/upstreams.yaml", "    summary: The greeter.\n", "    summary: The greeter.\n" + follows)
    write_files(made.root, {"scripts/names.py": PROGRAM})
    for upstream, tag in (("greeter", "v1"), ("clock", "v2")):
        git(made.origins / upstream, "tag", tag)
        made.edit(f"manifests/stacks/{upstream}/{tag}.yaml", "patches:", f"  tag: {tag}\npatches:")
    made.good("lock")
    return made


def goes_on(made: Made, upstream: str, tag: str, files: Mapping[str, str | None]) -> None:
    origin = made.origins / upstream
    write_files(origin, files)
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "--allow-empty", "-m", f"release {tag}")
    git(origin, "tag", tag)


def bump(made: Made, *args: str, code: int) -> dict[str, Any]:
    done = made.patchctl("bump", *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    if "error" not in found:
        assert not [*faults(json.loads((REPO / "docs/schema/bump.json").read_text()), found)]
    return found


def begin(made: Made, *args: str, code: int) -> dict[str, Any]:
    return bump(made, "2001.01", "--to", "2001.02", "--no-prove", *args, code=code)


def moves(found: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {m["upstream"]: (m["to"], m["why"]) for m in found["moves"]}


def distribution(made: Made) -> dict[str, tuple[str, str]]:
    """All of it but the work trees and git's folder."""
    return {p: s for p, s in snapshot(made.root).items() if p.partition("/")[0] not in ("edit", ".git")}


def tree_of(made: Made, upstream: str) -> Path:
    return made.root / "edit" / f"{upstream}-bump-2001.02"


def both_go_on(made: Made) -> None:
    goes_on(made, "greeter", "v1.5", {"README.md": "greeter, again\n"})
    goes_on(made, "greeter", "v2", {"README.md": "greeter, once more\n"})
    goes_on(made, "clock", "v3", {"Dockerfile": "FROM x\nRUN get greeter v1.5\n"})


def test_pairs_move_together_and_the_release_is_whole(made: Made) -> None:
    both_go_on(made)
    found = begin(made, code=20)
    assert moves(found) == {"greeter": ("v1.5", "clock v3 names it"), "clock": ("v3", "its newest release")}
    assert found["stacks"] == {"greeter": "v1.5", "clock": "v3"} and found["status"] == "done"
    assert {p["feature"]: p["kind"] for p in found["patches"]["greeter"]} == dict.fromkeys(
        ("typo", "polite", "loud"), "same"
    )
    assert sorted(found["unproven"]) == ["loud@greeter", "polite@greeter", "step@clock", "typo@greeter"]
    assert "| step | same | not proven: no record |" in Path(found["report"]).read_text()
    manifest = (made.root / "manifests/releases/2001.02.yaml").read_text()
    assert 'extends: "2001.01"\nstacks:\n  greeter: v1.5\n  clock: v3\n' in manifest
    assert found["left"] == []
    made.good("lock", "--check")
    made.good("verify")
    # The carried file is that of the stack before: it stands once, and both stacks are built with it.
    assert [file.parent for file in made.root.glob(f"patches/greeter/*/{MANNERS}")] == [
        (made.root / "patches/greeter/shared" / MANNERS).parent
    ]
    workspace = made.root.parent / "ws"
    made.good("apply", "--profile", "full", "--release", "2001.02", "--workspace", str(workspace))
    assert (workspace / "greeter/README.md").read_text() == "greeter, again\n"
    assert not (made.root / "edit/.bump.json").exists()


def test_what_moves_without_its_pair_is_told(made: Made) -> None:
    both_go_on(made)
    told = "clock v3 names greeter v1.5, and greeter stays at v1: `--only greeter@v1.5` moves it too"
    assert begin(made, "--only", "clock", "--dry-run", code=0)["apart"] == [told]
    assert begin(made, "--only", "clock", "--only", "greeter@1.5", "--dry-run", code=0)["apart"] == []
    stays = begin(made, "--only", "greeter@v2", "--dry-run", code=0)["apart"]
    assert stays == ["clock v2 names greeter v1, and greeter moves to v2"]
    assert f"  apart: {told}\n" in made.patchctl("bump", "2001.01", "--only", "clock", "--dry-run").stdout
    found = begin(made, "--only", "clock", code=20)
    assert found["apart"] == [told] and f"- {told}\n" in Path(found["report"]).read_text()


def test_a_source_without_the_file_that_names_the_others_is_told(made: Made) -> None:
    """As archives of the package index lack the Dockerfiles of their repositories."""
    goes_on(made, "clock", "v3", {"Dockerfile": None})
    told = "clock v3 names none of greeter in Dockerfile: look up which go with it"
    assert begin(made, "--dry-run", code=0)["apart"] == [told]


def test_what_a_bump_cannot_write_is_named(made: Made) -> None:
    both_go_on(made)
    write_files(made.root, {"patches/greeter/v1/polite/0009-feature-polite.patch": "left by an edit\n"})
    done = made.patchctl("bump", "2001.01", "--to", "2001.02", "--no-prove")
    assert done.returncode == 20 and "  left: patches/greeter/v1/polite/0009-feature-polite.patch: " in done.stdout
    assert "## Left to do" in (made.root / "edit/bump-2001.02.md").read_text()


def test_a_program_makes_what_a_new_stack_needs(made: Made) -> None:
    both_go_on(made)
    hand = "      - {what: pictures, command: 'draw --of {release}'}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n    follows:\n" + hand)
    found = begin(made, code=20)
    assert found["by_hand"] == ["pictures: draw --of 2001.02"] and found["unmade"] == []
    assert "'polite'" in (made.root / "lists/names/v1.5.txt").read_text()  # a patch's name: the tree is patched
    assert "## By hand\n\n- pictures: draw --of 2001.02\n" in Path(found["report"]).read_text()


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("needs: json", "needs: of_nobody", "python3 has no of_nobody: PATCHCTL_TORCH_PYTHON names one that has"),
        ("scripts/names.py", "scripts/none.py", "scripts/none.py ended with 2: "),
    ],
)
def test_it_stops_once_where_the_program_cannot_run(old: str, new: str, why: str, made: Made) -> None:
    both_go_on(made)
    made.edit("manifests/upstreams.yaml", old, new)
    found = begin(made, code=20)
    (line,) = found["unmade"]
    assert found["status"] == "stopped" and line.startswith(f"names: list-names of 2001.02 ({why}"), line
    report = Path(found["report"]).read_text()
    assert "| step | same |" in report and f"## Could not be made here\n\n- {line}\n" in report
    found = bump(made, "--continue", code=20)
    assert (found["status"], found["unmade"]) == ("done", [line])


def test_a_person_names_the_python_and_goes_on(made: Made) -> None:
    both_go_on(made)
    nowhere = {"PATCHCTL_TORCH_PYTHON": "/nowhere/python"}
    done = made.patchctl("bump", "2001.01", "--to", "2001.02", "--no-prove", env=nowhere)
    assert done.returncode == 20 and "names: list-names of 2001.02 (" in done.stdout, done.stderr
    assert done.stdout.endswith("`patchctl bump --continue`\n") and not (made.root / "lists/names").exists()
    assert bump(made, "--continue", code=20)["unmade"] == []
    assert (made.root / "lists/names/v1.5.txt").is_file()


def test_it_stops_at_a_red_proof(made: Made) -> None:
    tests = "patches/greeter/v1/typo/tests/test_typo.py"
    write_files(made.root, {"conftest.py": CONFTEST, tests: TESTS.replace('"Hello" in', '"Hullo" in')})
    both_go_on(made)
    found = bump(made, "2001.01", "--to", "2001.02", "--only", "greeter", code=20)
    assert found["status"] == "stopped" and len(found["red"]) == 3  # two have no tests
    assert "typo@greeter: patched: on test_need failed: " in " ".join(found["red"])
    assert "## Red proofs\n\n- typo@greeter: patched: on test_need failed: " in Path(found["report"]).read_text()
    write_files(made.root, {tests: TESTS, "patches/greeter/v1/typo/mutants/typo.yaml": MUTATION})
    found = bump(made, "--continue", code=20)
    assert [line.partition("@")[0] for line in found["red"]] == ["polite", "loud"], found["red"]
    assert {p["feature"]: p["proof"] for p in found["patches"]["greeter"]}["typo"] is None  # proven
    found = bump(made, "--continue", "--no-prove", code=20)
    assert found["status"] == "done" and not (made.root / "edit/.bump.json").exists()


def test_a_carried_file_that_changed_is_the_stacks_own(made: Made) -> None:
    both_go_on(made)
    begin(made, "--only", "greeter@v2", code=20)
    file = made.root / "patches/greeter/shared" / MANNERS
    before = file.read_text()
    made.good("edit", "greeter/v2", "--dir", str(made.root.parent / "edit"))
    changed = made.root.parent / "edit" / "greeter/manners.py"
    changed.write_text(before + "\n\nMANNERS = True\n")
    tree = changed.parents[1]
    git(tree, "commit", "--quiet", "--all", "--fixup=:/add a polite form")
    base = git(tree, "config", "patchctl.base").strip()
    git(tree, "-c", "sequence.editor=true", "rebase", "--quiet", "--interactive", "--autosquash", base)
    made.good("export", "greeter/v2", "--dir", str(tree))
    assert file.read_text() == before
    assert "MANNERS" in (made.root / "patches/greeter/v2" / MANNERS).read_text()


def test_a_dry_run_says_what_each_would_take(made: Made) -> None:
    both_go_on(made)
    before = snapshot(made.root)
    found = begin(made, "--dry-run", code=0)
    assert found["efforts"] == {"greeter": "exact", "clock": "exact"} and snapshot(made.root) == before
    assert found["states"]["greeter"] == dict.fromkeys(("typo", "polite", "loud"), "exact")
    text = made.good("bump", "2001.01", "--to", "2001.02", "--dry-run")
    assert "\n    exact: 3, typo, polite, loud\n" in text and "\n    exact: 1, step\n" in text


def test_only_what_is_named_moves(made: Made) -> None:
    both_go_on(made)
    found = begin(made, "--only", "greeter@v2", code=20)
    assert moves(found) == {"greeter": ("v2", "asked for")} and found["stacks"] == {"greeter": "v2"}


def test_the_newest_release_gets_the_next_point_release(made: Made) -> None:
    both_go_on(made)
    assert bump(made, "--dry-run", code=0)["new"] == "2001.01.1"
    bump(made, "--no-prove", "--only", "clock", code=20)
    found = bump(made, "--dry-run", code=0)
    assert (found["release"], found["new"]) == ("2001.01.1", "2001.01.2")


def test_a_branch_that_moved_on_is_pinned_anew_and_a_tag_with_a_slash_is_not(made: Made) -> None:
    origin = made.origins / "greeter"
    git(origin, "branch", "--move", "dev/x")
    for to, again in (("dev/x", True), ("release/v2", False)):
        goes_on(made, "greeter", "release/v2" if not again else "v1.1", {"README.md": f"greeter of {to}\n"})
        first = bump(made, "2001.01", "--to", f"2001.0{3 - again}", "--only", f"greeter@{to}", "--no-prove", code=20)
        assert first["stacks"]["greeter"] == to.replace("/", "-")
        if again:
            goes_on(made, "greeter", "v1.2", {"README.md": "greeter, further on\n"})
        head = git(origin, "rev-parse", "HEAD").strip()
        second = bump(made, "2001.01", "--to", f"2001.0{5 - again}", "--only", f"greeter@{to}", "--no-prove", code=20)
        assert second["stacks"]["greeter"] == (head[:8] if again else first["stacks"]["greeter"])
        assert head in (made.root / f"manifests/stacks/greeter/{second['stacks']['greeter']}.yaml").read_text()


def test_nothing_is_newer(made: Made) -> None:
    assert begin(made, code=0)["status"] == "nothing to move"
    assert "--only UPSTREAM moves one that no other" in made.good("bump", "2001.01", "--to", "2001.02")
    assert not (made.root / "manifests/releases/2001.02.yaml").exists()


def conflict(made: Made) -> None:
    """clock's one patch cannot be merged; greeter's can."""
    both_go_on(made)
    goes_on(made, "clock", "v4", {TICK: CLOCK.files[TICK].replace("return count + 1", "return 1 + count")})


def resolve(made: Made) -> None:
    tree = tree_of(made, "clock")
    write_files(
        tree, {TICK: CLOCK.files[TICK].replace("count):", "count, step=1):").replace("count + 1", "step + count")}
    )
    git(tree, "add", TICK)


def test_it_stops_at_a_conflict_and_goes_on(made: Made) -> None:
    conflict(made)
    found = begin(made, code=4)
    until = found["stop"].pop("reason")
    assert found["stop"] == {"upstream": "clock", "feature": "step", "files": {TICK: "both changed the same lines"}}
    assert until.startswith("Drop-When: ")
    report = Path(found["report"]).read_text()
    assert "## Stopped at step of clock\n\n- `clock/tick.py`: " in report and "| loud | same |" in report
    assert bump(made, "--continue", code=4)["error"]["exit_code"] == 4  # nothing is resolved yet
    resolve(made)
    for action in ("--continue", "--abort"):
        assert "--dry-run writes nothing" in bump(made, action, "--dry-run", code=2)["error"]["what"]
    found = bump(made, "--continue", code=20)
    (step,) = found["patches"]["clock"]
    assert (found["status"], step["kind"], step["merge"]) == ("done", "content", "resolved")
    assert {p["merge"] for p in found["patches"]["greeter"]} == {"clean"}
    report = Path(found["report"]).read_text()
    assert "| step | content, resolved by hand | not proven: " in report
    assert "<details><summary>range-diff of clock</summary>" in report and "+    return step + count" in report
    made.good("verify")


def test_a_report_says_what_to_do_where_nothing_is_left_of_a_patch(made: Made) -> None:
    both_go_on(made)
    patched = CLOCK.patches[0].edits[TICK]
    assert patched is not None
    goes_on(made, "clock", "v4", {TICK: patched})
    found = begin(made, code=4)
    assert found["stop"]["files"] == {} and found["stop"]["reason"].startswith("upstream has it at v4")
    report = Path(found["report"]).read_text()
    assert "## Stopped at step of clock\n\n- nothing is left of it: upstream has it at v4" in report
    assert "`patchctl rebase --skip` in it, `patchctl bump --continue`" in report


def test_what_goes_on_asks_the_places_that_the_first_run_was_told(made: Made) -> None:
    """The manifest's place of each upstream is gone. A mirror with credentials is in no file, and what is told anew wins."""
    conflict(made)
    mirrors = made.origins.rename(made.root.parent / "mirrors")
    told = ["--mirror", f"greeter={mirrors / 'greeter'}", "--mirror", "clock=https://me:secret@localhost:1/clock.git"]
    begin(made, *told, "--mirror", f"clock={mirrors / 'clock'}", "--source", "git", code=4)
    state = (made.root / "edit/.bump.json").read_text()
    assert "secret" not in state and json.loads(state)["source"] == "git"
    resolve(made)
    shutil.rmtree(made.cache)
    said = bump(made, "--continue", "--mirror", "clock=/nowhere", code=SourceUnavailable.code)["error"]
    assert "/nowhere" in str(said["tried"]) and str(mirrors) not in str(said["tried"])
    assert f"greeter={mirrors / 'greeter'}" in (made.root / "edit/.bump.json").read_text()
    assert bump(made, "--continue", "--mirror", f"clock={mirrors / 'clock'}", code=20)["status"] == "done"


def test_an_import_that_nothing_provides_stops_it_once(made: Made) -> None:
    goes_on(made, "greeter", "v2", {"greeter/__init__.py": "import of_nobody\nimport os\n"})
    found = begin(made, "--only", "greeter", code=20)
    assert found["status"] == "stopped" and found["stacks"] == {"greeter": "v2"}
    (line,) = found["imports"]
    assert line.startswith("of_nobody is imported at greeter/__init__.py:1")
    assert f"## Imports that nothing provides\n\n- {line}" in Path(found["report"]).read_text()
    assert "2001.02" not in made.good("list", "releases")
    found = bump(made, "--continue", code=20)
    assert found["status"] == "done" and "2001.02" in made.good("list", "releases")
    assert found["imports"] == [line] and f"- {line}" in Path(found["report"]).read_text()


def test_what_was_edited_at_a_stop_stays(made: Made) -> None:
    """The new source lacks a file of the release's requirements; until that is mended, the release's file may be edited."""
    where = "manifests/requirements/own/set.yaml"
    text = "schema: 1\nname: own\nsummary: Of own.\npython: '3.12'\nexclude_newer: '2026-01-01T00:00:00Z'\n"
    declared = f"# clock v2: needs.txt {'0' * 40}\n"
    write_files(made.root, {where: f"{text}declared:\n  - {{upstream: clock, file: needs.txt}}\n"})
    write_files(made.root, {"manifests/requirements/own/declared.txt": declared})
    made.edit("manifests/releases/2001.01.yaml", "stacks:", "requirements: own\nstacks:")
    both_go_on(made)
    said = begin(made, code=SourceUnavailable.code)["error"]
    assert "take it out of `declared` in manifests/requirements/2001.02/set.yaml" in said["hint"]
    assert 'name: "2001.02"\nsummary: Of 2001.02.\n' in (made.root / where.replace("own", "2001.02")).read_text()
    file = made.root / "manifests/releases/2001.02.yaml"
    edited = file.read_text() + "note: Edited.\n"
    file.write_text(edited)
    bump(made, "--continue", code=SourceUnavailable.code)
    assert file.read_text() == edited


def test_the_report_names_requirements_that_changed(made: Made) -> None:
    """They are for a Python that is none of the set's, so that there is nothing to ask an index for."""
    asked = [f'{one}; python_version < "3"\n' for one in ("both", "old", "new")]
    where = "manifests/requirements/own/set.yaml"
    text = "schema: 1\nname: own\nsummary: Of own.\npython: '3.12'\nexclude_newer: '2026-01-01T00:00:00Z'\n"
    both_go_on(made)
    for tag, needs in (("v4", asked[0] + asked[1]), ("v5", asked[0] + asked[2])):
        goes_on(made, "clock", tag, {"needs.txt": needs})
    begin(made, "--only", "clock@v4", code=20)
    write_files(made.root, {where: f"{text}declared:\n  - {{upstream: clock, file: needs.txt}}\n"})
    made.edit("manifests/releases/2001.02.yaml", "stacks:", "requirements: own\nstacks:")
    made.good("lock", "--requirements")
    found = bump(made, "2001.02", "--to", "2001.03", "--only", "clock@v5", "--no-prove", code=20)
    assert found["requirements"] == [
        'clock/needs.txt: asks for new; python_version < "3", and did not',
        'clock/needs.txt: no longer asks for old; python_version < "3"',
    ]
    assert f"## Requirements that changed\n\n- {found['requirements'][0]}\n" in Path(found["report"]).read_text()


def with_requirements(made: Made) -> None:
    """The release's requirements are clock's needs.txt, which asked for nothing."""
    where = "manifests/requirements/own/set.yaml"
    text = "schema: 1\nname: own\nsummary: Of own.\npython: '3.12'\nexclude_newer: '2026-01-01T00:00:00Z'\n"
    write_files(made.root, {where: f"{text}declared:\n  - {{upstream: clock, file: needs.txt}}\n"})
    write_files(made.root, {where.replace("set.yaml", "declared.txt"): f"# clock v2: needs.txt {'0' * 40}\n"})
    made.edit("manifests/releases/2001.01.yaml", "stacks:", "requirements: own\nstacks:")


def test_the_report_of_each_stop_names_requirements_that_changed(made: Made) -> None:
    with_requirements(made)
    tick = CLOCK.files[TICK].replace("return count + 1", "return 1 + count")
    needs = "iniconfig<2\niniconfig>=2\n"
    goes_on(made, "clock", "v5", {TICK: tick, "needs.txt": needs, "clock/__init__.py": "import of_nobody\n"})
    asked = ["clock/needs.txt: asks for iniconfig<2 and iniconfig>=2, and did not"]
    found = begin(made, "--only", "clock", code=4)  # a conflict
    assert found["requirements"] == asked
    resolve(made)
    found = bump(made, "--continue", code=20)
    assert found["imports"] and found["requirements"] == asked
    done = made.patchctl("bump", "--continue")  # no solution; without an index nobody knows
    assert done.returncode in (NoSolution.code, SourceUnavailable.code), done.stdout + done.stderr
    report = (made.root / "edit/bump-2001.02.md").read_text()
    assert (
        f"## Requirements that changed\n\n- {asked[0]}\n" in report and "| step | content, resolved by hand |" in report
    )
    assert "## To look at\n\n- " in report.partition("## Requirements that changed")[2]


def test_a_file_of_requirements_that_went_is_named(made: Made) -> None:
    with_requirements(made)
    conflict(made)
    found = begin(made, "--only", "clock", code=4)
    assert found["requirements"] == ["clock in form git has no needs.txt"]


def test_the_report_names_a_patch_that_may_go(made: Made) -> None:
    patch = made.patch("typo")
    patch.write_text(patch.read_text().replace("Drop-When: upstream does it itself", "Drop-When: greeter >= 1.2"))
    made.good("lock")
    both_go_on(made)
    found = begin(made, "--only", "greeter@v1.5", code=20)
    assert found["met"] == ["typo@greeter: greeter >= 1.2"]
    assert "## Drop-When met\n\n- typo@greeter: greeter >= 1.2\n" in Path(found["report"]).read_text()


def test_a_patch_can_be_left_out(made: Made) -> None:
    conflict(made)
    text = made.patchctl("bump", "2001.01", "--to", "2001.02", "--no-prove").stdout
    assert "next: patchctl bump --continue" in text and "--skip --reason" in text
    status = made.good("rebase", "--status", "--dir", str(tree_of(made, "clock")))
    assert "next: patchctl bump --continue" in status and "rebase --continue" not in status
    done = made.patchctl("rebase", "--dir", str(tree_of(made, "clock")), "--skip", "--reason", "upstream counts itself")
    assert done.returncode == 10 and done.stdout.endswith("next: patchctl bump --continue\n"), done.stderr
    found = bump(made, "--continue", code=20)
    (step,) = found["patches"]["clock"]
    assert step["kind"] == "dropped" and step["reason"] == "upstream counts itself" and step["proof"] is None


def test_it_can_be_given_up(made: Made) -> None:
    conflict(made)
    begin(made, code=4)
    assert begin(made, code=2)["error"]["what"] == "a bump to 2001.02 is under way"
    still = made.patchctl("bump", "--continue")
    assert still.returncode == 4 and "then `patchctl bump --continue`" in still.stderr
    said = made.good("bump", "--abort").splitlines()
    assert said[0] == "the bump to 2001.02 is given up"
    assert bump(made, "--continue", code=2)["error"]["what"] == "no bump is under way"
    proposed = said[-1].partition("`patchctl ")[2].partition("`")[0]
    assert "the distribution is as before" in made.good(*shlex.split(proposed))


def test_what_was_resolved_by_hand_is_told_where_rebase_came_to_the_end(made: Made) -> None:
    """The last stop of a move, gone on with by `rebase --continue`."""
    conflict(made)
    begin(made, code=4)
    tree = tree_of(made, "clock")
    write_files(tree, {TICK: CLOCK.files[TICK].replace("count + 1", "count + 3")})
    git(tree, "add", "--all")
    done = made.patchctl("rebase", "--dir", str(tree), "--continue")
    assert done.returncode in (0, 10, 20), done.stdout + done.stderr
    found = bump(made, "--continue", code=20)
    assert [step["merge"] for step in found["patches"]["clock"]] == ["resolved"]


def test_a_bump_that_was_given_up_begins_again(made: Made) -> None:
    """One upstream has arrived, the rebase of the other is under way."""
    conflict(made)
    only = ("--only", "greeter@v2", "--only", "clock")
    begin(made, *only, code=4)
    made.good("bump", "--abort")
    before = distribution(made)
    error = begin(made, *only, code=2)["error"]
    assert "a rebase of a bump before is under way" in error["what"]
    assert distribution(made) == before and not (made.root / "edit/.bump.json").exists()
    made.good(*shlex.split(error["hint"].partition("`patchctl ")[2].partition("`")[0]))
    begin(made, *only, code=4)
    assert "greeter" in json.loads((made.root / "edit/.bump.json").read_text())["stacks"]


def test_a_stack_that_is_pinned_alone_has_not_arrived(made: Made) -> None:
    conflict(made)
    made.good("pin", "clock", "v4")
    begin(made, code=4)
    made.good("rebase", "--dir", str(tree_of(made, "clock")), "--abort")
    bump(made, "--continue", code=4)


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (("2001.01", "--to", "2001.01"), "release 2001.01 is there already"),
        (("2001.01", "--to", "../x"), "'../x' is no name of a release"),
        (("2001.03", "--to", "2001.04"), "no release '2001.03'"),
        (("2001.01", "--to", "2001.02", "--only", "verl"), "the release has no stack of verl"),
        (("2001.01", "--continue"), "--continue is for the bump under way"),
    ],
)
def test_what_cannot_be_bumped(args: tuple[str, ...], what: str, made: Made) -> None:
    error = bump(made, *args, code=2)["error"]
    assert what in error["what"] and error["file"] is None


def test_a_killed_bump_goes_on(made: Made) -> None:
    both_go_on(made)
    saved = shutil.copytree(made.root, made.root.with_name("saved"))
    command = ("bump", "2001.01", "--to", "2001.02", "--no-prove")
    begin(made, code=20)  # sources and results are in the cache from here on
    result = distribution(made)

    def killed_afresh(at: int) -> tuple[int, int]:
        shutil.rmtree(made.root)
        shutil.copytree(saved, made.root)
        return killed(made, at, *command)

    code, total = killed_afresh(0)
    assert code == 20 and total > 40
    for at in points(total, POINTS)[1:-1]:
        assert killed_afresh(at)[0] == -9
        done = made.patchctl(*(["bump", "--continue"] if (made.root / "edit/.bump.json").exists() else command))
        assert done.returncode in (20, 2), done.stderr
        assert "is there already" in done.stderr if done.returncode == 2 else True  # killed when all was done
        assert distribution(made) == result, at


LOUD = {
    "import os\n": 'import os\n\nLOUD = int(os.environ.get("GREETER_LOUD", "1"))\n',
    "return hello(": "return LOUD * hello(",
}
STEP = """
import pathlib, pytest
@pytest.fixture
def ticks(request):
    return pathlib.Path(request.config.getoption("--trees"), "clock/clock/tick.py").read_text()
@pytest.mark.on
def test_need(ticks):
    assert "step=1" in ticks
@pytest.mark.off
def test_rest(ticks):
    assert "count" in ticks
"""
STEP_TEST = "patches/clock/v2/step/tests/test_step.py"
STEP_MUTANT = "file: clock/tick.py\nwhy: the size goes\nreplace: step=1\nwith: step=2\n"
BUMP = ("bump", "2001.01", "--to", "2001.02", "--only", "greeter@v1.5", "--only", "clock@v3", "--branch")


def with_every_stop(made: Made) -> None:
    """loud is upstream's by now, step is in conflict, and its test is red."""
    taken = GREETER.files[HELLO]
    for old, new in LOUD.items():
        taken = taken.replace(old, new, 1)
    goes_on(made, "greeter", "v1.5", {HELLO: taken})
    goes_on(made, "clock", "v3", {TICK: CLOCK.files[TICK].replace("return count + 1", "return 1 + count")})
    tests = {STEP_TEST: STEP.replace("step=1", "step=0"), "patches/clock/v2/step/mutants/step.yaml": STEP_MUTANT}
    write_files(made.root, {"conftest.py": CONFTEST, **tests})


def what_a_person_does(made: Made) -> Iterator[tuple[str, ...]]:
    """The commands from where a bump stands to its end, with the work at its stops done before each."""
    while (made.root / "edit/.bump.json").exists():
        for upstream in ("greeter", "clock"):
            tree = str(tree_of(made, upstream))
            status = made.patchctl("rebase", "--status", "--dir", tree, "--json")
            stop = json.loads(status.stdout)["stopped_at"] if status.returncode == 0 else None
            if stop is not None and stop["kind"] == "empty":
                yield ("rebase", "--skip", "--dir", tree)
            elif stop is not None:
                resolve(made)
        report = made.root / "edit/bump-2001.02.md"
        red = report.read_text().partition("## Red proofs")[2] if report.exists() else ""
        if "step@clock: " in red:
            write_files(made.root, {STEP_TEST: STEP})
        yield ("bump", "--continue", *(["--no-prove"] if red and "step@clock: " not in red else []))


def test_a_bump_with_every_stop_is_killed_at_each_of_its_stages(made: Made) -> None:
    """Six runs of patchctl on a branch, from a release to the next; each is killed twice, and a person goes on to the end."""
    with_every_stop(made)
    in_git(made)
    runs: list[tuple[Path, tuple[str, ...]]] = []
    codes = []
    for command in itertools.chain([BUMP], what_a_person_does(made)):
        before = shutil.copytree(made.root, made.root.with_name(f"before-{len(runs)}"), symlinks=True)
        runs.append((before, command))
        codes.append(made.patchctl(*command).returncode)
    assert codes == [4, 20, 4, 20, 20, 20]  # loud is left out, step in conflict, then red, then others have no tests
    result = distribution(made)
    for before, command in runs:
        total = killed_from(before, made, 0, *command)[1]  # now that the cache has all of it
        for at in (total // 3, total * 9 // 10):
            assert killed_from(before, made, at, *command)[0] == -9
            for more in what_a_person_does(made) if (made.root / "edit/.bump.json").exists() else [BUMP]:
                made.patchctl(*more)
            assert distribution(made) == result, (command, at, total)
            assert branch_of(made) == "bump/2001.02" and not git(made.root, "status", "--short"), (command, at, total)


def killed_from(before: Path, made: Made, at: int, *command: str) -> tuple[int, int]:
    shutil.rmtree(made.root)
    shutil.copytree(before, made.root, symlinks=True)
    return killed(made, at, *command)


def in_git(made: Made) -> Made:
    """The distribution as a repository, with the work trees not ignored."""
    git(made.root, "init", "--quiet", "--initial-branch=main")
    for key, value in (("name", "A Maintainer"), ("email", "maintainer@example.com")):
        git(made.root, "config", f"user.{key}", value)
    git(made.root, "add", "--all")
    git(made.root, "commit", "--quiet", "-m", "the distribution")
    return made


def branch_of(made: Made) -> str:
    return git(made.root, "branch", "--show-current").strip()


def subjects(made: Made, names: str) -> list[str]:
    return git(made.root, "log", "--format=%s, by %an", names).splitlines()


BEGUN, DONE = "as far as `patchctl bump` came, by A Maintainer", "as `patchctl bump` made it, by A Maintainer"


def test_a_branch_holds_what_it_does(made: Made) -> None:
    conflict(in_git(made))
    before = distribution(made)
    assert begin(made, "--branch", code=4)["branch"] == branch_of(made) == "bump/2001.02"
    assert subjects(made, "main..") == [f"Release 2001.02, {BEGUN}"]
    assert "stacks/greeter/v1.5.yaml" in git(made.root, "show", "--stat=200") and not git(made.root, "status", "-s")
    resolve(made)
    assert bump(made, "--continue", code=20)["branch"] == "bump/2001.02"
    assert subjects(made, "main..") == [f"Release 2001.02, {DONE}", f"Release 2001.02, {BEGUN}"]
    assert not git(made.root, "status", "-s") and "2001.02" in made.good("list", "releases")
    git(made.root, "switch", "--quiet", "main")
    assert distribution(made) == before


def test_a_stop_without_a_change_is_on_the_branch_too(made: Made) -> None:
    """A request needs a commit of its own."""
    conflict(in_git(made))
    begin(made, "--branch", "try", "--only", "clock", code=4)
    assert branch_of(made) == "try" and subjects(made, "main..") == [f"Release 2001.02, {BEGUN}"]


@pytest.mark.parametrize("detached", [False, True])
def test_giving_up_goes_back_to_where_it_came_from(detached: bool, made: Made) -> None:
    conflict(in_git(made))
    git(made.root, *(("switch", "--quiet", "--detach") if detached else ("switch", "--quiet", "--create", "own")))
    begin(made, "--branch", code=4)
    made.edit("manifests/upstreams.yaml", "The clock.", "A clock.")
    assert "what has arrived stays on branch bump/2001.02" in made.good("bump", "--abort")
    assert (
        branch_of(made) == ("" if detached else "own")
        and "The clock." in (made.root / "manifests/upstreams.yaml").read_text()
    )
    assert "A clock." in git(made.root, "show", "bump/2001.02:manifests/upstreams.yaml")
    assert git(made.root, "rev-parse", "HEAD") == git(made.root, "rev-parse", "main")


def test_it_goes_on_on_its_branch_alone(made: Made) -> None:
    conflict(in_git(made))
    begin(made, "--branch", code=4)
    resolve(made)
    git(made.root, "switch", "--quiet", "main")
    write_files(made.root, {"note.txt": "mine"})
    error = bump(made, "--continue", code=2)["error"]
    assert error["what"] == "the distribution has changes that are in no commit: note.txt" and branch_of(made) == "main"
    git(made.root, *shlex.split(error["hint"].partition("`git ")[2].partition("`")[0]))
    assert bump(made, "--continue", code=20)["status"] == "done" and branch_of(made) == "bump/2001.02"
    assert not (made.root / "note.txt").exists() and "note.txt" in git(made.root, "show", "--stat", "stash^3")


def test_where_no_branch_can_be(made: Made) -> None:
    both_go_on(made)
    said = begin(made, "--branch", code=2)["error"]
    assert said["what"].startswith("the distribution is not in git: ") and "`git init`" in said["hint"]
    in_git(made)
    git(made.root, "branch", "bump/2001.02")
    said = begin(made, "--branch", code=2)["error"]
    assert said["what"] == "branch bump/2001.02 is there already" and "`git branch -D bump/2001.02`" in said["hint"]
    assert "git cannot commit to a branch 'a..b'" in begin(made, "--branch", "a..b", code=2)["error"]["what"]
    assert "2001.01 is a release" in bump(made, "--branch", "2001.01", code=2)["error"]["what"]
    made.edit("manifests/upstreams.yaml", "The clock.", "A clock.")
    said = begin(made, "--branch=other", code=2)["error"]
    assert said["what"].endswith(": manifests/upstreams.yaml") and "`git stash --include-untracked`" in said["hint"]
    assert not (made.root / "edit/.bump.json").exists() and branch_of(made) == "main"
    git(made.root, "stash")
    assert begin(made, "--branch=other", code=20)["branch"] == "other"
    assert "--continue is for" in bump(made, "--continue", "--branch", code=2)["error"]["what"]
