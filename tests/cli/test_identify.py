"""`patchctl identify` on folders made by git, by `patchctl apply` and by hand, run as a user runs it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from distribution import CLOCK, GREETER, Made, Patch, git, make_distribution, write_files

TALK = 'def talk(topic):\n    return f"let us talk about {topic}"\n'
NAMES = 'NAMES = ["Ada", "Alan", "Grace"]\n'
# More files than the small one has, so that a part of the tree is still enough to tell it by.
BIG = replace(
    GREETER,
    files={
        **GREETER.files,
        "greeter/names.py": NAMES,
        "greeter/words/__init__.py": "",
        "greeter/words/talk.py": TALK,
        "greeter/words/silence.py": "SILENCE = 0\n",
        "greeter/words/noise.py": "NOISE = 11\n",
        "greeter/words/README.md": "Words.\n",
        "tests/__init__.py": "# tests of greeter\n",
        "tests/test_talk.py": "def test_talk():\n    assert True\n",
    },
)
TICKING = replace(
    CLOCK,
    files={
        **CLOCK.files,
        "clock/zones.py": "ZONES = 24\n",
        "clock/bell.py": "BELL = 'ding'\n",
        "clock/hand.py": "HANDS = 3\n",
        "tests/__init__.py": "# clock\n",
    },
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return make_distribution(tmp_path_factory.mktemp("identify"), (BIG, TICKING), lock=True)


@pytest.fixture
def tree(made: Made, tmp_path: Path) -> Path:
    """A checkout of greeter's pin, to be changed at will."""
    return Path(shutil.copytree(made.origins / "greeter", tmp_path / "checkout"))


def identify(made: Made, folder: Path, code: int) -> dict[str, Any]:
    done = made.patchctl("identify", str(folder), "--json")
    assert done.returncode == code, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["schema"] == "patchctl.identify/1"
    assert found["exact"] == (code == 0)
    return found


def only(found: dict[str, Any]) -> dict[str, Any]:
    """The single tree that was found."""
    assert len(found["trees"]) == 1, [t["upstream"] for t in found["trees"]]
    tree: dict[str, Any] = found["trees"][0]
    return tree


def states(tree: dict[str, Any]) -> dict[str, str]:
    return {p["feature"]: p["state"] for p in tree["patches"]}


def apply(made: Made, folder: Path, *args: str) -> Path:
    made.good("apply", "--profile", "full", "--workspace", str(folder), *args)
    return folder / "greeter"


def digests(folder: Path) -> dict[str, tuple[str, int, int]]:
    files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
    return {str(p): (hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_mode, p.stat().st_mtime_ns) for p in files}


def test_a_checkout_is_its_pin(made: Made, tree: Path) -> None:
    found = only(identify(made, tree, 0))
    assert (found["upstream"], found["stacks"], found["form"], found["at"]) == ("greeter", ["v1"], "complete", "")
    assert found["commit"] == git(tree, "rev-parse", "HEAD").strip()
    assert found["present"] == found["listed"] == found["equal"] == len(BIG.files)
    assert found["patches"] == [] and found["patched"] == 0


def test_the_text_names_pin_and_form(made: Made, tree: Path) -> None:
    text = made.good("identify", str(tree))
    assert f"is greeter v1  {git(tree, 'rev-parse', 'HEAD')[:12]}  complete" in text


def test_nothing_is_written(made: Made, tree: Path) -> None:
    made.good("identify", str(tree))
    before = {**digests(made.root), **digests(tree), **digests(made.cache)}
    made.good("identify", str(tree))
    assert {**digests(made.root), **digests(tree), **digests(made.cache)} == before


def test_a_tree_that_we_patched_names_its_patches(made: Made, tmp_path: Path) -> None:
    found = only(identify(made, apply(made, tmp_path / "ws"), 0))
    assert states(found) == {"typo": "wholly", "polite": "wholly", "loud": "wholly"}
    assert found["patched"] == 2  # hello.py and the carried file
    assert found["present"] == found["listed"] == found["equal"] + 1 and found["added"] == 1
    count = len(BIG.files)
    text = made.good("identify", str(tmp_path / "ws" / "greeter"))
    assert f"{count} of {count} files are here: {count - 1} as pinned, 1 patched; and 1 that patches add" in text
    assert found["form"] == "complete"


