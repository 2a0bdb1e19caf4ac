"""`patchctl outdated`: what upstreams have that is newer than the pins, from small repositories and indexes."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution, write_files
from json_schema import faults
from on_disk import snapshot
from test_drift import HELLO, MOVED, release, sdist

from patchctl.drift.outdated import is_same

RELEASE = (
    'schema: 1\nname: "2001.01"\nsummary: The first.\nstacks: {greeter: v1, clock: v2}\nruntime: {python: "3.11.*"}\n'
)
STAYS = RELEASE.partition("runtime")[0] + "stays: {greeter: its tone has changed}\n"


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return make_distribution(tmp_path, (replace(GREETER, sdist=[*GREETER.files]), CLOCK))


def outdated(made: Made, *args: str, code: int, env: dict[str, str] | None = None) -> dict[str, dict[str, Any]]:
    done = made.patchctl("outdated", *args, "--json", env=env)
    assert done.returncode == code, done.stdout + done.stderr
    found = json.loads(done.stdout)
    assert not [*faults(json.loads((REPO / "docs/schema/outdated.json").read_text()), found)]
    return {row["upstream"]: row for row in found["stacks"]}


def newer(row: dict[str, Any]) -> dict[str, tuple[str, str, list[str]]]:
    return {one["kind"]: (one["name"], one["effort"], one["work"]) for one in row["newer"]}


def test_nothing_is_newer(made: Made) -> None:
    assert [row["newer"] for row in outdated(made, code=0).values()] == [[], []]
    assert "up to date" in made.good("outdated")


def test_what_each_would_take(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    release(made, "v3", {"greeter/hello.py": MOVED})
    release(made, "v4rc1", {"greeter/hello.py": HELLO.replace("Helo", "Good day")})
    release(made, "v3", {"clock/tick.py": CLOCK.files["clock/tick.py"].replace("count + 1", "1 + count")}, "clock")
    found = outdated(made, code=1)
    assert newer(found["greeter"]) == {
        "release": ("v3", "moved", []),
        "candidate": ("v4rc1", "conflicts", ["typo", "polite"]),
    }
    assert newer(found["clock"]) == {"release": ("v3", "conflicts", ["step"])}
    text = made.patchctl("outdated").stdout
    assert text.startswith("2 of 2 upstreams have something newer\n") and text.endswith("greeter/v1 --to v3\n"), text
    assert max(map(len, text.splitlines())) <= 80


def test_the_head_of_the_pins_branch(made: Made) -> None:
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n    releases: v\n")
    git(made.origins / "clock", "checkout", "--quiet", "-b", "v2")
    git(made.origins / "clock", "commit", "--quiet", "--allow-empty", "-m", "a fix")
    assert newer(outdated(made, "clock", code=1)["clock"]) == {"branch": ("v2", "exact", [])}


def test_the_head_of_a_branch_whose_name_is_no_version(made: Made) -> None:
    main, v1 = (made.root / "manifests/stacks/greeter" / f"{name}.yaml" for name in ("main", "v1"))
    main.write_text(v1.read_text().replace("name: v1", "name: main"))
    (made.root / "patches/greeter/v1").rename(made.root / "patches/greeter/main")
    v1.unlink()
    for profile in made.root.glob("manifests/profiles/*.yaml"):
        profile.write_text(profile.read_text().replace("greeter: v1", "greeter: main"))
    git(made.origins / "greeter", "branch", "--force", "--move", "main")
    assert newer(outdated(made, code=0)["greeter"]) == {}
    write_files(made.origins / "greeter", {"other.py": "OTHER = 1\n"})
    git(made.origins / "greeter", "add", "--all")
    git(made.origins / "greeter", "commit", "--quiet", "-m", "on")
    assert newer(outdated(made, code=1)["greeter"]) == {"branch": ("main", "exact", [])}


def test_a_partial_clone_is_no_conflict(made: Made, tmp_path: Path) -> None:
    release(made, "v2", {"greeter/hello.py": MOVED})
    git(made.origins / "greeter", "config", "uploadpack.allowFilter", "true")
    partial = tmp_path / "partial"
    git(
        tmp_path, "clone", "--quiet", "--bare", "--filter=blob:none", f"file://{made.origins / 'greeter'}", str(partial)
    )
    found = made.patchctl("outdated", "greeter", "--mirror", f"greeter={partial}", "--json")
    assert "conflicts" not in found.stdout and "is a partial clone" in found.stdout, found.stdout + found.stderr
    done = made.patchctl("drift", "greeter", "--against", "v2", "--mirror", f"greeter={partial}")
    assert done.returncode == 3 and "without --filter" in done.stderr, done.stdout + done.stderr


def test_no_drift_names_what_is_newer_and_fetches_nothing(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    assert newer(outdated(made, "--no-drift", code=1)["greeter"]) == {"release": ("v2", None, [])}
    assert not [*made.cache.rglob("*.git")]


def test_versions_for_another_python_are_named_apart(made: Made, tmp_path: Path) -> None:
    with (made.root / "manifests/upstreams.yaml").open("a") as upstreams:
        upstreams.write("requirements:\n  python: {summary: The interpreter., kind: system}\n")
    (made.root / "manifests/releases").mkdir()
    (made.root / "manifests/releases/2001.01.yaml").write_text(RELEASE)
    for version in ("2.0", "3.0"):
        sdist(made, version, GREETER.files)
    page = tmp_path / "page.html"
    page.write_text(
        f'<a href="{(made.index / "greeter-2.0.tar.gz").as_uri()}" data-requires-python="&gt;=3.10">greeter-2.0.tar.gz</a>'
        f'<a href="{(made.index / "greeter-3.0.tar.gz").as_uri()}" data-requires-python="&gt;=3.12">greeter-3.0.tar.gz</a>'
    )
    row = outdated(made, "greeter", "--no-drift", code=1, env={"PIP_FIND_LINKS": page.as_uri()})["greeter"]
    assert newer(row) == {"release": ("2.0", None, [])} and row["hidden"] == {"3.0": ">=3.12"}


def test_why_one_stays_is_said(made: Made) -> None:
    write_files(made.root, {"manifests/releases/2001.01.yaml": STAYS})
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    said = made.patchctl("outdated").stdout
    assert "\n  stays: its tone has changed\n" in said and "next:" not in said
    release(made, "v3", {"README": "3\n"}, "clock")
    assert made.patchctl("outdated").stdout.endswith("next: patchctl bump 2001.01 --only clock@v3\n")


@pytest.mark.parametrize("archived", [False, True])
def test_the_next_command_makes_the_release(archived: bool, made: Made) -> None:
    """As it stands, of the one upstream that has something newer."""
    write_files(made.root, {"manifests/releases/2001.01.yaml": STAYS.partition("stays")[0]})
    sdist(made, "2.0", GREETER.files) if archived else release(made, "v2", {"other.py": "OTHER = 1\n"})
    said = made.patchctl("outdated").stdout
    name = "2.0 --source sdist" if archived else "v2"
    assert said.endswith(f"next: patchctl bump 2001.01 --only greeter@{name}\n"), said
    for _ in ("at first", "again, after its release was thrown away"):
        done = made.patchctl(*shlex.split(said.rpartition("patchctl ")[2]), "--no-prove")
        assert done.returncode == 20 and "release 2001.01.1 is written" in done.stdout, done.stdout + done.stderr
        written = made.root / "manifests/releases/2001.01.1.yaml"
        assert "greeter: v2" in written.read_text()
        written.unlink()


@pytest.fixture
def named(tmp_path: Path) -> Made:
    """A release whose clock has a Dockerfile that names the greeter, which has two newer releases."""
    clock = replace(CLOCK, files={**CLOCK.files, "Dockerfile": "RUN get greeter v1\n"})
    made = make_distribution(tmp_path, (GREETER, clock))
    write_files(made.root, {"manifests/releases/2001.01.yaml": STAYS.partition("stays")[0]})
    where = "    companions: {file: Dockerfile, revisions: {greeter: 'get greeter (\\S+)'}}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n" + where)
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    release(made, "v3", {"other.py": "OTHER = 2\n"})
    return made


def test_what_another_asks_for_is_held(named: Made) -> None:
    """And is not what to move next, until the one that asks has a newer revision."""
    made = named
    made.edit("manifests/stacks/greeter/v1.yaml", "patches:", "  tag: v1\npatches:")
    git(made.origins / "greeter", "tag", "v1", "HEAD~2")
    said = made.patchctl("outdated").stdout
    assert "  held: clock/v2 asks for the pinned one\n" in said and "next:" not in said, said
    release(made, "v4rc1", {"Dockerfile": "RUN get greeter v2\n"}, "clock")
    assert made.patchctl("outdated").stdout.endswith("next: patchctl bump 2001.01 --only clock@v4rc1\n")


def test_the_next_command_moves_together_what_belongs_together(named: Made) -> None:
    """clock's Dockerfile names a greeter: where both have something newer, bump moves what fits."""
    made = named
    release(made, "v3", {"Dockerfile": "RUN get greeter v2\n"}, "clock")
    said = made.patchctl("outdated").stdout
    assert said.endswith("next: patchctl bump 2001.01\n"), said
    done = made.patchctl(*shlex.split(said.rpartition("patchctl ")[2]), "--no-prove")
    assert "2001.01 with 2 new stacks" in done.stdout and "greeter/v2: " in done.stdout, done.stdout + done.stderr


