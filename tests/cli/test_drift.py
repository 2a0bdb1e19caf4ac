"""`patchctl drift`: stacks against other releases of small upstreams, made with git and as source distributions, and workspaces."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GIT_ENV, GREETER, Made, Patch, git, make_distribution, write_files
from killing import killed, points
from on_disk import snapshot

# A server has to allow it for commits that no branch names; the large hosts do.
ANY_COMMIT = {"GIT_CONFIG_KEY_0": "uploadpack.allowAnySHA1InWant", "GIT_CONFIG_VALUE_0": "true"}
POINTS = 6
HELLO = GREETER.files["greeter/hello.py"]
MOVED = HELLO.replace('"""Says hello."""\n', '"""Says hello."""\n\n# a line\n# and one more\n')
TALKER = "class Talker:\n    def __init__(self, name):\n        self.name = name\n\n    def say(self, text):\n        return text\n"
# A carried file that calls upstream: no hunk of it can ever be lost.
CALLING = replace(
    GREETER,
    files={**GREETER.files, "greeter/talker.py": TALKER},
    patches=(
        *GREETER.patches,
        Patch(
            "chorus",
            {"README.md": "greeter, in chorus\n"},
            "greeter: speak in chorus",
            switch="env GREETER_CHORUS=1",
            carries={
                "greeter/chorus.py": "from greeter.talker import Talker\n\n\n"
                "def sing(name):\n    talker = Talker(name)\n    return talker.say(name)\n"
            },
        ),
    ),
)
BELL = (
    "from greeter.talker import Talker\n\nNAMES = [\n" + "    'ding',\n" * 8 + "]\n\n\ndef bell():\n    return NAMES\n"
)
# One whose patches call the other upstream: by an import that no line of the patch has, and in a carried file.
CALLER = replace(
    CLOCK,
    files={**CLOCK.files, "clock/bell.py": BELL},
    patches=(
        *CLOCK.patches,
        Patch(
            "bell",
            {"clock/bell.py": BELL.replace("return NAMES", "talker = Talker('bell')\n    return talker.say(NAMES)")},
            "bell: say it",
        ),
        Patch(
            "chime",
            {"clock/__init__.py": "CHIMES = True\n"},
            "clock: chime",
            carries={
                "clock/chime.py": "import greeter.talker as talker\nimport tools\n\n\n"
                "def chime():\n    return talker.Talker('chime'), tools.use()\n"
            },
        ),
    ),
)


def release(made: Made, tag: str, files: Mapping[str, str | None], upstream: str = "greeter") -> str:
    """A commit on top of what upstream has, under a tag."""
    repo = made.origins / upstream
    write_files(repo, files)
    git(repo, "add", "--all")
    git(repo, "commit", "--quiet", "--allow-empty", "-m", f"release {tag}")
    git(repo, "tag", tag)
    return git(repo, "rev-parse", "HEAD").strip()


GENERATED = 'generated:\n  - path: greeter/_version.py\n    content: "version = 1\\n"\n    why: greeter asks for it\n'


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_distribution(tmp_path, (CALLING, CLOCK))


def drift(made: Made, *args: str, code: int) -> dict[str, Any]:
    done = made.patchctl("drift", *args, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "patchctl.drift/1"
    return found


def only(made: Made, tag: str, code: int) -> dict[str, dict[str, Any]]:
    """The patches of greeter on one release, by feature."""
    found = drift(made, "greeter", "--against", tag, code=code)
    (row,) = found["stacks"][0]["releases"]
    assert row["release"] == tag
    return {p["feature"]: p for p in row["patches"]}


def states(rows: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [row["state"] for row in rows.values()]


def test_a_release_that_changes_nothing_of_ours(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    assert states(only(made, "v2", 0)) == ["exact"] * 4
    assert "nothing is stale" in made.good("drift", "greeter", "--against", "v2")


def test_an_upstream_is_all_of_its_stacks(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    made.good("pin", "greeter", "v2")
    found = drift(made, "greeter", "greeter/v2", "--against", "v2", code=0)
    assert [(s["upstream"], s["stack"]) for s in found["stacks"]] == [("greeter", "v1"), ("greeter", "v2")]
    assert [s["stack"] for s in drift(made, "greeter/v1", "--against", "v2", code=0)["stacks"]] == ["v1"]
    assert made.patchctl("drift", "greter").returncode == 2


def test_what_could_be_had_is_shown_beside_what_could_not(made: Made) -> None:
    """Of several stacks; of one alone there is nothing to show."""
    release(made, "v9", {"other.py": "OTHER = 1\n"})
    shutil.rmtree(made.origins / "clock")
    found = drift(made, "--against", "v9", code=3)
    looked_at = {s["upstream"]: (len(s["releases"]), len(s["unavailable"]) > 0) for s in found["stacks"]}
    assert looked_at == {"greeter": (1, False), "clock": (0, True)}
    assert found["verdict"] == 0
    done = made.patchctl("drift", "--against", "v9")
    assert done.returncode == 3
    assert done.stdout.startswith("4 exact: nothing is stale\n") and "\nclock/v2\n  tried " in done.stdout
    assert "clock/v2    not looked at: its source cannot be had\n" in done.stdout
    assert "4 exact: nothing is stale" in made.good("drift", "--against", "v9", "--skip-unavailable")
    assert "skipped" in made.good("drift", "--against", "v9", "--skip-unavailable", "--format", "junit")
    drift(made, "--matrix", "--baseline", _written(made, found), code=3)
    drift(made, "--matrix", "--baseline", _written(made, found), "--skip-unavailable", code=0)
    for only_clock in ((), ("--skip-unavailable",)):
        done = made.patchctl("drift", "clock", "--against", "v9", *only_clock)
        assert done.returncode == 3 and done.stdout == "" and "tried " in done.stderr


def _written(made: Made, found: dict[str, Any]) -> str:
    file = made.origins.parent / "earlier.json"
    file.write_text(json.dumps(found))
    return str(file)


def test_moved_says_by_how_many_lines_and_is_not_clean_without_a_proof(made: Made) -> None:
    release(made, "v2", {"greeter/hello.py": MOVED})
    rows = only(made, "v2", 20)
    assert states(rows) == ["moved", "moved", "moved", "exact"]
    assert [h["by"] for h in rows["loud"]["files"][0]["hunks"]] == [3, 3]
    assert rows["typo"]["proof"] == "the distribution has no stack of this revision" and not rows["typo"]["clean"]


def test_a_file_that_upstream_made_executable_is_not_as_it_was(made: Made) -> None:
    """The stack function refuses the patches there."""
    (made.origins / "greeter/greeter/hello.py").chmod(0o755)
    release(made, "v2", {})
    assert states(only(made, "v2", 20)) == ["3way", "3way", "3way", "exact"]


def test_lost_names_the_commit_and_what_builds_on_it_is_lost_too(made: Made) -> None:
    release(made, "v2", {"README.md": "greeter two\n"})
    commit = release(made, "v3", {"greeter/hello.py": HELLO.replace("Helo, ", "Hi, ")})
    release(made, "v4", {"other.py": "OTHER = 1\n"})
    rows = only(made, "v4", 20)
    assert states(rows) == ["conflict", "conflict", "3way", "conflict"]
    (hunk,) = rows["typo"]["files"][0]["hunks"]
    assert (hunk["state"], hunk["commit"], hunk["subject"]) == ("lost", commit, "release v3")
    found = drift(made, "greeter", "--against", "v2,v3,v4", code=20)
    walked = [r["patches"][0]["files"][0]["hunks"][0]["commit"] for r in found["stacks"][0]["releases"]]
    assert walked == [None, commit, commit]


def test_the_next_command_has_the_mirrors_that_the_release_was_found_in(made: Made, tmp_path: Path) -> None:
    release(made, "v2", {"greeter/hello.py": HELLO.replace("Helo, ", "Hi, ")})
    mirror = tmp_path / "a mirror"
    shutil.copytree(made.origins / "greeter", mirror)
    done = made.patchctl("drift", "greeter", "--against", "v2", "--mirror", f"greeter={mirror}")
    assert f"next: patchctl rebase greeter/v1 --to v2 --mirror 'greeter={mirror}'\n" in done.stdout


def test_a_path_is_one_that_can_be_opened(tmp_path: Path) -> None:
    path = "greeter/größe.py"
    polite = replace(CALLING.patches[1], edits={**CALLING.patches[1].edits, path: "SIZE = 2\n"})
    patches = (CALLING.patches[0], polite, *CALLING.patches[2:])
    made = make_distribution(
        tmp_path, (replace(CALLING, files={**CALLING.files, path: "SIZE = 1\n"}, patches=patches), CLOCK)
    )
    commit = release(made, "v2", {path: "SIZE = 3\n"})
    (file,) = [f for f in only(made, "v2", 20)["polite"]["files"] if f["hunks"] and f["hunks"][0]["state"] == "lost"]
    assert (file["path"], file["hunks"][0]["commit"]) == (path, commit)
    assert f"{path}: conflict" in made.patchctl("drift", "greeter", "--against", "v2", "-v").stdout
    ws = tmp_path / "ws"
    made.good("apply", "--profile", "full", "-w", str(ws))
    (ws / "greeter" / path).write_text("SIZE = 4\n")
    assert [f["path"] for t in drift(made, "-w", str(ws), code=1)["trees"] for f in t["files"]] == [path]


def test_what_upstream_took_is_known_when_it_was_written_anew(made: Made) -> None:
    fixed = HELLO.replace("Helo", "Hello")
    release(made, "v2", {"greeter/hello.py": fixed})
    release(
        made,
        "v3",
        {
            "greeter/hello.py": fixed.replace(
                '    text = "Hello, " + name\n    return text\n', '    return f"Hello, {name}"\n'
            )
        },
    )
    (two, three) = drift(made, "greeter", "--against", "v2,v3", code=20)["stacks"][0]["releases"]
    typo = two["patches"][0]
    assert (typo["state"], typo["stale"], typo["clean"], typo["taken"]) == ("upstream", True, True, None)
    assert (three["patches"][0]["state"], three["patches"][0]["taken"]) == ("conflict", "v2")
    alone = only(made, "v3", 20)["typo"]
    assert alone["taken"] == git(made.origins / "greeter", "rev-parse", "v2").strip()  # by its commit


def test_a_file_that_moved_and_one_that_is_gone(made: Made) -> None:
    release(made, "v2", {"greeter/hello.py": None, "greeter/core/hello.py": HELLO, "README.md": None})
    rows = only(made, "v2", 20)
    assert states(rows) == ["moved", "moved", "moved", "conflict"]
    assert rows["typo"]["files"][0]["target"] == "greeter/core/hello.py"
    assert rows["chorus"]["files"][0]["state"] == "gone"


@pytest.mark.parametrize(
    ("files", "state"),
    [
        ({}, "exact"),
        ({"greeter/hello.py": MOVED}, "moved"),
        ({"greeter/hello.py": HELLO.replace("name", "whom")}, "conflict"),
        ({"greeter/words.py": "taken\n"}, "conflict"),
        ({"greeter/hello.py": None, "greeter/core/hello.py": HELLO}, "conflict"),
        ({"greeter/hello.py": None, "greeter/words.py": HELLO}, "moved"),
    ],
)
def test_a_file_that_the_patch_renames_is_one_file(made: Made, files: dict[str, str | None], state: str) -> None:
    """As a merge that follows renames has it: what upstream changed in it comes along."""
    patch = next(made.root.glob("patches/greeter/*/typo/*.patch"))
    head, old, new = patch.read_text().partition("diff --git")[0], "greeter/hello.py", "greeter/words.py"
    text = patch.read_text().removeprefix(head).replace(f"b/{old}", f"b/{new}")
    first, _, rest = text.partition("\n")
    patch.write_text(f"{head}{first}\nsimilarity index 90%\nrename from {old}\nrename to {new}\n{rest}")
    for other in made.root.glob("patches/greeter/*/*/*.patch"):
        if other != patch:
            other.write_text(other.read_text().replace(old, new))
    release(made, "v2", files)
    row = only(made, "v2", 0 if state == "exact" else 20)["typo"]
    assert [row["state"], *(file["path"] for file in row["files"])] == [state, new]


def test_a_name_that_a_carried_file_calls_changed_and_no_hunk_did(made: Made) -> None:
    release(made, "v2", {"greeter/talker.py": TALKER.replace("def say(self, text):", "def say(self, text, loudly):")})
    rows = only(made, "v2", 20)
    assert states(rows) == ["exact"] * 4
    (name,) = rows["chorus"]["names"]
    assert (name["name"], name["file"], name["line"]) == ("greeter.talker.Talker.say", "greeter/chorus.py", 6)
    assert (name["was"], name["now"]) == ("def say(self, text)", "def say(self, text, loudly)")
    assert rows["chorus"]["stale"] and not rows["typo"]["stale"]
    release(made, "v3", {"greeter/talker.py": None})
    assert [n["now"] for n in only(made, "v3", 20)["chorus"]["names"]] == [None, None]


@pytest.fixture
def calling(tmp_path: Path) -> Made:
    """Two upstreams, the second of which calls the first; that has a file of the name of something else, too."""
    greeter = replace(CALLING, files={**CALLING.files, "tools.py": "def use():\n    return 1\n"})
    return make_distribution(tmp_path, (greeter, CALLER))


def callers(made: Made, code: int, *args: str) -> list[dict[str, Any]]:
    """What is said of greeter's callers on one release."""
    found = drift(made, "greeter/v1", *args, code=code)
    rows: list[dict[str, Any]] = found["stacks"][0]["releases"][-1]["callers"]
    return rows


