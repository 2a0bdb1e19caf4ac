"""Faults between files: each row breaks the good distribution at one place and gives the place and the message."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from patchctl.manifest.diagnostics import InvalidManifest
from patchctl.manifest.distribution import Distribution

pytestmark = pytest.mark.family("YAML")

UPSTREAMS = "manifests/upstreams.yaml"
V1 = "manifests/stacks/greeter/v1.yaml"
SITE = "manifests/stacks/greeter/v1-site.yaml"
CLOCK = "manifests/stacks/clock/v2.yaml"
PROFILE = "manifests/profiles/site.yaml"

Edit = Callable[[str, str, str], None]

ROWS = {
    "stack_in_anothers_folder": (
        (CLOCK, "upstream: clock", "upstream: greeter"),
        (CLOCK, 2, "upstream: expected 'clock', the folder's name; found 'greeter'"),
    ),
    "stack_in_anothers_file": (
        (CLOCK, "name: v2", "name: v3"),
        (CLOCK, 3, "name: expected 'v2', the file's name; found 'v3'"),
    ),
    "profile_in_anothers_file": (
        (PROFILE, "name: site", "name: sight"),
        (PROFILE, 2, "name: expected 'site', the file's name; found 'sight'"),
    ),
    "sdist_without_a_name": (
        (UPSTREAMS, "    sdist: greeter\n", ""),
        (V1, 7, "pin.sdist: upstreams.yaml has no sdist for greeter"),
    ),
    "no_source_at_all": (
        (UPSTREAMS, "    git: [https://example.org/clock.git]\n", ""),
        (CLOCK, 4, "pin: no source: neither an sdist here nor a git repository for clock in upstreams.yaml"),
    ),
    "pin_of_nothing": (
        (CLOCK, 'commit: "2222222222222222222222222222222222222222"', "commit: null"),
        (CLOCK, 5, "pin.commit: null needs 'sdist', or nothing is pinned"),
    ),
    "number_twice": (
        (CLOCK, "  - 0001-bugfix-second.patch", "  - 0001-bugfix-second.patch\n  - 0001-bugfix-second.patch"),
        (CLOCK, 8, "patches[1]: number 0001 after 0001; numbers must ascend"),
    ),
    "number_goes_back": (
        (
            V1,
            "  - 0001-feature-polite.patch\n  - 0002-bugfix-typo.patch",
            "  - 0002-bugfix-typo.patch\n  - 0001-feature-polite.patch",
        ),
        (V1, 12, "patches[1]: number 0001 after 0002; numbers must ascend"),
    ),
    "patch_misspelt": (
        (V1, "0005-feature-loud.patch", "0005-feature-lout.patch"),
        (
            V1,
            13,
            "patches[2]: '0005-feature-lout.patch' is not a regular file in {root}/patches/greeter/v1/lout;"
            " did you mean '0005-feature-loud.patch'?",
        ),
    ),
    "extends_unknown": (
        (SITE, "extends: v1", "extends: v11"),
        (SITE, 4, "extends: greeter has no stack 'v11'; did you mean 'v1'?"),
    ),
    "extends_of_another_upstream": (
        (SITE, "extends: v1", "extends: v2"),
        (SITE, 4, "extends: greeter has no stack 'v2'; known: v1"),
    ),
    "extends_itself": ((CLOCK, "pin:", "extends: v2\npin:"), (CLOCK, 4, "extends: cycle: v2 extends v2")),
    "comes_from_itself": (
        (CLOCK, "pin:", "comes_from: v2\npin:"),
        (CLOCK, 4, "comes_from: cycle: it comes from a stack that comes from this one"),
    ),
    "comes_from_what_extends_it": (
        (V1, "pin:", "comes_from: v1-site\npin:"),
        (V1, 4, "comes_from: cycle: it comes from a stack that comes from this one"),
    ),
    "comes_from_and_extends": (
        (SITE, "pin:", "comes_from: v1\npin:"),
        (SITE, 5, "comes_from: redundant with 'extends'"),
    ),
    "postponed_from_nowhere": (
        (CLOCK, "pin:", "postponed: {second: when the tests are}\npin:"),
        (CLOCK, 4, "postponed: needs 'comes_from', the stack that had these features"),
    ),
    "extends_another_commit": (
        (SITE, "1111111111111111111111111111111111111111", "1111111111111111111111111111111111111112"),
        (SITE, 6, "pin.commit: differs from that of v1, which this stack extends"),
    ),
    "extends_another_sdist": (
        (SITE, 'version: "1.0"', 'version: "1.1"'),
        (SITE, 8, "pin.sdist: differs from that of v1, which this stack extends"),
    ),
    "replaces_nothing_of_the_parent": (
        (SITE, "  0002-bugfix-typo.patch:", "  0002-bugfix-typos.patch:"),
        (SITE, 12, "replace.0002-bugfix-typos.patch: is not a patch of v1; did you mean '0002-bugfix-typo.patch'?"),
    ),
    "replacement_misspelt": (
        (SITE, ": 0001-bugfix-typo.patch", ": 0001-bugfix-tipo.patch"),
        (
            SITE,
            12,
            "replace.0002-bugfix-typo.patch: '0001-bugfix-tipo.patch' is not a regular file in {root}/patches/greeter/v1-site/tipo;"
            " did you mean '0001-bugfix-typo.patch'?",
        ),
    ),
    "replacement_listed_as_well": (
        (SITE, "  - 0002-feature-site", "  - 0001-bugfix-typo.patch\n  - 0002-feature-site"),
        (SITE, 12, "replace.0002-bugfix-typo.patch: '0001-bugfix-typo.patch' is applied twice"),
    ),
    "generated_twice": (
        (V1, "generated:\n", "generated:\n  - {path: greeter/_version.py, content: '', why: x}\n"),
        (V1, 16, "generated[1].path: duplicate 'greeter/_version.py'"),
    ),
    "profile_without_stacks": (
        (PROFILE, "stacks:\n  clock: v2\n  greeter: v1-site\nwithout:\n  - loud@greeter\n", "stacks: {}\n"),
        (PROFILE, 4, "stacks: expected at least one stack"),
    ),
    "profile_upstream_unknown": (
        (PROFILE, "clock: v2", "clocks: v2"),
        (PROFILE, 5, "stacks.clocks: is not in upstreams.yaml; did you mean 'clock'?"),
    ),
    "profile_stack_unknown": (
        (PROFILE, "greeter: v1-site", "greeter: v1-sight"),
        (PROFILE, 6, "stacks.greeter: greeter has no stack 'v1-sight'; did you mean 'v1-site'?"),
    ),
    "profile_without_twice": (
        (PROFILE, "  - loud@greeter\n", "  - loud@greeter\n  - loud@greeter\n"),
        (PROFILE, 9, "without[1]: duplicate 'loud@greeter'"),
    ),
    "profile_without_other_upstream": (
        (PROFILE, "loud@greeter", "loud@greter"),
        (PROFILE, 8, "without[0]: the profile has no 'greter'; did you mean 'greeter'?"),
    ),
    "profile_runtime_unknown": (
        (PROFILE, "torch:", "pytorch:"),
        (PROFILE, 10, "runtime.pytorch: is not a requirement in upstreams.yaml; did you mean 'torch'?"),
    ),
}


def problems(root: Path) -> list[tuple[str, int, str]]:
    with pytest.raises(InvalidManifest) as caught:
        Distribution.load(root)
    return [
        (str(Path(p.file).relative_to(root)), p.line, str(p).replace(str(root), "{root}"))
        for p in caught.value.problems
    ]


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_one_fault_between_files(
    row: tuple[tuple[str, str, str], tuple[str, int, str]], root: Path, edit: Edit
) -> None:
    change, expected = row
    edit(*change)
    assert problems(root) == [expected]


def test_the_good_one_is_good(root: Path) -> None:
    assert len(Distribution.load(root).stacks) == 3


def test_dropped_and_postponed(root: Path, edit: Edit) -> None:
    left = "comes_from: v1\ndropped: {typo: gone}\npostponed: {polite: soon, typo: soon}\n"
    text = (root / V1).read_text().partition("patches:")[0].replace("name: v1\n", f"name: v2\n{left}")
    other = "manifests/stacks/greeter/v2.yaml"
    (root / other).write_text(text)
    assert problems(root) == [(other, 6, "postponed.typo: is also in 'dropped'")]


def test_a_tag_without_a_commit(root: Path, edit: Edit) -> None:
    for file in (V1, SITE):
        edit(file, '"1111111111111111111111111111111111111111"', "null")
    assert problems(root) == [(V1, 6, "pin.tag: needs 'commit', which it belongs to")]
    for file in (V1, SITE):
        edit(file, "  tag: v1\n", "")
    assert {s.pin.commit for (u, _), s in Distribution.load(root).stacks.items() if u == "greeter"} == {None}


def test_stacks_that_extend_each_other(root: Path, edit: Edit) -> None:
    edit(V1, "name: v1\n", "name: v1\nextends: v1-site\n")
    edit(SITE, "replace:\n  0002-bugfix-typo.patch: 0001-bugfix-typo.patch\n", "")
    assert problems(root) == [
        (SITE, 4, "extends: cycle: v1-site extends v1 extends v1-site"),
        (V1, 4, "extends: cycle: v1 extends v1-site extends v1"),
    ]


def test_replace_without_extends(root: Path, edit: Edit) -> None:
    edit(SITE, "extends: v1\n", "")
    assert problems(root) == [(SITE, 10, "replace: needs 'extends', or there is nothing to replace")]


def test_a_replaced_name_that_the_parent_has_twice(root: Path, edit: Edit) -> None:
    edit(SITE, "replace:\n  0002-bugfix-typo.patch: 0001-bugfix-typo.patch\n", "")
    edit(SITE, "0002-feature-site.patch", "0002-bugfix-typo.patch")
    folder = root / "patches/greeter"
    (folder / "v1-site/typo/0001-bugfix-typo.patch").rename(folder / "v1-site/typo/0002-bugfix-typo.patch")
    (folder / "third/typo").mkdir(parents=True)
    (folder / "third/typo/0001-bugfix-typo.patch").write_text("")
    third = (root / SITE).read_text().replace("name: v1-site\nextends: v1\n", "name: third\nextends: v1-site\n")
    third = third.replace(
        "patches:\n  - 0002-bugfix-typo.patch\n", "replace: {0002-bugfix-typo.patch: 0001-bugfix-typo.patch}\n"
    )
    (root / "manifests/stacks/greeter/third.yaml").write_text(third)
    what = "replace.0002-bugfix-typo.patch: names more than one patch of v1-site"
    assert problems(root) == [("manifests/stacks/greeter/third.yaml", 11, what)]


def test_a_stack_folder_that_is_no_upstream(root: Path) -> None:
    (root / "manifests/stacks/clocks").mkdir()
    (root / CLOCK).rename(root / "manifests/stacks/clocks/v2.yaml")
    (root / "manifests/stacks/clocks/v2.yaml").write_text((root / V1).read_text().replace("greeter", "clocks"))
    found = problems(root)
    assert (
        "manifests/stacks/clocks/v2.yaml",
        2,
        "upstream: 'clocks' is not in upstreams.yaml; did you mean 'clock'?",
    ) in found
    assert (PROFILE, 5, "stacks.clock: clock has no stack 'v2'") in found


def test_a_broken_file_is_not_held_against_those_that_name_it(root: Path, edit: Edit) -> None:
    edit(V1, "schema: 1", "schema: 3")
    assert problems(root) == [(V1, 1, "schema: expected 1; found the number '3'; this patchctl reads format 1")]


def test_faults_of_all_files_are_told_at_once(root: Path, edit: Edit) -> None:
    edit(V1, "schema: 1", "schema: 3")
    edit(UPSTREAMS, "summary: Says hello.", "sumary: Says hello.")
    edit(PROFILE, "name: site", "name: sight")
    assert [(file, line) for file, line, _ in problems(root)] == [(PROFILE, 2), (V1, 1), (UPSTREAMS, 3), (UPSTREAMS, 4)]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("manifests/profiles/other.yml", "unexpected file 'other.yml'; expected files NAME.yaml here"),
        (
            "manifests/stacks/v9.yaml",
            "unexpected file 'v9.yaml'; expected one folder per upstream here",
        ),
        ("manifests/stacks/clock/old/v1.yaml", "unexpected folder 'old'; expected files NAME.yaml here"),
        (
            "manifests/stack/x",
            "unexpected folder 'stack'; expected upstreams.yaml, practice.yaml, stacks/, releases/ and profiles/ here",
        ),
    ],
)
def test_files_that_would_be_passed_over_in_silence(root: Path, path: str, what: str) -> None:
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("schema: 1\n")
    assert [(line, text) for _, line, text in problems(root)] == [(1, what)]


@pytest.mark.parametrize("name", [".v1.yaml.swp", "v1.yaml~"])
def test_what_editors_leave_behind_is_no_manifest(root: Path, name: str) -> None:
    (root / "manifests/stacks/greeter" / name).write_text("b0VIM")
    assert len(Distribution.load(root).stacks) == 3


@pytest.mark.parametrize("name", [b"a\x1b[31m\n::error::x", b"\xff\xfe", "\u202egnp".encode()])
@pytest.mark.parametrize(
    "place", ["manifests/profiles/{}.yaml", "manifests/stacks/clock/{}.yaml", "manifests/profiles/{}"]
)
def test_hostile_file_names_are_shown_safely(root: Path, name: bytes, place: str) -> None:
    good = PROFILE if "profiles" in place else CLOCK
    (root / place.format(os.fsdecode(name))).write_bytes((root / good).read_bytes().replace(b"v2", b"v3"))
    with pytest.raises(InvalidManifest) as caught:
        Distribution.load(root)
    assert all(c.isprintable() for line in str(caught.value).split("\n") for c in line)
    assert str(caught.value).count("\n") == len(caught.value.problems) - 1


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "gone"])
def test_a_patch_that_is_no_regular_file(root: Path, kind: str) -> None:
    patch = root / "patches/clock/v2/second/0001-bugfix-second.patch"
    patch.unlink()
    if kind == "link":
        patch.symlink_to("/etc/passwd")
    elif kind == "folder":
        patch.mkdir()
    elif kind == "fifo":
        os.mkfifo(patch)
    what = "patches[0]: '0001-bugfix-second.patch' is not a regular file in {root}/patches/clock/v2/second"
    assert problems(root) == [(CLOCK, 7, what)]


def test_a_line_whose_folder_is_gone_says_both_ways_out(root: Path) -> None:
    shutil.rmtree(root / "patches/clock/v2/second")
    what = "patches[0]: '0001-bugfix-second.patch' is not a regular file in {root}/patches/clock/v2/second, which does not exist:"
    assert problems(root) == [(CLOCK, 7, f"{what} remove this line or restore the folder")]


def test_patches_without_folders_of_their_features_are_told_what_to_do(root: Path) -> None:
    """As distributions had them before features had folders."""
    folder = root / "patches/clock/v2"
    (folder / "second/0001-bugfix-second.patch").rename(folder / "0001-bugfix-second.patch")
    what = "patches[0]: '0001-bugfix-second.patch' is not a regular file in {root}/patches/clock/v2/second; it is next to that"
    assert problems(root) == [(CLOCK, 7, f"{what} folder: move it and its carried files (files/) into it")]


def test_a_patch_that_vanished_is_found_although_the_manifests_are_cached(root: Path, tmp_path: Path) -> None:
    Distribution.load(root, tmp_path / "cache")
    (root / "patches/clock/v2/second/0001-bugfix-second.patch").unlink()
    with pytest.raises(InvalidManifest) as caught:
        Distribution.load(root, tmp_path / "cache")
    assert caught.value.problems[0].line == 7


def test_a_stray_file_is_found_although_the_manifests_are_cached(root: Path, tmp_path: Path) -> None:
    Distribution.load(root, tmp_path / "cache")
    (root / "manifests/profiles/other.yml").write_text("")
    with pytest.raises(InvalidManifest, match="unexpected file"):
        Distribution.load(root, tmp_path / "cache")


def test_upstreams_missing(root: Path) -> None:
    (root / UPSTREAMS).unlink()
    assert problems(root) == [(UPSTREAMS, 1, "cannot be read: No such file or directory")]