def test_what_the_index_alone_has_is_rebased_from_there(made: Made) -> None:
    sdist(made, "2.0", GREETER.files)
    row = outdated(made, "greeter", code=1)["greeter"]
    assert [one["archived"] for one in row["newer"]] == [True]
    said = made.patchctl("outdated", "greeter").stdout
    assert said.endswith("next: patchctl rebase greeter/v1 --to 2.0 --source sdist\n")
    said = made.good(*shlex.split(said.rpartition("patchctl ")[2]))
    assert said.endswith("next: patchctl prove --all --stack greeter/v2.0 --trees build/trees/greeter-v2.0\n")


def test_offline_it_knows_what_the_index_offered(made: Made) -> None:
    sdist(made, "2.0", GREETER.files)
    first = outdated(made, "greeter", "--source", "sdist", code=1)
    sdist(made, "3.0", GREETER.files)
    assert outdated(made, "greeter", "--source", "sdist", "--offline", code=1) == first


def test_offline_it_downloads_nothing_that_the_index_offered(made: Made) -> None:
    sdist(made, "2.0", GREETER.files)
    outdated(made, "greeter", "--source", "sdist", "--no-drift", code=1)
    made.good("fetch", "--profile", "plain", "--source", "sdist", "--skip-unavailable")
    before = snapshot(made.cache)
    refused = made.patchctl("drift", "greeter", "--source", "sdist", "--offline")
    assert refused.returncode == 3 and "tried package index: offline" in refused.stdout + refused.stderr
    assert snapshot(made.cache) == before