@pytest.mark.parametrize(
    ("without", "kept"),
    [(("polite", "loud"), {"typo"}), (("polite",), {"typo", "loud"}), (("loud",), {"typo", "polite"})],
)
def test_patches_that_were_left_out_are_not_named(
    made: Made, tmp_path: Path, without: Sequence[str], kept: set[str]
) -> None:
    """With polite left out and loud kept, hello.py is a blob that no lock holds."""
    options = [word for feature in without for word in ("--without", feature)]
    found = only(identify(made, apply(made, tmp_path / "ws", *options), 0))
    assert states(found) == dict.fromkeys(kept, "wholly")


def test_patches_of_a_file_that_many_touch_may_be_left_out(tmp_path: Path) -> None:
    """Twelve patches of one file: nine of verl's touch its Megatron workers, and an image without MindSpeed lacks one of those."""
    hours = [f"HOUR_{n} = {n}\n\n\n\n\n" for n in range(12)]
    day = "".join(hours)
    patches = []
    for n in range(12):
        day = day.replace(f"HOUR_{n} = {n}\n", f"HOUR_{n} = {n + 100}\n")
        patches.append(Patch(f"hour_{n}", {"greeter/day.py": day}, f"day: move hour {n}"))
    many = replace(BIG, files={**BIG.files, "greeter/day.py": "".join(hours)}, patches=tuple(patches))
    made = make_distribution(tmp_path / "made", (many,), lock=True)
    for without in (("hour_7",), ("hour_0", "hour_5", "hour_11"), tuple(f"hour_{n}" for n in range(0, 12, 2))):
        tree = apply(made, tmp_path / without[0], *(word for name in without for word in ("--without", name)))
        found = only(identify(made, tree, 0))
        assert states(found) == {p.feature: "wholly" for p in patches if p.feature not in without}
    (tree / "greeter" / "day.py").write_text(day + "# and one line\n")
    assert [one["path"] for one in only(identify(made, tree, 1))["differing"]] == ["greeter/day.py"]


def test_half_a_patch_is_named_and_is_no_pin(made: Made, tmp_path: Path) -> None:
    tree = apply(made, tmp_path / "ws")
    (tree / "greeter" / "manners.py").unlink()
    found = only(identify(made, tree, 1))
    assert states(found) == {"typo": "wholly", "polite": "partly", "loud": "wholly"}
    assert next(p["without"] for p in found["patches"] if p["feature"] == "polite") == ["greeter/manners.py"]
    assert "has a part of polite" in made.patchctl("identify", str(tree)).stdout


def test_a_changed_file_is_named(made: Made, tree: Path) -> None:
    (tree / "greeter" / "names.py").write_text(NAMES + "NAMES.append('Linus')\n")
    found = only(identify(made, tree, 1))
    assert found["differing"] == [{"path": "greeter/names.py", "why": "other content"}]
    assert found["equal"] == len(BIG.files) - 1
    text = made.patchctl("identify", str(tree)).stdout
    assert "is not exactly greeter v1" in text and "differs greeter/names.py" in text


def test_a_file_edited_after_patching_is_named(made: Made, tmp_path: Path) -> None:
    tree = apply(made, tmp_path / "ws")
    with (tree / "greeter" / "hello.py").open("a") as file:
        file.write("# mine\n")
    found = only(identify(made, tree, 1))
    assert [d["path"] for d in found["differing"]] == ["greeter/hello.py"]


def test_only_twenty_files_are_printed_and_json_has_all(tmp_path: Path) -> None:
    many = replace(BIG, patches=(), files={**BIG.files, **{f"greeter/m{i:02}.py": f"N = {i}\n" for i in range(40)}})
    made = make_distribution(tmp_path / "made", (many,), lock=True)
    tree = Path(shutil.copytree(made.origins / "greeter", tmp_path / "tree"))
    for i in range(30):
        (tree / f"greeter/m{i:02}.py").write_text("N = None\n")
    assert len(only(identify(made, tree, 1))["differing"]) == 30
    text = made.patchctl("identify", str(tree)).stdout
    assert text.count("differs greeter/m") == 20 and "... and 10 more" in text


def test_line_ends_are_named_as_such(made: Made, tree: Path) -> None:
    file = tree / "greeter" / "names.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    found = only(identify(made, tree, 1))
    assert found["differing"] == [
        {"path": "greeter/names.py", "why": "line ends are CRLF; with LF it would be the file"}
    ]


