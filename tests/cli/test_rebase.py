"""`rebase`: patches on another revision, with git, a person where it stops, and nothing lost by a kill or an abort."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GIT_ENV, GREETER, Made, Patch, git, make_distribution, run_patchctl, write_files
from killing import killed, points
from on_disk import snapshot
from test_drift import sdist
from test_prove import CONFTEST, MUTATION

from patchctl.catalog.evidence import EvidenceRecord, Proof, read_record, write_record

pytestmark = pytest.mark.heavy("whole rebases, killed at many points")

HELLO = "greeter/hello.py"
OLD = GREETER.files[HELLO]
AGAIN = {"README.md": "greeter, again\n"}
OTHER_WORDS = {HELLO: OLD.replace('"Helo, "', '"Hallo, "')}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    made = make_distribution(tmp_path / "made", (GREETER,), lock=True)
    git(made.origins / "greeter", "tag", "v1")
    manifest = made.root / "manifests/stacks/greeter/v1.yaml"
    manifest.write_text(manifest.read_text().replace("patches:", "  tag: v1\npatches:"))
    return made


def goes_on(made: Made, files: Mapping[str, str | None], tag: str = "v2", subject: str = "the next one") -> str:
    """Upstream goes on, and tags it."""
    origin = made.origins / "greeter"
    write_files(origin, files)
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", subject)
    git(origin, "tag", tag)
    return git(origin, "rev-parse", "HEAD").strip()


def rebase(made: Made, *args: str, code: int = 0) -> dict[str, Any]:
    done = made.patchctl("rebase", *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def begin(made: Made, *args: str, code: int = 0) -> dict[str, Any]:
    return rebase(made, "greeter/v1", "--to", "v2", *args, code=code)


def edit_folder(made: Made) -> Path:
    return made.cache.parent / "home/edit"


def tree_of(made: Made) -> Path:
    return edit_folder(made) / "greeter-v2"


def distribution(made: Made) -> dict[str, tuple[str, str]]:
    """All of it but what people resolved."""
    return {p: s for p, s in snapshot(made.root).items() if p != "edit" and not p.startswith("edit/")}


def patch_of(made: Made, feature: str) -> str:
    (found,) = (made.root / "patches/greeter/v2").rglob(f"*-{feature}.patch")
    return found.read_text()


def resolve(made: Made, text: str = '"Hello, "', path: str = HELLO) -> None:
    """Settle a conflict in one line: the file without the conflict's other side, with this greeting."""
    file = tree_of(made) / path
    lines, side = [], ""
    for line in file.read_text().splitlines(keepends=True):
        if line[:7] in ("<<<<<<<", "=======", ">>>>>>>"):
            side = {"<": "ours", "=": "theirs", ">": ""}[line[0]]
        elif side != "ours":
            lines.append(line.replace('"Hello, "', text))
    file.write_text("".join(lines))


def outcomes(found: dict[str, Any]) -> dict[str, str]:
    return {s["feature"]: s["outcome"] for s in found["steps"]}


def builds(made: Made, hello: str = HELLO) -> str:
    """Verified and applied: the text of the patched file."""
    profile = made.root / "manifests/profiles/full.yaml"
    profile.write_text(profile.read_text().replace("greeter: v1", "greeter: v2"))
    made.good("lock")
    made.good("verify")
    workspace = made.root.parent / "ws"
    made.good("apply", "--profile", "full", "--workspace", str(workspace))
    return (workspace / "greeter" / hello).read_text()


def test_all_of_it_arrives(made: Made) -> None:
    commit = goes_on(made, AGAIN)
    found = begin(made)
    assert found["status"] == "done" and outcomes(found) == {"typo": "clean", "polite": "clean", "loud": "clean"}
    assert found["locked"] is True and found["unproven"].keys() == {"typo", "polite", "loud"}
    assert commit in (made.root / "manifests/stacks/greeter/v2.yaml").read_text()
    here, there = made.root / "patches/greeter/v1", made.root / "patches/greeter/v2"
    assert snapshot(here) == snapshot(there)
    assert "1:" in Path(found["range_diff"]).read_text() and "LOUD" in builds(made)
    assert "nothing differs" in made.good("export", "greeter/v2", "--dir", str(tree_of(made)))


def test_what_is_not_asked_of_imported_patches_comes_along(made: Made) -> None:
    goes_on(made, AGAIN)
    line = 'unlinted:\n  no-trailing-blanks: "As their project has them."\n'
    with (made.root / "manifests/stacks/greeter/v1.yaml").open("a") as manifest:
        manifest.write(line)
    begin(made)
    assert line in (made.root / "manifests/stacks/greeter/v2.yaml").read_text()


def test_it_ends_as_what_is_stale_is_proven(made: Made) -> None:
    """10 is what records of the new stack show, of the very patches that it now has."""
    from patchctl.manifest.distribution import Distribution
    from patchctl.stack.plan import load_patches

    commit = goes_on(made, {HELLO: OLD.replace('"""Says hello."""\n', '"""Says hello."""\n\n# a line\n')})
    found = begin(made, code=20)
    assert (
        found["verdict"] == 20 and found["status"] == "done" and found["unproven"].keys() == {"typo", "polite", "loud"}
    )
    dist = Distribution.load(made.root)
    for patch in load_patches(dist, dist.stack("greeter", "v2")):
        proof = Proof(commit, patch.change_digest, {}, {}, {}, {}, "2026-11-23")
        write_record(made.root, EvidenceRecord("greeter", "v2", patch.feature, proof))
    assert made.patchctl("drift", "greeter/v1", "--against", "v2").returncode == 10
    (made.root / "manifests/stacks/greeter/v2.yaml").unlink()
    for file in (made.root / "patches/greeter/v2").rglob("*"):
        if file.is_file() and file.name != "evidence.json":
            file.unlink()
    shutil.rmtree(edit_folder(made))
    found = begin(made, code=10)
    assert found["verdict"] == 10 and found["unproven"] == {}
    other = Proof("1" * 40, patch.change_digest, {}, {}, {}, {}, "2026-11-23")
    write_record(made.root, EvidenceRecord("greeter", "v2", patch.feature, other))
    drifted = json.loads(made.patchctl("drift", "greeter/v1", "--against", "v2", "--json").stdout)
    assert drifted["verdict"] == 20 and "another pin" in json.dumps(drifted)


def test_what_was_made_anew_there_and_proven_is_settled(made: Made) -> None:
    """`drift` asks the stack of that release: a conflict that somebody resolved and proved is nobody's work."""
    from patchctl.manifest.distribution import Distribution
    from patchctl.stack.plan import load_patches

    commit = goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    rebase(made, "--continue", code=20)
    assert made.patchctl("drift", "greeter/v1", "--against", "v2").returncode == 20
    dist = Distribution.load(made.root)
    for patch in load_patches(dist, dist.stack("greeter", "v2")):
        write_record(
            made.root,
            EvidenceRecord("greeter", "v2", patch.feature, Proof(commit, patch.change_digest, {}, {}, {}, {}, "2026")),
        )
    done = made.patchctl("drift", "greeter/v1", "--against", "v2", "-v")
    assert done.returncode == 10 and "made anew and proven there" in done.stdout, done.stdout


ON = """
import pytest
@pytest.mark.on
def test_need(code):
    names = {}
    exec(code, names)
    assert names["hello"]("you") == "Hello, you"
@pytest.mark.off
def test_rest(code):
    assert "def shout" in code
"""


KIND = """
import pathlib, pytest
@pytest.mark.on
def test_need(code, request):
    names = {}
    exec(pathlib.Path(request.config.getoption("--trees"), "greeter/greeter/kind.py").read_text(), names)
    assert names["kind"]("you") == "you, please"
@pytest.mark.off
def test_rest(code):
    assert "def shout" in code
"""
CHIME = """
import pathlib, pytest
@pytest.mark.on
def test_need(code, request):
    file = pathlib.Path(request.config.getoption("--trees"), "clock/clock/chime.py")
    assert file.is_file() and "kind('you')" in file.read_text()
@pytest.mark.off
def test_rest(code):
    assert "def shout" in code
"""
KINDLY = "def kind(text):\n    # Here\n    # people\n    # ask.\n    return text\n"
LOUD = {HELLO: OLD.replace("Helo", "Hello").replace("return hello(name).upper()", "return 3 * hello(name).upper()")}