def test_revisions_that_the_pinned_files_name(tmp_path: Path) -> None:
    files = {**CLOCK.files, "Dockerfile.1.9": "greeter v0\n", "Dockerfile.1.10": "FROM x\nRUN get greeter line\n"}
    made = make_distribution(tmp_path, (GREETER, replace(CLOCK, files=files)))
    where = "    companions: {file: 'Dockerfile[.0-9]+', revisions: {greeter: 'get greeter (\\S+)'}}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n" + where)
    greeter = made.origins / "greeter"
    git(greeter, "branch", "line")
    row = outdated(made, code=0)["clock"]
    assert row["companions"] == [{"upstream": "greeter", "revision": "line", "pinned": True}]
    git(greeter, "checkout", "--quiet", "line")
    git(greeter, "commit", "--quiet", "--allow-empty", "-m", "a fix")
    found = outdated(made, code=1)  # the branch that another upstream follows has moved on
    assert newer(found["greeter"]) == {"branch": ("line", "exact", [])}
    assert found["clock"]["companions"][0]["pinned"] is False


def test_an_upstream_that_cannot_be_asked(made: Made) -> None:
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    (made.origins / "clock").rename(made.origins / "away")
    found = outdated(made, code=3)
    assert newer(found["greeter"]) == {"release": ("v2", "exact", [])} and found["clock"]["unavailable"]
    outdated(made, "--skip-unavailable", code=1)
    done = made.patchctl("outdated", "clock")
    assert done.returncode == 3 and "tried" in done.stderr


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("{file: '[', revisions: {}}", "not a regular expression"),
        ("{file: a, revisions: {greeter: b}}", "expected one group, the revision; found 0"),
        ("{file: a, revisions: {greter: (b)}}", "no upstream 'greter'; did you mean 'greeter'?"),
    ],
)
def test_expressions_that_cannot_be_used(said: str, message: str, made: Made) -> None:
    made.edit(
        "manifests/upstreams.yaml", "    summary: The clock.\n", f"    summary: The clock.\n    companions: {said}\n"
    )
    done = made.patchctl("outdated")
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_a_pin_of_the_archive_alone_is_not_newer_than_itself(made: Made) -> None:
    sdist(made, "1.0", GREETER.files)
    git(made.origins / "greeter", "tag", "v1")
    manifest = made.root / "manifests/stacks/greeter/v1.yaml"
    lines = manifest.read_text().splitlines(keepends=True)
    manifest.write_text(
        "".join("  commit: null\n" if "commit:" in line else line for line in lines if "  tree:" not in line)
    )
    assert outdated(made, "greeter", "--no-drift", code=0)["greeter"]["newer"] == []