def test_line_ends_of_a_patched_file_are_named_as_such(made: Made, tmp_path: Path) -> None:
    tree = apply(made, tmp_path / "ws")
    file = tree / "greeter" / "hello.py"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    found = only(identify(made, tree, 1))
    assert [(d["path"], "CRLF" in d["why"]) for d in found["differing"]] == [("greeter/hello.py", True)]


def test_a_lost_executable_bit_is_named_and_is_no_difference(made: Made, tree: Path) -> None:
    (tree / "run.sh").chmod(0o644)
    found = only(identify(made, tree, 0))
    assert found["modes"] == ["run.sh"]
    assert "executable bit" in made.good("identify", str(tree))


def test_a_module_that_is_not_the_pins_is_named(made: Made, tree: Path) -> None:
    (tree / "greeter" / "words" / "more.py").write_text("MORE = 1\n")
    (tree / "notes.py").write_text("outside of every package\n")
    (tree / "greeter" / "data.bin").write_bytes(b"\0")
    found = identify(made, tree, 1)
    assert only(found)["extra"] == ["greeter/words/more.py"]
    assert found["others"] == 2


def test_what_builds_write_into_packages_is_no_difference(made: Made, tree: Path) -> None:
    """A version file, generated code, and operators in folders that are no package, as in published images."""
    write_files(
        tree, {"greeter/_version.py": "v = 9\n", "greeter/words/talk_pb2.py": "", "greeter/_ops/kit/impl/op.py": ""}
    )
    found = identify(made, tree, 0)
    assert (only(found)["extra"], found["build_outputs"], found["others"]) == ([], 2, 1)
    write_files(tree, {"greeter/_ops/__init__.py": ""})
    assert only(identify(made, tree, 1))["extra"] == ["greeter/_ops/__init__.py"]
    write_files(tree, {"greeter/_ops/kit/__init__.py": "", "greeter/_ops/kit/impl/__init__.py": ""})
    assert "greeter/_ops/kit/impl/op.py" in only(identify(made, tree, 1))["extra"]


def test_files_outside_the_packages_are_counted_and_no_difference(made: Made, tree: Path) -> None:
    write_files(
        tree, {"notes.txt": "mine\n", "scratch/try.py": "1\n", "greeter/fast.so": "", "greeter/__pycache__/a.pyc": ""}
    )
    found = identify(made, tree, 0)
    assert (found["others"], found["build_outputs"]) == (2, 1)
    assert found["passed_by"] == 2  # .git and __pycache__


def test_a_missing_module_is_named(made: Made, tree: Path) -> None:
    (tree / "greeter" / "words" / "noise.py").unlink()
    found = only(identify(made, tree, 1))
    assert found["missing"] == ["greeter/words/noise.py"]


def test_a_missing_text_file_is_named_and_is_no_difference(made: Made, tree: Path) -> None:
    (tree / "greeter" / "words" / "README.md").unlink()
    found = only(identify(made, tree, 0))
    assert (found["missing"], found["form"]) == (["greeter/words/README.md"], "part")


def test_an_installed_package_is_its_pin(made: Made, tree: Path, tmp_path: Path) -> None:
    site = tmp_path / "lib" / "site-packages"
    shutil.copytree(tree / "greeter", site / "greeter")
    (site / "greeter" / "words" / "README.md").unlink()  # wheels have modules, and little else
    write_files(site, {"greeter-9.9.dist-info/METADATA": "Version: 9.9\n", "other/__init__.py": "x = 1\n"})
    found = only(identify(made, site, 0))
    assert (found["form"], found["at"]) == ("package", "")
    found = only(identify(made, site / "greeter", 0))
    assert (found["form"], found["at"]) == ("package", "greeter/")


def test_site_packages_can_hold_several_pins(made: Made, tmp_path: Path) -> None:
    """Both have a tests/ at the top, and so may any other distribution: only packages count there."""
    site = tmp_path / "site-packages"
    patched = apply(made, tmp_path / "ws")
    shutil.copytree(patched / "greeter", site / "greeter")
    shutil.copytree(made.origins / "clock" / "clock", site / "clock")
    write_files(site, {"tests/__init__.py": "# somebody's\n", "greeter-1.dist-info/RECORD": ""})
    found = identify(made, site, 0)
    assert {(t["upstream"], t["form"], len(t["patches"])) for t in found["trees"]} == {
        ("greeter", "package", 3),
        ("clock", "package", 0),
    }
    (site / "clock" / "bell.py").write_text("BELL = 'dong'\n")
    found = identify(made, site, 1)
    assert {t["upstream"]: t["exact"] for t in found["trees"]} == {"greeter": True, "clock": False}