def test_another_upstream_calls_what_changed(calling: Made) -> None:
    louder = TALKER.replace("def say(self, text):", "def say(self, text, loudly):")
    release(calling, "v2", {"greeter/talker.py": louder, "tools.py": "def use(what):\n    return 1\n"})
    (bell,) = callers(calling, 20, "--against", "v2")
    assert (bell["upstream"], bell["stack"], bell["feature"]) == ("clock", "v2", "bell")
    assert (bell["patch"], bell["proof"]) == (
        "patches/clock/v2/bell/0002-bugfix-bell.patch",
        "the distribution has no stack of this revision",
    )
    (name,) = bell["names"]
    assert (name["name"], name["file"], name["line"]) == ("greeter.talker.Talker.say", "clock/bell.py", 17)
    assert (name["was"], name["now"]) == ("def say(self, text)", "def say(self, text, loudly)")
    release(calling, "v3", {"greeter/talker.py": None})
    gone = {c["feature"]: {n["name"]: n["now"] for n in c["names"]} for c in callers(calling, 20, "--against", "v3")}
    talker = "greeter.talker.Talker"
    assert gone == {"bell": {talker: None, f"{talker}.say": None}, "chime": {talker: None}}
    text = calling.patchctl("drift", "greeter", "--matrix").stdout
    assert "v2 to v3 (2 releases)" in text.splitlines()[1], text
    assert "bell@clock   !   !" in text and "chime@clock  =   !" in text, text
    text = calling.patchctl("drift", "greeter", "--against", "v2", "--format", "github").stdout
    assert "clock/bell.py:17 calls greeter.talker.Talker.say" in text and "0002-bugfix-bell.patch" in text
    assert drift(calling, "clock", "--against", "main", code=0)["stacks"][0]["releases"][0]["callers"] == []