@pytest.fixture
def tested(tmp_path: Path) -> Made:
    """One feature with its tests, proven where it is."""
    made = make_distribution(tmp_path / "made", (replace(GREETER, patches=GREETER.patches[:1]),), lock=True)
    (made.root / "manifests/profiles/plain.yaml").unlink(missing_ok=True)
    write_files(
        made.root,
        {
            "conftest.py": CONFTEST,
            "patches/greeter/v1/typo/tests/test_typo.py": ON,
            "patches/greeter/v1/typo/mutants/typo.yaml": MUTATION,
        },
    )
    return made


def test_proofs_are_run_at_the_end(tested: Made) -> None:
    """On the new stack, which no profile has yet: the one that has the old stack gives the other trees."""
    goes_on(tested, {HELLO: OLD.replace('"""Says hello."""\n', '"""Says hello."""\n\n# a line\n')})
    found = begin(tested, "--prove", code=10)
    assert found["verdict"] == 10 and outcomes(found) == {"typo": "clean"} and not (found["unproven"] or found["open"])
    record = read_record(tested.root, "greeter", "v2", "typo")
    assert record is not None and record.tests is not None and record.tests.trees["greeter"].startswith("v2 git ")
    assert tested.patchctl("drift", "greeter/v1", "--against", "v2").returncode == 10


def test_the_release_of_the_shell_keeps_no_stack_from_being_proven(tested: Made) -> None:
    """PATCHCTL_RELEASE is of profiles: the stack that a rebase makes is in no release yet, and drift's copy of it neither."""
    goes_on(tested, {HELLO: OLD.replace('"""Says hello."""\n', '"""Says hello."""\n\n# a line\n')})
    write_files(
        tested.root,
        {
            "manifests/releases/2001.02.yaml": 'schema: 1\nname: "2001.02"\nsummary: One.\nstacks: {greeter: v1}\n',
            "manifests/profiles/full.yaml": 'schema: 1\nname: full\nsummary: On it.\nreleases: {"2001.02": {}}\n',
        },
    )
    shell = {"PATCHCTL_RELEASE": "2001.02"}
    done = tested.patchctl("drift", "greeter", "--prove", "--against", "v2", env=shell)
    assert done.returncode == 10, done.stdout
    done = tested.patchctl("rebase", "greeter/v1", "--to", "v2", "--prove", "--json", env=shell)
    assert done.returncode == 10 and json.loads(done.stdout)["unproven"] == {}, done.stdout
    assert "1 proven" in tested.good("prove", "--all", "--stack", "greeter/v2", env=shell)


def test_a_patch_that_arrives_and_does_not_work_is_broken(tested: Made) -> None:
    goes_on(tested, {HELLO: OLD + "\n\n_hello = hello\n\n\ndef hello(name):\n    return _hello(name).lower()\n"})
    found = begin(tested, code=20)
    assert outcomes(found) == {"typo": "clean"} and found["open"] == []
    shutil.rmtree(tested.root / "patches/greeter/v2")
    (tested.root / "manifests/stacks/greeter/v2.yaml").unlink()
    shutil.rmtree(edit_folder(tested))
    found = begin(tested, "--prove", code=20)
    (said,) = found["open"]
    assert said.startswith("typo is broken: patched: on test_need failed: AssertionError"), said
    assert outcomes(found) == {"typo": "clean"} and found["unproven"].keys() == {"typo"}
    assert not (tested.root / "patches/greeter/v2/typo/evidence.json").exists()


def test_drift_proves_what_arrives_and_writes_nothing(tested: Made) -> None:
    moved = OLD.replace('"""Says hello."""\n', '"""Says hello."""\n\n# a line\n')
    goes_on(tested, {HELLO: moved})
    goes_on(
        tested, {HELLO: moved + "\n\n_hello = hello\n\n\ndef hello(name):\n    return _hello(name).lower()\n"}, tag="v3"
    )
    before = snapshot(tested.root)
    args = ("drift", "greeter", "--prove", "--json", "--against")
    done = tested.patchctl(*args, "v2")
    (typo,) = json.loads(done.stdout)["stacks"][0]["releases"][0]["patches"]
    assert done.returncode == 10 and (typo["state"], typo["proof"], typo["broken"]) == ("moved", None, False), (
        done.stderr
    )
    done = tested.patchctl(*args, "v3")
    (typo,) = json.loads(done.stdout)["stacks"][0]["releases"][0]["patches"]
    assert done.returncode == 20 and typo["state"] == "moved" and typo["broken"]
    assert typo["proof"].startswith("patched: on test_need failed: AssertionError"), typo["proof"]
    assert (
        "broken there: patched: on test_need"
        in tested.patchctl("drift", "greeter", "--prove", "--against", "v3", "-v").stdout
    )
    assert snapshot(tested.root) == before and not edit_folder(tested).exists()


def test_drift_proves_beside_what_is_lost_and_what_requires_it(tmp_path: Path) -> None:
    """`typo` is lost, so is what requires it here (`loud`) and elsewhere (`step`); `polite` arrives, and a file of clock calls it."""
    polite = Patch(
        "polite", {"greeter/kind.py": KINDLY.replace("return text", 'return text + ", please"')}, "kind: say please"
    )
    greeter = replace(
        GREETER,
        files={**GREETER.files, "greeter/kind.py": KINDLY},
        patches=(GREETER.patches[0], polite, replace(GREETER.patches[2], edits=LOUD)),
    )
    calls = {"clock/chime.py": "from greeter.kind import kind\n\n\ndef chime():\n    return kind('you')\n"}
    chime = Patch("chime", {"clock/__init__.py": "CHIMES = True\n"}, "clock: chime", carries=calls)
    made = make_distribution(tmp_path / "made", (greeter, replace(CLOCK, patches=(*CLOCK.patches, chime))), lock=True)
    (made.root / "manifests/profiles/plain.yaml").unlink()
    kind = "file: greeter/kind.py\nwhy: it asks\nreplace: please\nwith: thanks\n"
    bell = "file: clock/chime.py\nwhy: it asks\nreplace: kind('you')\nwith: None\n"
    write_files(
        made.root,
        {
            "conftest.py": CONFTEST,
            "patches/greeter/v1/polite/tests/test_polite.py": KIND,
            "patches/greeter/v1/polite/mutants/polite.yaml": kind,
            "patches/clock/v2/chime/tests/test_chime.py": CHIME,
            "patches/clock/v2/chime/mutants/chime.yaml": bell,
        },
    )
    goes_on(made, {**OTHER_WORDS, "greeter/kind.py": KINDLY.replace("(text)", "(text, softly=True)")})
    done = made.patchctl("drift", "greeter", "--prove", "--json", "--against", "v2")
    release = json.loads(done.stdout)["stacks"][0]["releases"][0]
    found = {p["feature"]: (p["state"], p["proof"]) for p in release["patches"]}
    assert found["typo"][0] == "conflict" and found["polite"] == ("moved", None), (found, done.stderr)
    assert "requires typo" in found["loud"][1]
    assert [(c["feature"], c["proof"], c["broken"]) for c in release["callers"]] == [("chime", None, False)]
    assert done.returncode == 20


def test_a_conflict_keeps_the_wish_to_prove(tested: Made) -> None:
    goes_on(tested, OTHER_WORDS)
    begin(tested, "--prove", code=4)
    resolve(tested, '"Hello, "')
    git(tree_of(tested), "add", "--all")
    found = rebase(tested, "--continue", code=10)
    assert outcomes(found) == {"typo": "resolved"} and not (found["unproven"] or found["open"])