def test_version_strings_do_not_count(made: Made, tree: Path) -> None:
    """An image can hold another tree under the version of the pin."""
    write_files(tree, {"greeter/hello.py": "# rewritten\n", "greeter/words/talk.py": "# rewritten\n"})
    write_files(tree, {"greeter.egg-info/PKG-INFO": "Name: greeter\nVersion: 1\n", "PKG-INFO": "Version: 1\n"})
    found = only(identify(made, tree, 1))
    assert [d["path"] for d in found["differing"]] == ["greeter/hello.py", "greeter/words/talk.py"]


def test_an_unpacked_sdist_is_its_pin(made: Made, tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "greeter-1.0"
    shutil.copytree(tree / "greeter", folder / "greeter")
    write_files(folder, {"README.md": BIG.files["README.md"], "PKG-INFO": "Name: greeter\n"})
    write_files(folder, {"greeter.egg-info/SOURCES.txt": ""})
    found = only(identify(made, folder, 0))
    assert found["form"] == "sdist"


def test_a_subfolder_is_found_where_it_belongs(made: Made, tree: Path) -> None:
    found = only(identify(made, tree / "greeter" / "words", 0))
    assert (found["at"], found["form"], found["present"]) == ("greeter/words/", "part", 5)


def test_too_little_is_no_known_pin(made: Made, tmp_path: Path) -> None:
    write_files(tmp_path / "little", {"greeter/__init__.py": "", "greeter/names.py": NAMES})
    found = identify(made, tmp_path / "little", 1)
    assert found["trees"] == [] and found["others"] == 2
    assert "no known pin" in made.patchctl("identify", str(tmp_path / "little")).stdout


def test_symbolic_links_are_not_followed(made: Made, tree: Path, tmp_path: Path) -> None:
    """A link to a file with the right content is not the file, and a linked package is not there."""
    os.replace(tree / "greeter" / "names.py", tmp_path / "elsewhere.py")
    (tree / "greeter" / "names.py").symlink_to(tmp_path / "elsewhere.py")
    found = only(identify(made, tree, 1))
    assert found["differing"] == [{"path": "greeter/names.py", "why": "is a symbolic link"}]
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "greeter").symlink_to(made.origins / "greeter" / "greeter", target_is_directory=True)
    found = identify(made, linked, 1)
    assert found["trees"] == [] and found["links"] == 1


def test_the_folder_itself_may_be_a_link(made: Made, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tree, target_is_directory=True)
    assert only(identify(made, tmp_path / "link", 0))["form"] == "complete"


def test_a_pipe_in_the_place_of_a_file_is_not_read(made: Made, tree: Path) -> None:
    (tree / "greeter" / "names.py").unlink()
    os.mkfifo(tree / "greeter" / "names.py")
    found = only(identify(made, tree, 1))
    assert found["differing"] == [{"path": "greeter/names.py", "why": "is no regular file"}]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_what_cannot_be_read_is_named(made: Made, tree: Path) -> None:
    (tree / "greeter" / "names.py").chmod(0)
    (tree / "tests").chmod(0)
    found = identify(made, tree, 1)
    (tree / "tests").chmod(0o755)
    assert found["unreadable"] == ["tests"]
    assert [d["path"] for d in only(found)["differing"]] == ["greeter/names.py"]


def test_names_that_are_not_utf8_do_no_harm(made: Made, tree: Path) -> None:
    (Path(os.fsdecode(os.fsencode(tree) + b"/greeter/\xff\x1b[2J.py"))).write_text("X = 1\n")
    assert only(identify(made, tree, 1))["extra"] == ["greeter/\\xff\x1b[2J.py"]
    assert "\x1b" not in made.patchctl("identify", str(tree)).stdout


def test_of_two_near_pins_the_right_one_is_named(tmp_path: Path) -> None:
    """A second pin of the same upstream, which differs in one file: each tree is found, and a folder that both have
    the same is said to be either."""
    made = make_distribution(tmp_path / "made", (replace(BIG, patches=()),), lock=True)
    second = _second_pin(made)
    old = Path(shutil.copytree(made.origins / "greeter", tmp_path / "old"))
    git(made.origins / "greeter", "checkout", "--quiet", second)
    new = made.origins / "greeter"
    assert only(identify(made, old, 0))["stacks"] == ["v1"]
    found = only(identify(made, new, 0))
    assert (found["stacks"], found["commit"], found["rivals"]) == (["v3"], second, [])
    (new / "greeter" / "hello.py").write_text("# neither\n")
    found = only(identify(made, new, 1))
    assert (found["stacks"], len(found["differing"])) == (["v3"], 1)
    either = only(identify(made, new / "greeter" / "words", 1))
    assert {*either["stacks"], *(r.split()[1] for r in either["rivals"])} == {"v1", "v3"}