def test_only_what_stands_in_a_profile_with_it_is_a_caller(calling: Made) -> None:
    release(calling, "v2", {"greeter/talker.py": None})
    assert len(callers(calling, 20, "--against", "v2")) == 2
    for profile in (calling.root / "manifests/profiles").iterdir():
        profile.write_text(profile.read_text().replace("  greeter: v1\n", ""))
    assert callers(calling, 20, "--against", "v2") == []


def test_a_caller_is_settled_by_a_record_of_trees_with_the_release(tmp_path: Path) -> None:
    from patchctl.catalog.evidence import EvidenceRecord, Proof, write_record
    from patchctl.manifest.distribution import Distribution
    from patchctl.stack.plan import load_patches

    greeter = replace(GREETER, files={**GREETER.files, "greeter/talker.py": TALKER})  # no patch of its own calls it
    calling = make_distribution(tmp_path, (greeter, CALLER))
    release(
        calling, "v2", {"greeter/talker.py": TALKER.replace("def say(self, text):", "def say(self, text, loudly):")}
    )
    calling.good("pin", "greeter", "v2")
    assert [c["proof"] for c in callers(calling, 20, "--against", "v2")] == ["no record"]
    clock = Distribution.load(calling.root).stack("clock", "v2")
    bell = next(p for p in load_patches(Distribution.load(calling.root), clock) if p.feature == "bell")

    def recorded(stack: str) -> None:
        proof = Proof(
            clock.pin.identity, bell.change_digest, {}, {}, {}, {"greeter": f"{stack} git {'1' * 40}"}, "2026-11-23"
        )
        write_record(calling.root, EvidenceRecord("clock", "v2", "bell", proof))

    recorded("v1")
    assert [c["proof"] for c in callers(calling, 20, "--against", "v2")] == ["its trees had greeter v1, not v2"]
    recorded("v2")
    assert [(c["feature"], c["proof"]) for c in callers(calling, 10, "--against", "v2")] == [("bell", None)]
    assert "settled there" in calling.patchctl("drift", "greeter/v1", "--against", "v2", "-v").stdout


