"""`patchctl lock`: what it writes, and what it must not lose."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, git, make_distribution

LOCK = "manifests/locks/clock/v2.json"


def lonely(made: Made, *names: str) -> None:
    """No place has these upstreams any more."""
    upstreams = made.root / "manifests/upstreams.yaml"
    for name in names:
        shutil.rmtree(made.cache / "git" / name)
        upstreams.write_text(upstreams.read_text().replace(f"/origins/{name}", f"/origins/no-{name}"))


def run(made: Made, *args: str) -> tuple[int, dict[str, Any]]:
    done = made.patchctl("lock", "--json", *args)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_a_lock_that_cannot_be_computed_is_not_overwritten(own: Made) -> None:
    lonely(own, "clock")
    own.edit(own.patch("step"), "The code does it now", "It does it now")
    own.edit(own.patch("typo"), "The code does it now", "It does it now")
    before = (own.root / LOCK).read_bytes()
    done = own.patchctl("lock")
    assert done.returncode == 3 and "origins/no-clock" in done.stdout, done.stdout
    (line,) = [row for row in done.stdout.splitlines() if row.startswith("clock")]
    assert "not written" in line
    assert (own.root / LOCK).read_bytes() == before
    assert own.patchctl("lock", "--check", "--upstream", "greeter").returncode == 0  # that one could be had
    code, found = run(own, "--upstream", "clock")
    (row,) = found["stacks"]
    assert code == 3 and row["written"] is False and row["unavailable"]["git"]
    assert row["differences"] == ["0001-feature-step.patch changed", "the result in form git is not known"]
    assert own.patchctl("lock", "--check", "--upstream", "clock").returncode == 1


def test_a_first_lock_that_cannot_be_computed_is_not_written(tmp_path: Path) -> None:
    made = make_distribution(tmp_path)
    shutil.rmtree(made.origins / "clock")
    code, found = run(made)
    assert code == 3 and [row["written"] for row in found["stacks"]] == [False, True]
    assert not (made.root / LOCK).exists() and (made.root / "manifests/locks/greeter/v1.json").exists()


def test_a_lock_that_is_still_right_is_kept_without_a_source(own: Made) -> None:
    lonely(own, "clock")
    before = (own.root / LOCK).read_bytes()
    assert run(own)[0] == 0
    assert (own.root / LOCK).read_bytes() == before


def conflicted(text: str) -> str:
    return text.replace("{", "{\n<<<<<<< HEAD\n=======\n>>>>>>> other\n", 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:100],
        lambda text: "",
        conflicted,
        lambda text: "[" * 100_000,
        lambda text: "\udcff" + text,
    ],
    ids=["cut-off", "empty", "conflict", "deeply-nested", "no-text"],
)
def test_a_damaged_lock_is_written_again(own: Made, damage: Callable[[str], str]) -> None:
    file = own.root / LOCK
    before = file.read_text()
    file.write_bytes(damage(before).encode("utf-8", "surrogateescape"))
    assert own.patchctl("verify", "--static").returncode in (1, 2)
    assert own.patchctl("lock", "--check").returncode == 1
    code, found = run(own)
    (row,) = [row for row in found["stacks"] if row["upstream"] == "clock"]
    assert code == 0 and row["written"] and "cannot use the lock" in row["differences"][0]
    assert file.read_text() == before


def test_a_lock_of_a_later_version_is_not_written_over(own: Made) -> None:
    file = own.root / LOCK
    own.edit(file, '"version": 1', '"version": 2')
    before = file.read_bytes()
    done = own.patchctl("lock")
    assert done.returncode == 2 and "a newer patchctl" in done.stderr
    assert file.read_bytes() == before


def test_a_form_that_cannot_be_had_is_unknown_beside_one_that_can(tmp_path: Path) -> None:
    made = make_distribution(tmp_path, (GREETER, replace(CLOCK, sdist=tuple(CLOCK.files))), lock=True)
    lonely(made, "clock")
    made.edit(made.patch("step"), "The code does it now", "It does it now")
    assert run(made)[0] == 0
    forms = json.loads((made.root / LOCK).read_text())["results"][0]["forms"]
    assert forms["git"] == "unknown" and forms["sdist"] != "unknown"


@pytest.fixture
def mixed(tmp_path: Path) -> Made:
    """clock has an sdist, and requires a feature of greeter, which is in git only: two selections are locked."""
    made = make_distribution(tmp_path, (GREETER, replace(CLOCK, sdist=tuple(CLOCK.files))), lock=True)
    assert [r["without"] for r in json.loads((made.root / LOCK).read_text())["results"]] == [[], ["step"]]
    return made


def break_patch(made: Made, feature: str) -> Path:
    """A patch whose `+++` line cannot be read."""
    file = made.patch(feature)
    lines = file.read_text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if line.startswith("+++ "))
    lines[number] = "+++ nothing\n"
    file.write_text("".join(lines))
    return file


@pytest.mark.parametrize(
    ("broken", "other", "tree"), [("typo", "clock", "sdist trees"), ("step", "greeter", "git trees")]
)
def test_a_patch_that_cannot_be_read_stops_its_own_stack_only(mixed: Made, broken: str, other: str, tree: str) -> None:
    file = break_patch(mixed, broken)
    done = mixed.patchctl("verify", "--json")
    report = json.loads(done.stdout)
    errors = [
        f for f in report["findings"] if f["severity"] == "error" and f["rule"] not in ("page-stale", "schema-stale")
    ]
    assert [(f["rule"], f["file"]) for f in errors] == [("patch-file", file.relative_to(mixed.root).as_posix())]
    assert done.returncode == 1 and report["checked"][tree] == 1
    code, found = run(mixed, "--check", "--upstream", other)
    assert (code, [row["differences"] for row in found["stacks"]]) == (0, [[]])
    before = (mixed.root / LOCK).read_bytes()
    mixed.good("lock", "--upstream", other)
    assert (mixed.root / LOCK).read_bytes() == before


def contents(made: Made) -> dict[str, bytes]:
    return {p.relative_to(made.root).as_posix(): p.read_bytes() for p in made.root.rglob("*") if p.is_file()}


@pytest.fixture
def kept(own: Made) -> Made:
    """A distribution that keeps pages of its patches, and editors' schemas."""
    (own.root / "manifests/schema").mkdir()
    own.good("lock", "--pages")
    return own