def test_a_folder_that_another_pin_has_as_a_submodule_is_compared(tmp_path: Path) -> None:
    """As verl's `recipe`: v0.6.0 has its files, later pins another project's. What lies in a submodule is not looked at."""
    made = make_distribution(tmp_path / "made", (replace(BIG, patches=()),), lock=True)
    second = _second_pin(made, submodule="greeter/words")
    tree = Path(shutil.copytree(made.origins / "greeter", tmp_path / "old"))
    found = only(identify(made, tree, 0))
    assert (found["stacks"], found["form"], found["present"]) == (["v1"], "complete", len(BIG.files))
    (tree / "greeter" / "words" / "talk.py").write_text("# changed\n")
    assert [one["path"] for one in only(identify(made, tree, 1))["differing"]] == ["greeter/words/talk.py"]
    git(tree, "checkout", "--quiet", "--force", second)
    write_files(tree, {"greeter/words/theirs.txt": "another project\n"})
    whole = identify(made, tree, 0)
    assert (only(whole)["stacks"], whole["others"]) == (["v3"], 0)


def test_stacks_of_one_pin_are_named_together(tmp_path: Path) -> None:
    made = make_distribution(tmp_path / "made", (BIG,))
    stack = (made.root / "manifests/stacks/greeter/v1.yaml").read_text()
    head = stack[: stack.index("patches:")].replace("name: v1", "name: v1-more")
    write_files(made.root, {"manifests/stacks/greeter/v1-more.yaml": head + "extends: v1\npatches: []\n"})
    made.good("lock")
    found = only(identify(made, apply(made, tmp_path / "ws"), 0))
    assert set(found["stacks"]) == {"v1", "v1-more"} and found["rivals"] == []
    assert states(found) == {"typo": "wholly", "polite": "wholly", "loud": "wholly"}


def _second_pin(made: Made, submodule: str = "") -> str:
    """Commit a change to the upstream, with a folder that becomes a submodule, and make a stack v3 of it; returns the commit."""
    repo = made.origins / "greeter"
    first = git(repo, "rev-parse", "HEAD").strip()
    trees = [git(repo, "rev-parse", "HEAD^{tree}").strip()]
    write_files(repo, {"greeter/names.py": NAMES.replace("Ada", "Barbara")})
    git(repo, "add", "--all")
    if submodule:
        git(repo, "rm", "-r", "--quiet", submodule)
        git(repo, "update-index", "--add", "--cacheinfo", f"160000,{first},{submodule}")
    git(repo, "commit", "--quiet", "-m", "the next")
    second, tree = git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split()
    git(repo, "branch", "next")
    git(repo, "reset", "--quiet", "--hard", first)
    stack = (made.root / "manifests/stacks/greeter/v1.yaml").read_text()
    stack = stack.replace("name: v1", "name: v3").replace(first, second).replace(trees[0], tree)
    write_files(made.root, {"manifests/stacks/greeter/v3.yaml": stack})
    made.good("lock")
    return second


def test_a_distribution_without_lists_says_what_to_do(tmp_path: Path) -> None:
    made = make_distribution(tmp_path / "made")
    done = made.patchctl("identify", str(made.origins / "clock"))
    assert done.returncode == 2 and "patchctl lock" in done.stderr


def test_a_list_of_another_pin_is_refused(tmp_path: Path) -> None:
    made = make_distribution(tmp_path / "made", lock=True)
    file = made.root / "manifests" / "trees" / "clock" / "v2.tsv"
    first, _, rest = file.read_text().partition("\n")
    file.write_text(f"{first[:-40]}{'0' * 40}\n{rest}")
    done = made.patchctl("identify", str(made.origins / "clock"))
    assert done.returncode == 2 and "not for the stack's pin" in done.stderr and "v2.tsv:1" in done.stderr


def test_a_folder_that_is_not_there_is_wrong_use(made: Made, tmp_path: Path) -> None:
    assert made.patchctl("identify", str(tmp_path / "nowhere")).returncode == 2