def test_a_caller_that_no_place_has_is_named(calling: Made) -> None:
    release(calling, "v2", {"greeter/talker.py": None})
    (calling.origins / "clock").rename(calling.origins / "away")
    found = drift(calling, "greeter", "--against", "v2", code=20)["stacks"][0]
    assert found["releases"][0]["callers"] == [] and found["unseen"][0].startswith("clock/v2: ")
    assert "what clock/v2 calls was not looked at" in calling.patchctl("drift", "greeter", "--against", "v2").stdout
    calling.patch("bell").write_text("no patch\n")
    assert "bell.patch" in drift(calling, "greeter", "--against", "v2", code=20)["stacks"][0]["unseen"][0]


def test_a_call_from_elsewhere_that_newly_broke(calling: Made, tmp_path: Path) -> None:
    release(calling, "v2", {"other.py": "OTHER = 1\n"})
    last = tmp_path / "last.json"
    last.write_text(calling.good("drift", "greeter", "--matrix", "--json"))
    release(calling, "v3", {"greeter/talker.py": TALKER.replace("(self, text)", "(self, text, loudly)")})
    args = ("drift", "greeter", "--matrix", "--baseline")
    found = json.loads(calling.patchctl(*args, str(last), "--json").stdout)["broke"]
    said = "calls what has changed: greeter.talker.Talker.say"
    assert [(b["upstream"], b["release"], b["feature"], b["why"]) for b in found] == [
        ("greeter", "v3", "chorus", said),
        ("greeter", "v3", "bell@clock", said),
    ]
    text = calling.patchctl(*args, str(last), "--format", "github").stdout
    assert "file=patches/clock/v2/bell/0002-bugfix-bell.patch" in text, text
    drawn = tmp_path / "drift.json"
    drawn.write_text(calling.patchctl("drift", "greeter", "--matrix", "--json").stdout)
    page = calling.good("report", "--drift", str(drawn), "--out", "-")
    assert "bell@clock on v3: calls what has changed" in page and "bell@clock on v2: what it calls is as it was" in page


