"""docs/writing-patches.md: a patch is added and taken out by the page's own commands, on a small distribution, and nothing of
it remains. verl is greeter, v0.6.0 is v1, its_name is warm."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import GREETER, REPO, Made, git, make_distribution, write_files
from test_new_revision import walk

PAGE = (REPO / "docs/writing-patches.md").read_text(encoding="utf-8")
NAMES = {"verl": "greeter", "v0.6.0": "v1", "its_name": "warm"}
# Somebody's work: a switch in upstream's code, and the header filled in. The editor is given the message's file.
CHANGE = """sed -i 's/^    print(hello(.*$/    print(hello(os.environ.get("GREETER_WARM", "you")))/' greeter/hello.py"""
EDITOR = """
import re, sys
text = open(sys.argv[1]).read()
switch = "env GREETER_" + re.search("Feature: (.*)", text)[1].upper() + "=me"
values = {"Switch": switch, "Upstream-Status": "Pending", "Drop-When": "upstream does it itself"}
for key, value in values.items():
    text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value}", text)
open(sys.argv[1], "w").write(re.sub(r"TODO\\(new\\):? ", "", text))
"""


def commands(title: str) -> list[str]:
    """The indented lines below a heading, with our names, less what stands beside them."""
    section = PAGE.partition(f"# {title}\n")[2].partition("\n## ")[0]
    lines = [line.partition("  #")[0].strip() for line in re.findall(r"^ {4}\S.*$", section, re.MULTILINE)]
    for there, here in NAMES.items():
        lines = [line.replace(there, here) for line in lines]
    return lines


def is_proof(line: str) -> bool:
    """That needs a torch and real tests, which greeter has not."""
    return "prove" in line


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Locked, with pages, and with a test and a mutation of each feature."""
    made = make_distribution(tmp_path / "made", (GREETER,), lock=True)
    for patch in GREETER.patches:
        folder = f"patches/greeter/v1/{patch.feature}"
        write_files(
            made.root, {f"{folder}/tests/test_{patch.feature}.py": "", f"{folder}/mutants/{patch.feature}.yaml": ""}
        )
    made.good("lock", "--pages")
    made.good("verify")
    return made


def contents(made: Made) -> dict[str, bytes]:
    files = (p for p in made.root.rglob("*") if p.is_file() and "edit" not in p.relative_to(made.root).parts)
    return {p.relative_to(made.root).as_posix(): p.read_bytes() for p in files}


def add(made: Made, feature: str = "warm", change: str = CHANGE) -> list[str]:
    """The page's way of a new patch; returns its lines."""
    editor = made.root.parent / "editor.py"
    editor.write_text(EDITOR)
    lines = [line.replace("warm", feature) for line in commands("Writing a patch")]
    own = [f"export GIT_EDITOR='{sys.executable} {editor}'"]
    tests = f"sed -i 's/TODO(new):\\? //' {made.root}/patches/greeter/v1/{feature}/*/*"
    for line in lines:
        own += [change, tests] if line.startswith("git add") else []
        own += [] if is_proof(line) else [line]
    done = walk(made, own)
    assert done.returncode == 0, done.stdout + done.stderr
    return lines


def test_a_patch_is_added_in_seven_lines_and_taken_out_again(made: Made) -> None:
    before = contents(made)
    lines = add(made)
    assert len(lines) == 7 and sum(map(is_proof, lines)) == 1 and "Of the seven lines" in PAGE
    after = contents(made)
    assert after.keys() - before.keys() == {
        "patches/greeter/v1/warm/0004-feature-warm.patch",
        "docs/patches/greeter/v1/warm.md",
        "patches/greeter/v1/warm/tests/test_warm.py",
        "patches/greeter/v1/warm/tests/probe_warm.py",
        "patches/greeter/v1/warm/mutants/warm.yaml",
    }
    assert {path for path in before if before[path] != after[path]} == {
        "manifests/stacks/greeter/v1.yaml",
        "manifests/locks/greeter/v1.json",
        "docs/patches/greeter/v1/README.md",
    }
    made.good("lock", "--check")
    done = walk(made, commands("Taking a patch out"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(made) == before


def test_verify_names_what_was_left_of_it(made: Made) -> None:
    """A folder without its line; then a line without its folder, which nothing goes on with."""
    add(made)
    kept = [line for line in commands("Taking a patch out") if not line.startswith("rm ")]
    done = walk(made, kept)
    assert done.returncode == 1 and done.stdout.count("[unlisted-file]") == 1
    assert "patches/greeter/v1/warm" in done.stdout and "delete the folder, or list its patch" in done.stdout
    lines = (made.root / "manifests/stacks/greeter/v1.yaml").read_text()
    (made.root / "manifests/stacks/greeter/v1.yaml").write_text(f"{lines}  - 0004-feature-warm.patch\n")
    shutil.rmtree(made.root / "patches/greeter/v1/warm")
    for verb in (("lock",), ("verify",), ("apply", "--profile", "full")):
        refused = made.patchctl(*verb)
        assert refused.returncode == (1 if verb == ("verify",) else 2)
        assert "remove this line or restore the folder" in refused.stdout + refused.stderr


def test_a_patch_in_the_middle_is_taken_out_with_git(made: Made) -> None:
    before = contents(made)
    add(made)
    done = walk(made, commands("Taking out a patch that later ones build on"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert contents(made) == before


def test_a_header_that_was_not_filled_in_does_not_pass(made: Made) -> None:
    """As with an editor that is closed at once."""
    lines = [line for line in commands("Writing a patch") if not is_proof(line)]
    at = next(i for i, line in enumerate(lines) if line.startswith("git add"))
    done = walk(made, [*lines[:at], CHANGE, *lines[at:]])
    assert done.returncode == 1 and "[filled-in]" in done.stdout


def test_two_patches_of_one_stack_meet_in_two_lists(made: Made) -> None:
    """Two people add one each and merge: what the page says of manifest, lock and table."""
    root = made.root
    write_files(root, {".gitignore": "edit/\n"})
    git(root, "init", "--quiet", "--initial-branch=main")
    cold = """printf 'echo "$GREETER_COLD"\\n' >> run.sh"""
    for branch, feature, change in (("main", "", ""), ("one", "warm", CHANGE), ("two", "cold", cold)):
        if feature:
            git(root, "checkout", "--quiet", "-b", branch, "main")
            shutil.rmtree(root / "edit", ignore_errors=True)
            add(made, feature, change)
        git(root, "add", "--all")
        git(root, "commit", "--quiet", "-m", branch)
    with pytest.raises(subprocess.CalledProcessError):
        git(root, "merge", "--quiet", "one")
    manifest, lock = "manifests/stacks/greeter/v1.yaml", "manifests/locks/greeter/v1.json"
    assert git(root, "diff", "--name-only", "--diff-filter=U").split() == [lock, manifest]
    both = re.sub(r"(?m)^[<=>]{7}.*\n", "", (root / manifest).read_text())
    (root / manifest).write_text(both)
    refused = made.patchctl("lock")
    assert refused.returncode == 2 and "number 0004 after 0004" in refused.stderr
    (root / manifest).write_text(both.replace("0004-feature-warm", "0005-feature-warm"))
    git(
        root, "mv", "patches/greeter/v1/warm/0004-feature-warm.patch", "patches/greeter/v1/warm/0005-feature-warm.patch"
    )
    made.good("lock")
    made.good("verify")
    table = (root / "docs/patches/greeter/v1/README.md").read_text()
    assert re.findall(r"^\| \[(\w+)\]", table, re.MULTILINE) == ["cold", "loud", "polite", "typo", "warm"]