def test_pages_and_schemas_are_written_in_the_same_run(kept: Made) -> None:
    before = contents(kept)
    kept.edit(kept.patch("step"), "The code does it now", "It does it now")
    (kept.root / "manifests/schema/stack.schema.json").unlink()
    code, found = run(kept)
    page = "docs/patches/clock/v2/step.md"
    assert code == 0 and found["written"] == [page, "manifests/schema/stack.schema.json"]
    after = contents(kept)
    patch = kept.patch("step").relative_to(kept.root).as_posix()
    assert {path for path in before if before[path] != after[path]} == {LOCK, page, patch}
    code, found = run(kept)
    assert (code, found["written"], found["removed"]) == (0, [], []) and contents(kept) == after
    assert kept.good("lock", "--pages") == "checked 4 patches: no errors\n" and contents(kept) == after


def test_check_names_each_file_that_would_differ(kept: Made) -> None:
    kept.edit(kept.patch("step"), "The code does it now", "It does it now")
    (kept.root / "docs/patches/greeter/v1/README.md").write_text("by hand\n")
    (kept.root / "manifests/schema/stack.schema.json").write_text("{}\n")
    before = contents(kept)
    done = kept.patchctl("lock", "--check")
    assert done.returncode == 1 and contents(kept) == before
    stale = [
        LOCK,
        "docs/patches/clock/v2/step.md",
        "docs/patches/greeter/v1/README.md",
        "manifests/schema/stack.schema.json",
    ]
    assert [name for name in stale if name not in done.stdout.replace("    ", "").splitlines()] == []
    _, found = run(kept, "--check")
    assert [f["file"] for f in found["findings"]] == stale[1:]
    kept.good("lock")
    kept.good("lock", "--check")


def test_pages_alone_that_differ_fail_the_check(kept: Made) -> None:
    (kept.root / "docs/patches/README.md").write_text("by hand\n")
    assert kept.patchctl("lock", "--check", "--upstream", "clock").returncode == 1


def test_a_distribution_that_keeps_no_pages_gets_none(own: Made) -> None:
    own.edit(own.patch("step"), "The code does it now", "It does it now")
    code, found = run(own)
    assert (code, found["written"], found["findings"]) == (0, [], []) and not (own.root / "docs").exists()


def test_pages_stay_while_a_patch_of_another_stack_cannot_be_read(kept: Made) -> None:
    file = break_patch(kept, "typo")
    before = contents(kept)
    code, found = run(kept, "--upstream", "clock")
    assert code == 1 and [f["rule"] for f in found["findings"]] == ["patch-file"]
    assert found["findings"][0]["file"] == file.relative_to(kept.root).as_posix() and contents(kept) == before


def test_patches_of_two_stacks_that_two_people_change_merge(kept: Made) -> None:
    """Each branch changes a patch of its own stack and locks: git merges, and nothing is left to write."""
    root = kept.root
    git(root, "init", "--quiet", "--initial-branch=main")
    for branch, feature in (("main", ""), ("one", "step"), ("two", "loud")):
        if feature:
            git(root, "checkout", "--quiet", "-b", branch, "main")
            kept.edit(
                kept.patch(feature), f"Subject: [PATCH] {subject(kept, feature)}", f"Subject: [PATCH] {feature}: do it"
            )
            kept.good("lock")
            kept.good("lock", "--pages", "--check")
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", branch)
    git(root, "merge", "--quiet", "-m", "both", "one")
    kept.good("lock", "--check")


def subject(made: Made, feature: str) -> str:
    return made.patch(feature).read_text().partition("Subject: [PATCH] ")[2].partition("\n")[0]