def proven_at(made: Made, tag: str) -> None:
    """A stack of this release beside the first, with the patches of hello.py made anew, and records that hold for it."""
    from patchctl.catalog.evidence import EvidenceRecord, Proof, write_record
    from patchctl.manifest.distribution import Distribution
    from patchctl.stack.plan import load_patches

    commit = git(made.origins / "greeter", "rev-parse", tag).strip()
    other = make_distribution(
        made.root.parent / "other", (replace(CALLING, stack=tag, files={**CALLING.files, "greeter/hello.py": MOVED}),)
    )
    text = (made.root / "manifests/stacks/greeter/v1.yaml").read_text().replace("name: v1", f"name: {tag}")
    old = git(made.origins / "greeter", "rev-parse", "v1pin", "v1pin^{tree}").split()
    new = [commit, git(made.origins / "greeter", "rev-parse", f"{tag}^{{tree}}").strip()]
    for was, now in zip(old, new, strict=True):
        text = text.replace(was, now)
    (made.root / f"manifests/stacks/greeter/{tag}.yaml").write_text(text)
    for file in (other.root / "patches/greeter" / tag).rglob("*"):
        if file.is_file():
            place = made.root / file.relative_to(other.root)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    dist = Distribution.load(made.root)
    stack = dist.stack("greeter", tag)
    for patch in load_patches(dist, stack):
        proof = Proof(commit, patch.change_digest, {}, {}, {}, {}, "2026-11-23")
        write_record(made.root, EvidenceRecord("greeter", tag, patch.feature, proof))


def test_clean_is_what_a_record_of_that_release_proves(made: Made) -> None:
    git(made.origins / "greeter", "tag", "v1pin")
    release(made, "v2", {"greeter/hello.py": MOVED})
    assert states(only(made, "v2", 20)) == ["moved", "moved", "moved", "exact"]
    proven_at(made, "v2")
    found = drift(made, "greeter/v1", "--against", "v2", code=10)
    assert [p["proof"] for p in found["stacks"][0]["releases"][0]["patches"]] == [None] * 4
    assert "proven there" in made.patchctl("drift", "greeter/v1", "--against", "v2", "-v").stdout
    shown = made.patchctl("drift", "greeter/v1", "--against", "v2").stdout
    assert "greeter/v1  on v2  1 exact, 3 moved\n" in shown and "next: " not in shown


def test_the_cache_gives_the_same_and_asks_for_less(made: Made) -> None:
    release(made, "v2", {"greeter/hello.py": HELLO.replace("Helo, ", "Hi, ")})
    cold = drift(made, "greeter", "--against", "v2", code=20)
    files = list((made.cache / "drift" / "verdicts").rglob("*.json"))
    assert len(files) == 1
    data = json.loads(files[0].read_bytes())
    data[0]["files"][0]["hunks"][0]["subject"] = "remembered"
    files[0].write_text(json.dumps(data))
    warm = drift(made, "greeter", "--against", "v2", code=20)
    assert "remembered" in json.dumps(warm)
    files[0].write_text("{")  # damaged: worked out again
    assert drift(made, "greeter", "--against", "v2", code=20) == cold


def test_latest_and_the_matrix(made: Made) -> None:
    for tag in ("v2", "v3", "v10", "v11rc1", "v12.dev3", "nightly"):
        release(made, tag, {"other.py": f"OTHER = {tag!r}\n"})
    found = drift(made, "greeter", code=0)
    assert [r["release"] for r in found["stacks"][0]["releases"]] == ["v10"]
    found = drift(made, "greeter", "--matrix", code=0)
    assert [r["release"] for r in found["stacks"][0]["releases"]] == ["v2", "v3", "v10", "v11rc1"]
    text = made.good("drift", "greeter", "--matrix")
    assert "v11rc1" in text and "16 exact: nothing is stale" in text


def test_releases_have_the_prefix_of_the_pins_tag(made: Made) -> None:
    """As Megatron-LM's do: core_v0.12.1, beside tags of another numbering and branches that end in a number."""
    git(made.origins / "greeter", "tag", "core_v1.0")
    made.edit("manifests/stacks/greeter/v1.yaml", "patches:", "  tag: core_v1.0\npatches:")
    for tag in ("core_v1.1", "core_v1.2rc1", "23.06", "v2.5"):
        release(made, tag, {"other.py": f"OTHER = {tag!r}\n"})
    for branch in ("ci/bump-9.0", "core_r9.0"):
        git(made.origins / "greeter", "branch", branch)
    found = drift(made, "greeter", code=0)
    assert [r["release"] for r in found["stacks"][0]["releases"]] == ["core_v1.1"]
    found = drift(made, "greeter", "--matrix", code=0)
    assert [r["release"] for r in found["stacks"][0]["releases"]] == ["core_v1.1", "core_v1.2rc1"]
    assert only(made, "1.1", 0).keys() == only(made, "core_v1.1", 0).keys()


def test_releases_of_branches(made: Made) -> None:
    """As MindSpeed's are, whose pin has no tag."""
    made.edit(
        "manifests/upstreams.yaml", "    summary: The greeter.", "    releases: core_r\n    summary: The greeter."
    )
    release(made, "v7.0", {"other.py": "OTHER = 7\n"})
    for branch in ("core_r0.9", "core_r0.12", "fix/core_r0.99"):
        git(made.origins / "greeter", "branch", branch)
    assert [r["release"] for r in drift(made, "greeter", code=0)["stacks"][0]["releases"]] == ["core_r0.12"]