def test_what_is_dropped_is_asked_of_upstream(tested: Made) -> None:
    """Seen: a patch that was left out since its header named this release, and whose tests were red there."""
    goes_on(tested, OTHER_WORDS)
    begin(tested, "--prove", code=4)
    found = rebase(tested, "--skip", "--reason", "Upstream says it otherwise.", code=20)
    (said,) = found["open"]
    assert said.startswith(
        "typo was dropped, and its tests do not show that upstream meets its need: base: on test_need failed"
    ), said
    assert Path(found["range_diff"]).read_text().endswith(" < -:  ------- hello: spell the greeting right\n")
    goes_on(tested, {HELLO: OLD.replace("Helo", "Hello")}, "v3")
    found = rebase(tested, "greeter/v1", "--to", "v3", "--drop-upstreamed", "--prove", code=10)
    assert outcomes(found) == {"typo": "dropped"} and not found["open"]


def test_what_no_proof_could_be_made_of_is_not_begun(made: Made) -> None:
    goes_on(made, AGAIN)
    assert "has a folder tests/" in begin(made, "--prove", code=2)["error"]["what"]
    assert not edit_folder(made).exists()


def planned(made: Made, file: Path, *args: str) -> dict[str, Any]:
    made.patchctl("drift", "greeter/v1", "--against", "v2", "--save-plan", str(file), *args)
    found: dict[str, Any] = json.loads(file.read_bytes())
    return found


def test_a_plan_is_run_later_while_it_holds(made: Made, tmp_path: Path) -> None:
    commit = goes_on(made, AGAIN)
    file = tmp_path / "plan.json"
    found = planned(made, file)
    assert (found["stack"], found["release"], found["commit"]) == ("v1", "v2", commit)
    assert [(p["feature"], p["state"]) for p in found["patches"]] == [(f, "exact") for f in ("typo", "polite", "loud")]
    assert "--plan says" in rebase(made, "greeter/v1", "--plan", str(file), code=2)["error"]["what"]
    before = distribution(made)

    def refused(said: str) -> None:
        error = rebase(made, "--plan", str(file), code=2)["error"]
        assert said in error["what"], error["what"]
        assert "drift greeter/v1 --against v2 --save-plan FILE" in error["hint"]
        assert list(edit_folder(made).glob("*")) == []

    manners = made.root / "patches/greeter/v1/polite/files/greeter/manners.py"
    text = manners.read_text()
    manners.write_text(text + "# more\n")
    refused("polite has changed")
    manners.write_text(text)
    git(made.origins / "greeter", "tag", "--delete", "v2")
    other = goes_on(made, OTHER_WORDS)
    refused(f"v2 is commit {other} now, and was {commit}")
    refused("typo was exact (nobody has to work), and is conflict (someone has to work)")
    git(made.origins / "greeter", "tag", "--force", "v2", commit)
    assert distribution(made) == before
    found = rebase(made, "--plan", str(file))
    assert (found["from"], found["to"], found["status"]) == ("v1", "v2", "done")
    assert commit in (made.root / "manifests/stacks/greeter/v2.yaml").read_text()


def test_a_plan_that_is_none(made: Made, tmp_path: Path) -> None:
    goes_on(made, AGAIN)
    file = tmp_path / "mine.json"
    assert "not there" in rebase(made, "--plan", str(file), code=2)["error"]["what"]
    for text in ("", "[]", "{}", '{"schema": "patchctl.plan/1", "patches": []}'):
        file.write_text(text)
        assert "no plan" in rebase(made, "--plan", str(file), code=2)["error"]["what"]
        done = made.patchctl("drift", "greeter/v1", "--against", "v2", "--save-plan", str(file))
        assert done.returncode == 2 and "is no plan" in done.stderr and file.read_text() == text
    goes_on(made, {"other.py": "X = 1\n"}, tag="v3")
    done = made.patchctl("drift", "--matrix", "--save-plan", str(tmp_path / "plan.json"))
    assert done.returncode == 2 and "one stack on one revision" in done.stderr


def test_releases_that_no_form_has_all_of(tmp_path: Path) -> None:
    """The old one is on the package index alone, the new one in a repository alone."""
    made = make_distribution(tmp_path / "made", (replace(GREETER, sdist=(HELLO, "README.md")),), lock=True)
    shutil.rmtree(made.cache)  # which has the old one from its repository
    shutil.rmtree(made.origins / "greeter" / ".git")
    git(made.origins / "greeter", "init", "--quiet", "--initial-branch=main")
    goes_on(made, AGAIN)
    assert "has all of v1, v2" in begin(made, "--source", "git", code=3)["error"]["what"]
    found = begin(made)
    assert found["status"] == "done" and outcomes(found) == {"typo": "clean", "polite": "clean", "loud": "clean"}
    assert "LOUD" in builds(made)


def test_an_empty_stack_that_a_person_wrote_in_quotes_notes_where_it_comes_from(made: Made) -> None:
    goes_on(made, {"other.py": "OTHER = 1\n"})
    made.good("pin", "greeter", "v2")
    manifest = made.root / "manifests/stacks/greeter/v2.yaml"
    manifest.write_text(
        manifest.read_text().replace("\nname: v2\n", '\nname: "v2"  # ours\n').replace("comes_from: v1\n", "")
    )
    begin(made, code=0)
    assert '\nname: "v2"  # ours\ncomes_from: v1\n' in manifest.read_text()


def test_an_empty_stack_that_pin_made(made: Made) -> None:
    goes_on(made, AGAIN)
    made.good("pin", "greeter", "v2")
    assert begin(made)["status"] == "done"
    assert "already" in begin(made, code=2)["error"]["what"]