def test_the_next_command_follows_a_branch_that_has_moved(made: Made) -> None:
    """Whose stack has the branch's name."""
    write_files(made.root, {"manifests/releases/2001.01.yaml": STAYS.partition("stays")[0]})
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n    releases: v\n")
    git(made.origins / "clock", "checkout", "--quiet", "-b", "v2")
    git(made.origins / "clock", "commit", "--quiet", "--allow-empty", "-m", "a fix")
    head = git(made.origins / "clock", "rev-parse", "HEAD").strip()
    said = made.patchctl("outdated").stdout
    assert said.endswith("next: patchctl bump 2001.01 --only clock@v2\n"), said
    done = made.patchctl(*shlex.split(said.rpartition("patchctl ")[2]), "--no-prove")
    assert done.returncode == 20 and f"clock/{head[:8]}: " in done.stdout, done.stdout + done.stderr


def test_a_release_before_the_pin_that_another_names_is_not_newer(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER, replace(CLOCK, files={**CLOCK.files, "Dockerfile": "greeter v0.9\n"})))
    where = "    companions: {file: Dockerfile, revisions: {greeter: 'greeter (\\S+)'}}\n"
    made.edit("manifests/upstreams.yaml", "    summary: The clock.\n", "    summary: The clock.\n" + where)
    greeter = made.origins / "greeter"
    git(greeter, "tag", "v0.9", git(greeter, "commit-tree", "-m", "release v0.9", "HEAD^{tree}").strip())
    found = outdated(made, code=0)
    assert found["greeter"]["newer"] == [] and found["clock"]["companions"][0]["pinned"] is False


def test_without_its_source_it_still_knows_what_is_newer(made: Made) -> None:
    sdist(made, "2.0", GREETER.files)
    outdated(made, "greeter", "--source", "sdist", "--no-drift", code=1)
    row = outdated(made, "greeter", "--source", "sdist", "--offline", code=3)["greeter"]
    assert newer(row) == {"release": ("2.0", None, [])} and row["unavailable"]


def test_the_release_that_is_named_is_the_one_that_it_is_for(made: Made) -> None:
    later = STAYS.replace("2001.01", "2001.02")
    write_files(made.root, {"manifests/releases/2001.01.yaml": STAYS, "manifests/releases/2001.02.yaml": later})
    release(made, "v2", {"other.py": "OTHER = 1\n"})
    done = made.patchctl("outdated", "greeter", "--release", "2001.01", "--json")
    assert json.loads(done.stdout)["release"] == "2001.01"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("v1.2.0", "1.2.0", True),
        ("core_r1.2", "v1.2.0", True),
        ("v1.2.0rc1", "v1.2.0.post1", False),
        ("main", "main", True),
        ("main", "dev", False),
        ("v1-fix", "v1-fix2", False),
    ],
)
def test_names_of_one_release(one: str, other: str, same: bool) -> None:
    assert is_same(one, other) == same