def test_a_branch_that_moved_on_is_newer_than_its_pin(tmp_path: Path) -> None:
    """A pin of a branch that upstream releases from, without a tag."""
    made = make_distribution(tmp_path, (replace(CALLING, stack="core_r0.12"), CLOCK))
    made.edit(
        "manifests/upstreams.yaml", "    summary: The greeter.", "    releases: core_r\n    summary: The greeter."
    )
    repo = made.origins / "greeter"
    git(repo, "checkout", "-q", "-b", "core_r0.12")
    assert drift(made, "greeter", "--matrix", code=0)["stacks"][0]["releases"] == []
    release(made, "unused", {"greeter/hello.py": MOVED})
    (row,) = drift(made, "greeter", "--matrix", code=20)["stacks"][0]["releases"]
    assert row["release"] == "core_r0.12" and row["patches"][0]["state"] == "moved"


def test_releases_after_a_pin_that_lies_between_releases(made: Made) -> None:
    manifests = made.root / "manifests/stacks/greeter"
    made.edit(
        "manifests/upstreams.yaml", "    summary: The greeter.", "    releases: core_r\n    summary: The greeter."
    )
    made.edit(manifests / "v1.yaml", "patches:", "  tag: null\npatches:")
    git(made.origins / "greeter", "branch", "core_r0.11")
    assert drift(made, "greeter", "--matrix", code=0)["stacks"][0]["releases"] == []  # a branch that ends before it
    release(made, "unused", {"other.py": "OTHER = 1\n"})
    git(made.origins / "greeter", "branch", "core_r0.12")
    between = drift(made, "greeter", "--matrix", code=0)["stacks"][0]["releases"]
    assert [r["release"] for r in between] == ["core_r0.12"]


def test_several_upstreams_at_once(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    release(made, "v3", {"clock/tick.py": "def tick(now):\n    return now\n"}, "clock")
    found = drift(made, "--against", "greeter=v2", "--against", "clock=v3", code=20)
    by_name = {s["upstream"]: s["releases"][0] for s in found["stacks"]}
    assert {name: row["release"] for name, row in by_name.items()} == {"greeter": "v2", "clock": "v3"}
    assert by_name["clock"]["patches"][0]["state"] == "conflict"


def sdist(made: Made, version: str, files: Mapping[str, str]) -> None:
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in sorted({**files, "PKG-INFO": "Metadata-Version: 2.1\n"}.items()):
            info = tarfile.TarInfo(f"greeter-{version}/{name}")
            info.size, info.mode = len(text.encode()), 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    (made.index / f"greeter-{version}.tar.gz").write_bytes(gzip.compress(plain.getvalue(), mtime=0))


def test_from_the_package_index_the_files_that_name_other_upstreams_are_kept(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (replace(CALLING, sdist=("greeter/hello.py",)),))
    sdist(made, "2.0", {"greeter/hello.py": MOVED, "docker/Dockerfile.1": "FROM x"})
    drift(made, "greeter", "--against", "2.0", "--source", "sdist", code=20)
    companions = "    companions: {file: 'docker/Dockerfile.*', revisions: {greeter: 'get (.*)'}}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The greeter.\n", "    summary: The greeter.\n" + companions)
    drift(made, "greeter", "--against", "2.0", "--source", "sdist", code=20)
    (repo,) = (made.cache / "drift" / "sdist" / "greeter").glob("2.0-*.git")
    commit = json.loads((repo / "release.json").read_text())["commit"]
    assert git(repo, "show", f"{commit}:docker/Dockerfile.1") == "FROM x"


def test_from_the_package_index_only_what_matters_is_kept(tmp_path: Path) -> None:
    names = ("greeter/__init__.py", "greeter/hello.py", "greeter/talker.py")
    made = make_distribution(tmp_path, (replace(CALLING, sdist=names),))
    sdist(made, "2.0", {"greeter/hello.py": MOVED, "greeter/talker.py": TALKER, "greeter/data.bin": "x" * 1000})
    found = drift(made, "greeter", "--against", "2.0", "--source", "sdist", code=20)
    (row,) = found["stacks"][0]["releases"]
    assert row["form"] == "sdist"
    assert [p["state"] for p in row["patches"]] == ["moved", "moved", "moved", "unknown"]  # README.md is in no sdist
    (repo,) = (made.cache / "drift" / "sdist" / "greeter").glob("2.0-*.git")
    held = git(repo, "ls-tree", "-r", json.loads((repo / "release.json").read_text())["commit"])
    assert "greeter/data.bin" in held
    blob = next(line.split()[2] for line in held.splitlines() if "data.bin" in line)
    assert subprocess.run(
        ["git", f"--git-dir={repo}", "cat-file", "-e", blob], capture_output=True, check=False
    ).returncode
    (made.index / "greeter-2.0.tar.gz").unlink()  # the cache has it
    assert drift(made, "greeter", "--against", "2.0", "--source", "sdist", "--offline", code=20) == found