def test_a_conflict_is_the_users(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    before = distribution(made)
    found = begin(made, code=4)
    assert found["stopped_at"]["feature"] == "typo" and found["stopped_at"]["files"] == {
        HELLO: "both changed the same lines"
    }
    assert "<<<<<<<" in (tree_of(made) / HELLO).read_text() and distribution(made) == before
    assert git(tree_of(made), "status", "--porcelain", "--branch").splitlines() == ["## patchctl/v2", f"UU {HELLO}"]
    assert "in conflict still" in rebase(made, "--continue", code=4)["error"]["what"]
    git(tree_of(made), "add", "--all")
    assert "markers" in rebase(made, "--continue", code=4)["error"]["what"]
    resolve(made)
    assert rebase(made, "--continue", code=5)["error"]["files"] == [HELLO]  # not staged
    git(tree_of(made), "add", "--all")
    found = rebase(made, "--continue", code=20)
    assert outcomes(found) == {"typo": "resolved", "polite": "clean", "loud": "clean"}
    assert '-    text = "Hallo, " + name' in patch_of(made, "typo") and "Need: people ask" in patch_of(made, "typo")
    assert "From: patchctl <patchctl@localhost>\nDate: Sat, 21 Nov 2026" in patch_of(made, "typo")
    assert '"Hello, "' in builds(made)


def test_files_that_were_only_touched_are_no_edits(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    for name in (HELLO, "README.md"):
        os.utime(tree_of(made) / name, (1, 1))
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"


def test_git_alone_resolves_too(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    env = {**GIT_ENV, "GIT_EDITOR": "true"}
    subprocess.run(
        ["git", "-C", str(tree_of(made)), "cherry-pick", "--continue"], env=env, check=True, capture_output=True
    )
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"


def test_a_renamed_file_is_followed(made: Made) -> None:
    goes_on(made, {HELLO: None, "greeter/words.py": OLD})
    assert begin(made, code=20)["status"] == "done"
    assert "--- a/greeter/words.py" in patch_of(made, "typo") and "LOUD" in builds(made, "greeter/words.py")


def test_a_new_file_stays_where_the_patch_has_it(made: Made) -> None:
    """As `drift` says of it; git would have it follow the folder that upstream moved."""
    goes_on(
        made, {HELLO: None, "src/greeter/hello.py": OLD, "greeter/__init__.py": None, "src/greeter/__init__.py": ""}
    )
    assert made.patchctl("drift", "greeter/v1", "--against", "v2").returncode == 20
    assert outcomes(begin(made, code=20)) == {"typo": "clean", "polite": "clean", "loud": "clean"}
    assert (tree_of(made) / "greeter/manners.py").is_file()


@pytest.mark.parametrize("way", ["continue", "skip", "abort"])
def test_a_head_that_was_set_back_behind_what_has_arrived(made: Made, way: str) -> None:
    goes_on(made, {**AGAIN, "greeter/manners.py": "def bow():\n    return 1\n"})
    before = distribution(made)
    assert begin(made, code=4)["stopped_at"]["feature"] == "polite"
    git(tree_of(made), "reset", "--hard", "HEAD~1")
    if way == "continue":
        (tree_of(made) / HELLO).write_text("mine\n")
        assert HELLO in str(rebase(made, "--continue", code=5)["error"])
        git(tree_of(made), "checkout", HELLO)
        assert rebase(made, "--continue", code=4)["stopped_at"]["feature"] == "polite"
    elif way == "skip":
        assert outcomes(rebase(made, "--skip", "--reason", "no", code=20))["typo"] == "clean"
    else:
        rebase(made, "--abort")
        assert distribution(made) == before


def test_a_text_about_conflicts_has_markers_of_its_own(made: Made) -> None:
    text = '\n\nMARKS = """\n<<<<<<< HEAD\n>>>>>>> theirs\n"""\n'
    goes_on(made, {HELLO: OTHER_WORDS[HELLO] + text})
    begin(made, code=4)
    git(tree_of(made), "add", "--all")
    assert "markers" in rebase(made, "--continue", code=4)["error"]["what"]
    (tree_of(made) / HELLO).write_text(OLD.replace('"Helo, "', '"Hello, "') + text)
    git(tree_of(made), "add", "--all")
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"


def test_what_upstream_has_is_named_with_its_commit(made: Made) -> None:
    fixed = goes_on(made, {HELLO: OLD.replace("Helo", "Hello")}, tag="v1.5", subject="spell it right")
    goes_on(made, AGAIN)
    found = begin(made, code=4)
    assert found["stopped_at"]["kind"] == "empty" and f"{fixed[:7]} spell it right" in found["stopped_at"]["reason"]
    found = rebase(made, "--skip", code=20)
    assert outcomes(found) == {"typo": "dropped", "polite": "clean", "loud": "clean"}
    assert found["open"] == ["loud requires typo, which was dropped: take the line `Requires:` out, or leave both out"]
    manifest = (made.root / "manifests/stacks/greeter/v2.yaml").read_text()
    assert f'  typo: "upstream has it at v2: {fixed[:7]}' in manifest
    assert sorted(p.name for p in (made.root / "patches/greeter/v2").rglob("*.patch")) == [
        "0001-feature-polite.patch",
        "0002-feature-loud.patch",
    ]
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    assert {f["rule"] for f in report["findings"] if f["severity"] == "error"} == {"requires-known"}


def test_what_upstream_took_unchanged_is_named_by_its_patch_id(made: Made) -> None:
    """The line stood elsewhere before, and the lines around were changed since: neither a search nor taking it back tells."""
    elsewhere = OLD + '\n\ndef other(name):\n    text = "Hello, " + name\n    return text\n'
    goes_on(made, {HELLO: elsewhere}, tag="v1.1", subject="another one")
    fixed = elsewhere.replace("Helo", "Hello")
    commit = goes_on(made, {HELLO: fixed}, tag="v1.2", subject="spell it right")
    around = fixed.replace("    return text\n\n\ndef shout", "    return text\n\n# loud\n\ndef shout")
    goes_on(made, {HELLO: around}, subject="and a remark")
    stop = begin(made, code=4)["stopped_at"]
    assert stop["kind"] == "empty" and f"{commit[:7]} spell it right" in stop["reason"], stop


def test_what_upstream_has_is_dropped_on_request(made: Made) -> None:
    goes_on(made, {HELLO: OLD.replace("Helo", "Hello")})
    begin(made, code=4)
    assert outcomes(rebase(made, "--continue", "--drop-upstreamed", code=20))["typo"] == "dropped"


def test_a_patch_is_left_out_with_a_reason_only(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    assert "why is typo dropped?" in rebase(made, "--skip", code=2)["error"]["what"]
    rebase(made, "--skip", "--reason", 'nobody\n needs it: "so"', code=4)  # polite builds on its line
    found = rebase(made, "--skip", "--reason", "with typo", code=20)
    assert found["dropped"] == {"typo": 'nobody needs it: "so"', "polite": "with typo"}
    assert found["files"] == ["0001-feature-loud.patch"]
    manifest = made.root / "manifests/stacks/greeter/v2.yaml"
    assert not [
        f
        for f in json.loads(made.patchctl("verify", "--static", "--json").stdout)["findings"]
        if f["rule"] == "dropped"
    ]
    manifest.write_text(manifest.read_text().replace("  polite: ", "  pole: "))
    said = made.patchctl("verify", "--static").stdout
    assert "v1 has polite, and this stack has not" in said and "v1 has no such feature" in said


def test_a_conflict_that_leaves_nothing_of_the_patch_is_skipped_as_it_says(made: Made) -> None:
    """Upstream deleted the file: so does the user, and `--continue` made a commit of that itself."""
    goes_on(made, {HELLO: None})
    begin(made, code=4)
    git(tree_of(made), "rm", "--quiet", "--force", HELLO)
    found = rebase(made, "--continue", code=4)
    assert "nothing is left of typo" in json.dumps(found)
    rebase(made, "--skip", "--reason", "the file is gone", code=4)  # polite changes it too


def test_a_patch_is_left_for_later(made: Made) -> None:
    """What the manifest said of it before is said anew: a stack that was to get it later, and now gets it or not."""
    goes_on(made, OTHER_WORDS)
    made.good("pin", "greeter", "v2")
    manifest = made.root / "manifests/stacks/greeter/v2.yaml"
    later = "".join(
        f"  {feature}: {why}\n" for feature, why in (("typo", "to be read"), ("loud", ">-\n    nobody\n    has"))
    )
    manifest.write_text(manifest.read_text() + f"postponed:\n{later}  polite: with typo\n")
    assert not left_findings(made)
    begin(made, code=4)
    assert "why is typo postponed?" in rebase(made, "--defer", code=2)["error"]["what"]
    rebase(made, "--defer", "--reason", "waits for v2.1, which says Helo again", code=4)
    found = rebase(made, "--skip", "--reason", "with typo", code=20)
    assert found["dropped"] == {"polite": "with typo"} and outcomes(found)["typo"] == "postponed"
    assert found["postponed"] == {"typo": "waits for v2.1, which says Helo again"}
    assert manifest.read_text().count("postponed:") == 1 and "loud:" not in manifest.read_text()
    assert not left_findings(made)
    drifted = made.patchctl("drift", "greeter/v1", "--against", "v2", "-v")
    assert drifted.returncode == 20 and "postponed there: waits for v2.1" in drifted.stdout
    assert "left out there: with typo" in drifted.stdout
    (stack,) = [s for s in report(made)["stacks"] if s["stack"] == "v2"]
    assert (stack["dropped"], stack["postponed"]) == (found["dropped"], found["postponed"])
    page = (made.root / "page.html").read_text()
    assert "Not here yet</h4>" in page and "Dropped on the way here</h4>" in page and "says Helo again" in page
    manifest.write_text(manifest.read_text().replace("  typo: ", "  loud: "))
    said = left_findings(made)
    assert len(said) == 2 and "v1 has typo, and this stack has not" in said[0]
    assert said[1] == "`postponed:` names loud, and this stack has it"


def test_a_stop_says_what_is_new_and_what_was_left_out(tmp_path: Path) -> None:
    typo, polite, loud = GREETER.patches
    manners = {"greeter/manners.py": "def polite(text):\n    return text.lower()\n"}
    patches = (
        typo,
        replace(polite, edits={**polite.edits, **polite.carries}, carries={}),
        replace(loud, edits={**loud.edits, **manners}),
    )
    made = make_distribution(tmp_path / "made", (replace(GREETER, patches=patches),))
    # Upstream's own file like the one that is left out is none that it was renamed to.
    goes_on(made, OTHER_WORDS | {"greeter/court/manners.py": polite.carries["greeter/manners.py"]})
    drifted = json.loads(made.patchctl("drift", "greeter/v1", "--against", "v2", "--json").stdout)
    (row,) = drifted["stacks"][0]["releases"]
    assert {p["feature"]: p["state"] for p in row["patches"]}["loud"] == "conflict"
    begin(made, code=4)
    rebase(made, "--defer", "--reason", "later", code=4)
    stopped = made.patchctl("rebase", "--defer", "--reason", "with typo").stdout
    assert stopped.startswith("1 patch before, see patchctl rebase --status\npostponed polite: with typo\n")
    assert "typo: later" not in stopped
    assert "    greeter/manners.py: made by polite, which is postponed\n" in stopped
    status = made.good("rebase", "--status")
    assert status.startswith("postponed typo: later\npostponed polite: with typo\n")
    assert status.endswith(stopped[stopped.index("loud: git cannot") :])


def left_findings(made: Made) -> list[str]:
    report = json.loads(made.patchctl("verify", "--static", "--json").stdout)
    return [f["message"] for f in report["findings"] if f["rule"] == "dropped"]


def report(made: Made) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.good("report", "--out", str(made.root / "page.html"), "--force", "--json"))
    return found


def test_a_carried_file_meets_one_of_upstreams(made: Made) -> None:
    goes_on(made, {"greeter/manners.py": "def bow():\n    return 1\n"})
    found = begin(made, code=4)
    assert found["stopped_at"]["files"] == {"greeter/manners.py": "added by both"}
    theirs = "def bow():\n    return 1\n\n\ndef polite(text):\n    return text\n"
    (tree_of(made) / "greeter/manners.py").write_text(theirs)
    git(tree_of(made), "add", "--all")
    assert rebase(made, "--continue", code=20)["status"] == "done"
    assert "Carries" not in patch_of(made, "polite") and "+def polite(text):" in patch_of(made, "polite")


def test_what_a_carried_file_calls_is_checked(tmp_path: Path) -> None:
    """Upstream takes another argument by now; no hunk is near it."""
    calls = "from greeter.bows import bow\n\n\ndef polite(text):\n    return bow(text)\n"
    bows = "def bow(text):\n    return text\n"
    patch = replace(GREETER.patches[1], carries={"greeter/manners.py": calls})
    files = {**GREETER.files, "greeter/bows.py": bows}
    made = make_distribution(tmp_path / "made", (replace(GREETER, files=files, patches=(GREETER.patches[0], patch)),))
    goes_on(made, {"greeter/bows.py": "def bow(text, depth):\n    return text\n"})
    (said,) = begin(made, code=20)["open"]
    assert said.startswith("polite: greeter/manners.py:5 uses greeter.bows.bow, which was ") and "depth" in said


def test_release_by_release(made: Made) -> None:
    """Each release alone merges; what a release took is seen there."""
    goes_on(made, {HELLO: OLD.replace("Helo", "Hello")}, tag="v1.1", subject="spell it right")
    goes_on(
        made,
        {HELLO: OLD.replace("Helo", "Hello").replace('    text = "Hello, " + name\n', '    text = f"Hello, {name}"\n')},
        tag="v1.2",
    )
    goes_on(made, AGAIN)
    assert begin(made, code=4)["stopped_at"]["kind"] == "conflict"
    rebase(made, "--abort")
    found = begin(made, "--through", "all", "--drop-upstreamed", code=4)
    assert found["stages"] == ["v1.1", "v1.2", "v2"] and found["stage"] == "v1.2"
    assert "v1.1: " in found["dropped"]["typo"] and "spell it right" in found["dropped"]["typo"]
    file = tree_of(made) / HELLO
    text = file.read_text()
    head, _, rest = text.partition("<<<<<<< ")
    ours, theirs = (
        rest.partition("=======\n")[0].partition("\n")[2],
        rest.partition("=======\n")[2].partition(">>>>>>>")[0],
    )
    file.write_text(
        head + theirs.replace('    text = "Hello, " + name\n', ours) + rest.partition(">>>>>>> ")[2].partition("\n")[2]
    )
    git(tree_of(made), "add", "--all")
    found = rebase(made, "--continue", code=20)
    assert [(s["stage"], s["feature"], s["outcome"]) for s in found["steps"] if s["feature"] == "polite"] == [
        ("v1.1", "polite", "clean"),
        ("v1.2", "polite", "resolved"),
        ("v2", "polite", "clean"),
    ]


def test_what_upstream_took_back_again_comes_along(made: Made) -> None:
    goes_on(made, {HELLO: OLD.replace("Helo", "Hello")}, tag="v1.1", subject="spell it right")
    goes_on(made, {HELLO: OLD, **AGAIN}, subject="as it was")
    found = begin(made, "--through", "all", "--drop-upstreamed")
    last = {s["feature"]: s for s in found["steps"] if s["stage"] == "v2"}
    assert [*last] == ["typo", "polite", "loud"] and found["dropped"] == {}
    assert last["typo"]["outcome"] == "clean" and last["typo"]["notes"][0].startswith("v1.1 had it, and v2 has not")
    assert "Hello" in builds(made)


COUNT = "greeter/_generated_count.txt"
SCRIPT = "grep -c . greeter/hello.py > greeter/_generated_count.txt\n"


def counted(text: str) -> str:
    return f"{sum(1 for line in text.splitlines() if line.strip())}\n"


@pytest.fixture
def counting(tmp_path: Path) -> Made:
    """Upstream tracks a file that its own script makes; the patch changes it too."""
    polite = GREETER.patches[1].edits[HELLO]
    assert polite is not None
    files = {**GREETER.files, "make.sh": SCRIPT, COUNT: counted(OLD)}
    patch = replace(GREETER.patches[1], edits={HELLO: polite, COUNT: counted(polite)})
    made = make_distribution(tmp_path / "made", (replace(GREETER, files=files, patches=(patch,)),), lock=True)
    upstreams = made.root / "manifests/upstreams.yaml"
    how = "    regenerated: {prefix: greeter/_generated_, script: make.sh, needs: json}\n"
    upstreams.write_text(upstreams.read_text() + how)
    profile = made.root / "manifests/profiles/plain.yaml"
    profile.write_text(profile.read_text().replace(", loud", "").replace("loud, ", ""))
    longer = OLD + "\n\nMORE = 1\nAND_MORE = 2\n"
    goes_on(made, {HELLO: longer, COUNT: counted(longer)})
    return made


def test_what_upstreams_script_makes_is_made_anew(counting: Made) -> None:
    found = begin(counting, "--python", sys.executable, code=20)
    assert found["steps"][0]["outcome"] == "clean"
    assert found["steps"][0]["notes"] == [f"{COUNT}: made anew by upstream's script"]
    assert f"+{counted((tree_of(counting) / HELLO).read_text())}" in patch_of(counting, "polite")


def test_without_its_python_the_conflict_stays(counting: Made) -> None:
    found = begin(counting, "--python", "/nowhere/python", code=4)
    why = found["stopped_at"]["files"][COUNT]
    assert why.startswith("both changed the same lines; not made anew: /nowhere/python cannot be started")
    (tree_of(counting) / COUNT).write_text("as a person would\n")
    git(tree_of(counting), "add", "--all")
    found = rebase(counting, "--continue", "--python", sys.executable, code=20)
    assert found["steps"][0]["notes"] == [f"{COUNT}: made anew by upstream's script"]


SDIST = ("greeter/__init__.py", HELLO, COUNT)
CALLS = {
    "scripts/make.sh": "bash scripts/count.sh > greeter/_generated_count.txt\n",
    "scripts/count.sh": "grep -c . greeter/hello.py\n",
}


@pytest.fixture
def archived(tmp_path: Path) -> Made:
    """As `counting`, and the next version is on the index alone: no source distribution holds the script, nor what it calls."""
    polite = GREETER.patches[1].edits[HELLO]
    assert polite is not None
    patch = replace(GREETER.patches[1], edits={HELLO: polite, COUNT: counted(polite)})
    upstream = replace(GREETER, files={**GREETER.files, **CALLS, COUNT: counted(OLD)}, patches=(patch,), sdist=SDIST)
    made = make_distribution(tmp_path / "made", (upstream,), lock=True)
    how = "    regenerated: {prefix: greeter/_generated_, script: scripts/make.sh, needs: json}\n"
    (made.root / "manifests/upstreams.yaml").open("a").write(how)
    profile = made.root / "manifests/profiles/plain.yaml"
    profile.write_text(profile.read_text().replace(", loud", "").replace("loud, ", ""))
    # The new file is one line longer, and what upstream's script makes of it was not renewed: a merge would keep the patch's count.
    sdist(made, "2.0", {"greeter/__init__.py": "", HELLO: OLD + "\n\nMORE = 1\n", COUNT: counted(OLD)})
    return made


def begin_archived(made: Made, *args: str, code: int) -> dict[str, Any]:
    return rebase(made, "greeter/v1", "--to", "2.0", "--source", "sdist", *args, code=code)


def made_count(made: Made) -> str:
    (file,) = (made.root / "patches/greeter/v2.0").rglob("*-polite.patch")
    tree = edit_folder(made) / "greeter-v2.0"
    assert not (tree / "scripts").exists() and f"+{counted((tree / HELLO).read_text())}" in file.read_text()
    return file.read_text()


def test_a_script_that_the_source_lacks_is_the_old_pins(archived: Made) -> None:
    found = begin_archived(archived, "--python", sys.executable, code=20)
    assert found["steps"][0]["notes"] == [f"{COUNT}: made anew by upstream's script"]
    made_count(archived)


def test_without_the_script_anywhere_it_stops(archived: Made) -> None:
    """git merges the file without a conflict, and wrongly: nothing but a stop would say so."""
    (archived.origins / "greeter").rename(archived.origins / "away")
    shutil.rmtree(archived.cache)
    found = begin_archived(archived, "--python", sys.executable, code=4)
    (why,) = found["stopped_at"]["files"].values()
    assert why.startswith("not made anew: scripts/make.sh is not in this source"), why
    tree = edit_folder(archived) / "greeter-v2.0"
    assert (tree / COUNT).read_text() != counted((tree / HELLO).read_text())  # what a merge makes of it
    rebase(archived, "--abort")
    begin_archived(archived, "--python", sys.executable, code=4)
    (tree / COUNT).write_text(counted((tree / HELLO).read_text()))
    git(tree, "add", COUNT)
    found = rebase(archived, "--continue", code=20)
    assert found["steps"][0]["outcome"] == "resolved" and "as it was resolved" in found["steps"][0]["notes"][0]
    made_count(archived)


def test_a_script_that_cannot_run_stops_it_and_runs_after_all(archived: Made) -> None:
    found = begin_archived(archived, "--python", "/nowhere/python", code=4)
    assert "/nowhere/python cannot be started" in found["stopped_at"]["files"][COUNT]
    rebase(archived, "--abort")
    archived.edit("manifests/upstreams.yaml", "needs: json", "needs: of_nobody")
    found = begin_archived(archived, "--python", sys.executable, code=4)
    assert "has no of_nobody: name one that has with --python" in found["stopped_at"]["files"][COUNT]
    archived.edit("manifests/upstreams.yaml", "needs: of_nobody", "needs: json")
    found = rebase(archived, "--continue", code=20)
    assert found["steps"][0]["notes"] == [f"{COUNT}: made anew by upstream's script"]
    made_count(archived)


def test_an_abort_leaves_nothing_but_what_was_resolved(made: Made) -> None:
    goes_on(made, {**OTHER_WORDS, "greeter/manners.py": "def bow():\n    return 1\n"})
    before = distribution(made)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    assert rebase(made, "--continue", code=4)["stopped_at"]["feature"] == "polite"
    (tree_of(made) / "greeter/manners.py").write_text("half done\n")
    found = rebase(made, "--abort")
    assert distribution(made) == before and list(edit_folder(made).iterdir()) == []
    assert "+half done" in Path(found["aside"]).read_text()
    found = begin(made, code=4)
    assert outcomes(found) == {"typo": "replayed"} and found["stopped_at"]["feature"] == "polite"


def test_a_work_tree_behind_a_link_is_given_up_as_well(made: Made, tmp_path: Path) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    tree_of(made).rename(tmp_path / "elsewhere")
    tree_of(made).symlink_to(tmp_path / "elsewhere")
    rebase(made, "--abort")
    assert list(edit_folder(made).iterdir()) == [] and not (tmp_path / "elsewhere").exists()
    begin(made, code=4)


def test_what_was_mended_beside_a_conflict_comes_again(made: Made) -> None:
    """git remembers conflicts only; the rest of a resolution, and its message, are of the whole patch that was kept."""
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    (tree_of(made) / "README.md").write_text("mended too\n")
    git(tree_of(made), "add", "--all")
    text = git(tree_of(made), "log", "-1", "--format=%B", "CHERRY_PICK_HEAD").replace("\n\n", " for v2\n\n", 1)
    git(tree_of(made), "commit", "--quiet", "-m", text)
    rebase(made, "--continue", code=20)
    first = patch_of(made, "typo")
    assert "+mended too" in first and " for v2\n" in first
    for left in ("manifests/stacks/greeter/v2.yaml", "manifests/locks/greeter/v2.yaml"):
        (made.root / left).unlink(missing_ok=True)
    for left in (made.root / "patches/greeter/v2", tree_of(made)):
        shutil.rmtree(left)
    found = begin(made, code=20)
    assert outcomes(found)["typo"] == "replayed" and found["steps"][0]["notes"] == []
    assert patch_of(made, "typo") == first
    goes_on(made, {"more.txt": "of upstream's\n"}, "v3")
    found = rebase(made, "greeter/v1", "--to", "v3", code=20)
    assert outcomes(found)["typo"] == "replayed"
    assert found["steps"][0]["notes"] == ["its conflicts alone: what was mended beside them is not on this tree"]


def test_edits_elsewhere_are_not_lost(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    for name in ("README.md", "new.txt"):
        (tree_of(made) / name).write_text("mine\n")
    for args in (["--abort"], ["--skip", "--reason", "x"]):
        assert rebase(made, *args, code=5)["error"]["files"] == ["README.md", "new.txt"]
    git(tree_of(made), "checkout", "README.md")
    (tree_of(made) / "new.txt").unlink()
    git(tree_of(made), "branch", "mine")
    assert "refs/heads/mine" in rebase(made, "--abort", code=5)["error"]["files"]
    git(tree_of(made), "branch", "-D", "mine")
    rebase(made, "--abort")


def test_committed_with_the_message_that_git_offers(made: Made) -> None:
    """`git commit --no-edit` keeps the comments with which git ends a message after a conflict, behind the trailers."""
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    git(tree_of(made), "commit", "--quiet", "--no-edit")
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"
    assert "# Conflicts" not in patch_of(made, "typo")


def test_a_commit_with_markers_is_no_resolution(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    git(tree_of(made), "add", "--all")
    git(tree_of(made), "commit", "--quiet", "--no-edit")
    assert "markers" in rebase(made, "--continue", code=4)["error"]["what"]
    aside = rebase(made, "--abort")["aside"]
    assert "+<<<<<<<" in Path(aside).read_text()
    assert begin(made, code=4)["stopped_at"]["feature"] == "typo"  # not replayed with them
    resolve(made)
    git(tree_of(made), "add", "--all")
    git(tree_of(made), "commit", "--quiet", "--no-edit")
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"


def test_from_a_folder_of_the_distribution(made: Made) -> None:
    """Its own files stay its own; the work tree is found from there, and from above."""
    goes_on(made, OTHER_WORDS)

    def inside(*args: str) -> subprocess.CompletedProcess[str]:
        return run_patchctl(f"--cache={made.cache}", *args, home=made.root / "manifests")

    assert inside("rebase", "greeter/v1", "--to", "v2").returncode == 4
    assert (made.root / "edit/greeter-v2/.git").is_dir() and "git cannot merge" in inside("rebase", "--status").stdout
    for refused in (("apply", "--profile", "full"), ("edit", "greeter/v1", "--dir", "here")):
        done = inside(*refused)
        assert done.returncode == 2 and "among the files of the distribution" in done.stderr, done.stderr
    assert inside("rebase", "--abort").returncode == 0
    assert "greeter" in made.good("list", "stacks")


def test_what_belongs_to_another_step_is_refused(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    assert "--reason" in rebase(made, "--continue", "--reason", "so", code=2)["error"]["what"]
    assert "under way" in rebase(made, "--continue", "--name", "own", code=2)["error"]["what"]


def test_commits_of_others_are_refused(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    git(tree_of(made), "commit", "--quiet", "-m", "my own words")
    assert "is of feature None" in rebase(made, "--continue", code=2)["error"]["what"]
    git(tree_of(made), "commit", "--quiet", "--allow-empty", "-m", "another")
    assert "2 commits" in rebase(made, "--continue", code=2)["error"]["what"]


def test_one_at_a_time(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    assert "no rebase" in rebase(made, "--continue", code=2)["error"]["what"]
    begin(made, code=4)
    assert "under way" in begin(made, code=2)["error"]["what"]
    assert rebase(made, "--status")["stopped_at"]["feature"] == "typo"
    assert "edit/greeter-v2" in made.patchctl("rebase", "--status").stdout


def test_files_in_the_way_of_the_end(made: Made) -> None:
    goes_on(made, AGAIN)
    (edit_folder(made) / "greeter-v2").mkdir(parents=True)
    (edit_folder(made) / "greeter-v2" / "mine").write_text("mine")
    assert begin(made, code=5)["error"]["kind"] == "local-edits"


def test_killed_while_it_begins(made: Made) -> None:
    goes_on(made, OTHER_WORDS)
    before = distribution(made)
    line = ("greeter/v1", "--to", "v2")
    begin(made, code=4)  # the source is in the cache from here on
    back(made, before)
    code, total = killed(made, 0, "rebase", *line)
    assert code == 4 and total > 20
    back(made, before)
    for at in range(3, total, total // 5):
        assert killed(made, at, "rebase", *line)[0] == -9
        if under_way(made):
            rebase(made, "--abort")
        assert distribution(made) == before, at
        assert [p for p in edit_folder(made).glob("*") if not p.name.startswith(".")] == []
    assert killed(made, total // 2, "rebase", *line)[0] == -9  # and one that was left as it lay hinders nobody
    assert rebase(made, *(["--continue"] if under_way(made) else line), code=4)["stopped_at"]["feature"] == "typo"


@pytest.fixture
def stopped(made: Made) -> tuple[Made, bytes, int, dict[str, tuple[str, str]]]:
    """A rebase that has stopped; the file as it is mended, the points of `--continue`, and what that makes of the distribution."""
    goes_on(made, OTHER_WORDS)
    before = distribution(made)
    begin(made, code=4)
    resolve(made)
    mended = (tree_of(made) / HELLO).read_bytes()
    git(tree_of(made), "add", "--all")
    code, total = killed(made, 0, "rebase", "--continue")
    assert code == 20 and total > 30
    result = distribution(made)
    back(made, before)
    return made, mended, total, result


@pytest.mark.parametrize("way", ["back", "on"])
def test_killed_while_it_goes_on(stopped: tuple[Made, bytes, int, dict[str, tuple[str, str]]], way: str) -> None:
    made, mended, total, result = stopped
    before = distribution(made)
    for at in range(2 if way == "on" else 5, total, total // 6):
        begin(made, code=4)
        (tree_of(made) / HELLO).write_bytes(mended)
        git(tree_of(made), "add", "--all")
        assert killed(made, at, "rebase", "--continue")[0] == -9
        if way == "back" and under_way(made):
            rebase(made, "--abort")
            assert distribution(made) == before, at
            if list((made.root / "edit/.resolutions").rglob("postimage")):  # it was a commit before the kill
                assert outcomes(begin(made, code=20))["typo"] == "replayed", at
        if way == "on":
            if under_way(made) and made.patchctl("rebase", "--continue").returncode == 4:
                (tree_of(made) / HELLO).write_bytes(mended)  # killed before it was a commit, and the tree is as it was
                git(tree_of(made), "add", "--all")
                rebase(made, "--continue", code=20)
            made.good("lock", "--upstream", "greeter")
            assert distribution(made) == result, at
        back(made, before)


@pytest.fixture
def half(made: Made) -> Made:
    """A rebase that has stopped at its second patch, with the first one resolved and the second half mended."""
    goes_on(made, {**OTHER_WORDS, "greeter/manners.py": "def bow():\n    return 1\n"})
    begin(made, code=4)
    resolve(made)
    git(tree_of(made), "add", "--all")
    assert rebase(made, "--continue", code=4)["stopped_at"]["feature"] == "polite"
    (tree_of(made) / "greeter/manners.py").write_text("half done\n")
    return made


@pytest.fixture
def written(stopped: tuple[Made, bytes, int, dict[str, tuple[str, str]]]) -> Made:
    """A rebase whose end was killed when it had written a part of the new stack."""
    made, mended, total, _ = stopped
    before = distribution(made)
    for at in range(total, 0, -1):
        back(made, before)
        begin(made, code=4)
        (tree_of(made) / HELLO).write_bytes(mended)
        git(tree_of(made), "add", "--all")
        assert killed(made, at, "rebase", "--continue")[0] == -9
        if under_way(made) and any((made.root / "patches/greeter/v2").rglob("*.patch")):
            return made
    raise AssertionError("no point at which patches are written, and the rebase is under way")


@pytest.mark.parametrize("stage", ["half", "written"])
def test_killed_while_it_is_given_up(stage: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Another abort ends it, wherever the first one was killed; what was resolved is found again, what was half mended lies aside."""
    made: Made = request.getfixturevalue(stage)
    shutil.copytree(made.root, tmp_path / "root", symlinks=True)
    shutil.copytree(edit_folder(made), tmp_path / "edit", symlinks=True)
    tree = snapshot(tree_of(made) / "greeter")
    at_stop = distribution(made)

    def again() -> None:
        for place, kept in ((made.root, "root"), (edit_folder(made), "edit")):
            shutil.rmtree(place)
            shutil.copytree(tmp_path / kept, place, symlinks=True)

    code, total = killed(made, 0, "rebase", "--abort")
    before = distribution(made)
    assert code == 0 and total > 10 and (stage == "written") == (before != at_stop)
    for at in points(total, 10):
        again()
        assert killed(made, at, "rebase", "--abort")[0] == -9
        if tree_of(made).exists():  # as it was: nothing was given up yet
            assert snapshot(tree_of(made) / "greeter") == tree and distribution(made) == at_stop, at
        done = made.patchctl("rebase", "--abort")
        if done.returncode:  # it had been the end of it
            assert "no rebase is under way" in done.stderr, at
        assert distribution(made) == before, at
        assert [p for p in edit_folder(made).rglob("*") if p.is_file()] == [], at
        if stage == "half":
            (aside,) = (made.root / "edit/.resolutions/greeter").glob("aside-*.diff")
            assert "+half done" in aside.read_text(), at
    assert outcomes(begin(made, code=4 if stage == "half" else 20))["typo"] == "replayed"


def test_given_up_when_all_of_it_is_written(stopped: tuple[Made, bytes, int, dict[str, tuple[str, str]]]) -> None:
    """Killed behind the lock: the list of the new pin's files, which is written with it, goes too."""
    made, mended, total, result = stopped
    before = distribution(made)
    for at in range(total, 0, -1):
        back(made, before)
        begin(made, code=4)
        (tree_of(made) / HELLO).write_bytes(mended)
        git(tree_of(made), "add", "--all")
        if killed(made, at, "rebase", "--continue")[0] == -9 and under_way(made):
            break
    assert distribution(made) == result
    rebase(made, "--abort")
    assert distribution(made) == before


def under_way(made: Made) -> bool:
    return any(edit_folder(made).glob("*/.git/patchctl-rebase.json")) or any(
        edit_folder(made).glob(".*/.git/patchctl-rebase.json")
    )


def back(made: Made, before: dict[str, tuple[str, str]]) -> None:
    """The distribution and edit/ as they were before the rebase."""
    for path in sorted(distribution(made).keys() - before.keys(), reverse=True):
        place = made.root / path
        place.rmdir() if place.is_dir() else place.unlink()
    shutil.rmtree(edit_folder(made), ignore_errors=True)
    shutil.rmtree(made.root / "edit", ignore_errors=True)
    assert distribution(made) == before


# What a person does in the tree, or a kill, must not keep a rebase from its end


def stopping(made: Made) -> Path:
    goes_on(made, OTHER_WORDS)
    begin(made, code=4)
    return tree_of(made)


def ends(made: Made) -> None:
    resolve(made)
    git(tree_of(made), "add", "--all")
    assert outcomes(rebase(made, "--continue", code=20)) == {"typo": "resolved", "polite": "clean", "loud": "clean"}
    assert git(tree_of(made), "for-each-ref", "refs/patchctl/rebase/") == ""


@pytest.mark.parametrize("verb", [("--skip", "--reason", "no"), ("--defer", "--reason", "no"), ("--abort",)])
def test_the_lock_of_a_killed_git_of_ours_is_no_obstacle(made: Made, verb: tuple[str, ...]) -> None:
    tree = stopping(made)
    (tree / HELLO).write_text("HALF = 1\n")
    (tree / ".git/index.patchctl-snapshot.lock").write_bytes(b"")
    assert made.patchctl("rebase", *verb, "--dir", str(tree)).returncode in (0, 4, 20)


def test_a_collection_takes_nothing_that_is_still_to_come(made: Made) -> None:
    tree = stopping(made)
    git(tree, "repack", "-adq")
    git(tree, "reflog", "expire", "--expire=now", "--all")
    git(tree, "gc", "--quiet", "--prune=now")
    ends(made)


def test_resolutions_that_were_deleted(made: Made) -> None:
    stopping(made)
    shutil.rmtree(made.root / "edit/.resolutions")
    ends(made)


def test_a_lock_that_cannot_be_written_is_made_by_the_next_run(made: Made) -> None:
    """As with a run that was killed there: it is under way still, and can be given up as well."""
    stopping(made)
    in_the_way = made.root / "manifests/locks/greeter/.v2.json.new"
    in_the_way.mkdir(parents=True)
    resolve(made)
    git(tree_of(made), "add", "--all")
    done = made.patchctl("rebase", "--continue", "--dir", str(tree_of(made)))
    assert done.returncode not in (0, 20) and not in_the_way.with_name("v2.json").exists()
    in_the_way.rmdir()
    assert outcomes(rebase(made, "--continue", code=20))["typo"] == "resolved"
    assert in_the_way.with_name("v2.json").exists()


@pytest.mark.parametrize("verb", [("--skip", "--reason", "no"), ("--defer", "--reason", "no"), ("--abort",)])
@pytest.mark.parametrize("new", [True, False])
def test_what_is_staged_and_nowhere_else_is_asked_for(made: Made, verb: tuple[str, ...], new: bool) -> None:
    tree = stopping(made)
    file = tree / ("n.txt" if new else "README.md")
    before = None if new else file.read_bytes()
    file.write_text("staged\n")
    git(tree, "add", file.name)
    file.unlink() if before is None else file.write_bytes(before)
    git(tree, "status")  # which leaves the index knowing every file
    assert rebase(made, *verb, code=5)["error"]["files"] == [file.name]


@pytest.mark.parametrize(
    ("until", "is_met"),
    [
        ("v2 or later", True),
        ("greeter >= 1.5, which spells it right", True),
        ("greeter >= 2.1", False),
        ("clock >= 1.5", False),
    ],
)
def test_a_patch_whose_header_says_that_it_goes_with_this_release_needs_no_reason(
    until: str, is_met: bool, made: Made
) -> None:
    patch = made.patch("typo")
    patch.write_text(patch.read_text().replace("Drop-When: upstream does it itself", f"Drop-When: {until}"))
    goes_on(made, OTHER_WORDS)
    begin(made, "--name", "own", "--dir", str(tree_of(made)), code=4)  # the stack's name is none of upstream's
    if not is_met:
        assert rebase(made, "--skip", "--dir", str(tree_of(made)), code=2)["error"]["what"] == "why is typo dropped?"
        return
    found = rebase(made, "--skip", "--dir", str(tree_of(made)), code=4)  # the next one was made on it
    assert (outcomes(found)["typo"], found["dropped"]) == ("dropped", {"typo": f"Drop-When: {until}"})


def test_the_locks_of_a_killed_git_in_a_tree_of_ours(made: Made) -> None:
    """The tree has its hidden name: whatever git held there, nobody else is at work."""
    tree = stopping(made)
    resolve(made)
    git(tree, "add", "--all")
    hidden = tree.with_name(".greeter-v2.rebase")
    tree.rename(hidden)
    for name in ("CHERRY_PICK_HEAD", "packed-refs", "AUTO_MERGE", "refs/patchctl/base"):
        (hidden / ".git" / f"{name}.lock").write_bytes(b"")
    assert rebase(made, "--continue", code=4)["stopped_at"]["feature"] == "typo"
    ends(made)


@pytest.mark.parametrize("verb", ["--continue", "--abort"])
def test_killed_when_the_commit_was_there_and_the_pick_not_over(made: Made, verb: str) -> None:
    """Git commits, then forgets that it was picking. --continue made an empty second commit, at which it stopped for good."""
    tree = stopping(made)
    resolve(made)
    git(tree, "add", "--all")
    picked = (tree / ".git/CHERRY_PICK_HEAD").read_bytes()
    git(tree, "commit", "--quiet", "--no-edit", "--cleanup=strip")
    (tree / ".git/CHERRY_PICK_HEAD").write_bytes(picked)
    rebase(made, verb, code=20 if verb == "--continue" else 0)
    if verb == "--abort":
        assert outcomes(begin(made, code=20))["typo"] == "replayed"


def in_front(tmp_path: Path, script: str) -> str:
    """A PATH on which this script is git; `{git}` in it is the real one."""
    program = tmp_path / "bin/git"
    program.parent.mkdir()
    program.write_text(script.format(git=shutil.which("git")))
    program.chmod(0o755)
    return f"{program.parent}{os.pathsep}{os.environ['PATH']}"


# Its `diff` takes the lock, as git's does where files were only touched, and dies with who has started it.
DIES_IN_DIFF = """#!/bin/sh
case " $* " in *" diff "*) : > .git/index.lock; kill -9 $PPID; kill -9 $$ ;; esac
exec {git} "$@"
"""


@pytest.mark.parametrize("verb", ["--continue", "--abort"])
def test_the_lock_of_a_git_that_was_killed_while_it_noted_times(made: Made, tmp_path: Path, verb: str) -> None:
    tree = stopping(made)
    resolve(made)
    git(tree, "add", "--all")
    done = made.patchctl("rebase", "--continue", env={"PATH": in_front(tmp_path, DIES_IN_DIFF)})
    assert done.returncode == -signal.SIGKILL and (tree / ".git/index.lock").exists()
    rebase(made, verb, code=20 if verb == "--continue" else 0)


# Its `commit` ends well and leaves the mark of the pick, as git's does where the mark cannot be removed.
LEAVES_THE_PICK = """#!/bin/sh
case " $* " in
*" commit --"*)
  picked=$(cat .git/CHERRY_PICK_HEAD) && {git} "$@" && echo "$picked" > .git/CHERRY_PICK_HEAD ;;
*) exec {git} "$@" ;;
esac
"""


def test_a_git_that_cannot_remove_the_mark_of_a_pick_it_committed(made: Made, tmp_path: Path) -> None:
    tree = stopping(made)
    resolve(made)
    git(tree, "add", "--all")
    done = made.patchctl("rebase", "--continue", env={"PATH": in_front(tmp_path, LEAVES_THE_PICK)})
    assert done.returncode == 20, done.stderr
    assert not (tree / ".git/CHERRY_PICK_HEAD").exists()


def test_the_lock_of_our_killed_git_in_a_tree_of_the_users(made: Made) -> None:
    """By the note of when it began; another git's lock stays, and the message says what to do."""
    tree = stopping(made)
    resolve(made)
    git(tree, "add", "--all")
    (tree / ".git/index.lock").write_bytes(b"")
    error = rebase(made, "--continue", code=5)["error"]
    assert error["files"] == [str(tree / ".git/index.lock")] and "remove the lock" in error["hint"]
    note = tree / ".git/patchctl-at-work"
    note.write_bytes(b"")
    os.utime(note, (0, 0))
    rebase(made, "--continue", code=5)
    note.write_bytes(b"")
    rebase(made, "--continue", code=20)