def test_two_stacks_of_an_upstream_keep_what_each_wants_of_a_release(tmp_path: Path) -> None:
    """One wants more of it than the other, and one has a generated file: neither makes the other bring it again."""
    names = ("greeter/__init__.py", "greeter/hello.py", "greeter/talker.py")
    made = make_distribution(tmp_path, (replace(CALLING, sdist=names),))
    stacks = made.root / "manifests/stacks/greeter"
    head, _, patches = (stacks / "v1.yaml").read_text().partition("patches:\n")
    first, *_, last = patches.splitlines(keepends=True)
    for name, patch, more in (("v2", first, GENERATED), ("v3", last, ""), ("v4", first, "")):
        (stacks / f"{name}.yaml").write_text(f"{head}{more}patches:\n{patch}".replace("name: v1\n", f"name: {name}\n"))
        shutil.copytree(made.root / "patches/greeter/v1", made.root / f"patches/greeter/{name}")
    sdist(made, "2.0", {"greeter/hello.py": MOVED, "greeter/talker.py": TALKER, "README.md": "more\n"})
    for name in ("greeter/v2", "greeter/v4"):
        made.patchctl("drift", name, "--against", "2.0", "--source", "sdist")
    (made.index / "greeter-2.0.tar.gz").unlink()
    for name in ("greeter/v2", "greeter/v3", "greeter/v1", "greeter/v2"):  # v3 wants README.md, which v4 did not
        done = made.patchctl("drift", name, "--against", "2.0", "--source", "sdist", "--offline")
        assert done.returncode in (10, 20), done.stderr


def test_from_a_remote_that_is_no_mirror_here(made: Made) -> None:
    release(made, "v2", {"greeter/hello.py": MOVED})
    release(made, "v3", {"greeter/hello.py": HELLO.replace("Helo, ", "Hi, ")})
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    line = ["git", "daemon", "--export-all", f"--base-path={made.origins}", f"--port={port}", "--listen=127.0.0.1"]
    daemon = subprocess.Popen([*line, "--reuseaddr"], env={**GIT_ENV, "GIT_CONFIG_COUNT": "1", **ANY_COMMIT})
    try:
        address = f"git://127.0.0.1:{port}/greeter"
        made.edit("manifests/upstreams.yaml", (made.origins / "greeter").as_uri(), address)
        await_port(port)
        (two, three) = drift(made, "greeter", "--against", "v2,v3", code=20)["stacks"][0]["releases"]
        assert [p["state"] for p in two["patches"]] == ["moved", "moved", "moved", "exact"]
        (hunk,) = three["patches"][0]["files"][0]["hunks"]
        assert (hunk["state"], hunk["commit"]) == ("lost", None)  # one commit was fetched, not what led to it
        assert [r["release"] for r in drift(made, "greeter", code=20)["stacks"][0]["releases"]] == ["v3"]
    finally:
        daemon.terminate()
        daemon.wait()
    done = made.patchctl("drift", "greeter", "--against", "v2")
    assert done.returncode == 3 and "tried git://127.0.0.1" in done.stderr


@pytest.mark.heavy("killed at every operation")
@pytest.mark.parametrize("source", ["git", "sdist"])
def test_killed_anywhere_it_is_as_if_it_had_not_run(tmp_path: Path, source: str) -> None:
    """With nothing in the cache: the distribution is as before, a plan is whole or not there, and the next run says the same."""
    names = ("README.md", "greeter/__init__.py", "greeter/hello.py", "greeter/talker.py")
    made = make_distribution(tmp_path / "made", (replace(CALLING, sdist=names),))
    release(made, "v2", {"greeter/hello.py": MOVED})
    sdist(made, "2", {"README.md": "greeter\n", "greeter/hello.py": MOVED, "greeter/talker.py": TALKER})
    plan = tmp_path / "plan.json"
    line = ("drift", "greeter", "--against", "v2", "--source", source, "--save-plan", str(plan))
    before = snapshot(made.root)
    code, total = killed(made, 0, *line)
    assert code == 20 and total > 10
    whole = plan.read_bytes()
    for at in points(total, POINTS):
        plan.unlink(missing_ok=True)
        shutil.rmtree(made.cache)
        assert killed(made, at, *line)[0] == -9
        assert not plan.exists() or plan.read_bytes() == whole, at
        assert snapshot(made.root) == before, at
        again = made.patchctl(*line)
        assert again.returncode == 20 and plan.read_bytes() == whole, (at, again.stderr)


def await_port(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(0.05)
    raise AssertionError("git daemon did not come up")


def test_what_newly_broke(made: Made, tmp_path: Path) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    release(made, "v3", {"greeter/hello.py": MOVED})
    last = tmp_path / "last.json"
    last.write_text(made.patchctl("drift", "greeter", "--matrix", "--json").stdout)
    assert drift(made, "greeter", "--matrix", "--baseline", str(last), code=0)["broke"] == []
    release(made, "v3.1", {"other.py": "OTHER = 2\n"})
    found = drift(made, "greeter", "--matrix", "--baseline", str(last), code=0)
    assert [(a["release"], a["arrive"], a["patches"]) for a in found["appeared"]] == [("v3.1", 4, 4)]
    text = made.good("drift", "greeter", "--matrix", "--baseline", str(last))
    assert "new release v3.1 of greeter/v1: all 4 patches arrive" in text and "; 0 newly broken, 1 new release" in text
    noted = made.good("drift", "greeter", "--matrix", "--baseline", str(last), "--format", "github")
    assert "::notice" in noted and "v3.1 is new" in noted
    release(made, "v4", {"greeter/hello.py": MOVED.replace("Helo, ", "Hi, ")})
    found = drift(made, "greeter", "--matrix", "--baseline", str(last), code=1)["broke"]
    assert [(b["release"], b["feature"]) for b in found] == [("v4", "typo"), ("v4", "polite")]
    done = made.patchctl("drift", "greeter", "--matrix", "--baseline", str(last), "--format", "github")
    errors = [line for line in done.stdout.splitlines() if line.startswith("::error")]
    assert done.returncode == 1 and len(errors) == 2 and "title=drift-broke::v4: typo broke" in "".join(errors)


def test_since_names_a_branch_that_has_moved_on(made: Made, tmp_path: Path) -> None:
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n    releases: v\n")
    clock = made.origins / "clock"
    git(clock, "checkout", "--quiet", "-b", "v2")
    git(clock, "commit", "--quiet", "--allow-empty", "-m", "a fix")
    last = _written(made, drift(made, "clock", "--matrix", code=0))
    assert drift(made, "clock", "--matrix", "--baseline", last, code=0)["appeared"] == []
    git(clock, "commit", "--quiet", "--allow-empty", "-m", "and another")
    (one,) = drift(made, "clock", "--matrix", "--baseline", last, code=0)["appeared"]
    assert (one["release"], one["arrive"], one["patches"]) == ("v2", 1, 1)


def test_a_file_that_no_run_printed_is_refused(made: Made, tmp_path: Path) -> None:
    release(made, "v2", {})
    assert made.patchctl("drift", "--baseline", str(tmp_path / "none")).returncode == 2
    for text in ("", "[]", '{"schema": "patchctl.drift/2"}', '{"schema": "patchctl.drift/1", "stacks": [{}]}'):
        (tmp_path / "bad").write_text(text)
        done = made.patchctl("drift", "--baseline", str(tmp_path / "bad"))
        assert done.returncode == 2 and "Traceback" not in done.stderr, text


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--against", "v77"), 3, "no place has v77"),
        (("nobody",), 2, "no upstream"),
        (("--against", "clock=v2", "greeter"), 2, "no stack of clock is looked at"),
        (("--against", ",", "greeter"), 2, "takes revisions"),
        (("-w", "ws", "--matrix"), 2, "--workspace is for the trees"),
        (("-w", "ws"), 2, "nothing was applied"),
    ],
)
def test_what_is_refused(made: Made, args: tuple[str, ...], code: int, said: str) -> None:
    done = made.patchctl("drift", *args)
    assert done.returncode == code and said in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_of_a_workspace_by_the_patch_whose_lines_differ(made: Made, tmp_path: Path) -> None:
    ws = tmp_path / "ws"
    made.good("apply", "--profile", "full", "-w", str(ws))
    assert drift(made, "-w", str(ws), code=0)["trees"][0]["files"] == []
    made.edit(ws / "greeter/greeter/hello.py", "text = polite(text)", "text = polite(text, 2)")
    made.edit(ws / "greeter/greeter/hello.py", '"""Says hello."""', '"""Says hi."""')
    made.edit(
        ws / "greeter/greeter/chorus.py", "    return talker.say(name)\n", "    return talker.say(name)\n# more\n"
    )
    (ws / "clock/clock/tick.py").unlink()
    greeter, clock = sorted(drift(made, "-w", str(ws), code=1)["trees"], key=lambda t: -len(t["files"]))
    found = {f["path"]: [h["owners"] for h in f["hunks"]] for f in greeter["files"]}
    assert found == {"greeter/chorus.py": [["chorus"]], "greeter/hello.py": [["upstream"], ["polite"]]}
    assert clock["files"][0]["state"] == "deleted"
    hunk = greeter["files"][1]["hunks"][1]
    lines = (ws / "greeter/greeter/hello.py").read_text().splitlines()
    assert lines[hunk["line"] - 1].strip() == "text = polite(text, 2)"
    assert "+        text = polite(text, 2)" in hunk["diff"]
    text = made.patchctl("drift", "-w", str(ws)).stdout
    assert "-        text = polite(text)" in text and "@@ polite" in text
    sarif = json.loads(made.patchctl("drift", "-w", str(ws), "--format", "sarif").stdout)
    assert len(sarif["runs"][0]["results"]) == 4
