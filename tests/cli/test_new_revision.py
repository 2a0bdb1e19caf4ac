"""docs/writing-patches.md, "A new upstream revision": the page's own commands, word for word but for the names, on a small
distribution. verl is greeter, v0.6.0 and v0.6.1 are v1 and v2."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from distribution import CLOCK, GIT_ENV, GREETER, REPO, Made, git, make_distribution, write_files
from recipes import with_recipes

PAGE = REPO / "docs/writing-patches.md"
NAMES = {"verl": "greeter", "v0.6.0": "v1", "v0.6.1": "v2"}


def section() -> str:
    return PAGE.read_text(encoding="utf-8").partition("## A new upstream revision\n")[2].partition("\n## ")[0]


def renamed(text: str) -> str:
    for there, here in NAMES.items():
        text = text.replace(there, here)
    return text


def commands() -> list[str]:
    found = [line.partition("  #")[0].strip() for line in re.findall(r"^ {4}\S.*$", section(), re.MULTILINE)]
    assert [c for c in found if c.startswith("git cherry-pick")] and len(found) > 8
    return found


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return with_recipes(make_distribution(tmp_path / "made", (GREETER, CLOCK), lock=True))


def new_pin(made: Made, files: dict[str, str | None]) -> tuple[str, str]:
    """Upstream goes on, and tags it; the commit and the tree as the page tells how to find them."""
    origin = made.origins / "greeter"
    write_files(origin, files)
    git(origin, "add", "--all")
    git(origin, "commit", "--quiet", "-m", "the next pin")
    git(origin, "tag", "--annotate", "-m", "v2", "v2")
    told = re.search(r"`git ls-remote URL '(\S+)'`", section())
    assert told is not None
    lines = git(origin, "ls-remote", str(origin), renamed(told[1])).splitlines()
    (commit,) = [line.split()[0] for line in lines if line.endswith("^{}")]
    return commit, git(origin, "rev-parse", f"{commit}^{{tree}}").strip()


def write_pin(made: Made, commit: str, tree: str) -> None:
    """The manifest that the page shows, with these ids."""
    shown = re.search(r"^```\n(schema: 1\n.*?)^```", section(), re.DOTALL | re.MULTILINE)
    assert shown is not None
    text = re.sub(r'commit: "\w+"', f'commit: "{commit}"', renamed(shown[1]))
    text = re.sub(r'tree: "\w+"', f'tree: "{tree}"', text)
    write_files(made.root, {"manifests/stacks/greeter/v2.yaml": text})


def walk(made: Made, lines: list[str]) -> subprocess.CompletedProcess[str]:
    """In one shell, in the distribution, until one of them fails."""
    tools = made.root.parent / "tools"
    write_files(tools, {"patchctl.sh": f'#!/bin/sh\nexec "{sys.executable}" -m patchctl "$@"\n'})
    (tools / "patchctl.sh").rename(tools / "patchctl")
    path = f"{tools}{os.pathsep}{GIT_ENV['PATH']}"
    home = made.root.parent / "home"
    home.mkdir(exist_ok=True)
    env = {
        **GIT_ENV,
        "PATH": path,
        "PYTHONPATH": str(REPO),
        "PATCHCTL_CACHE": str(made.cache),
        "HOME": str(home),
        "PIP_NO_INDEX": "1",
        "PATCHCTL_NO_PROGRESS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "GIT_EDITOR": "true",
    }
    script = "set -e\n" + "\n".join(renamed(line) for line in lines)
    return subprocess.run(["bash", "-c", script], cwd=made.root, env=env, capture_output=True, text=True, check=False)


def test_a_stack_comes_over_to_the_next_pin(made: Made) -> None:
    write_pin(made, *new_pin(made, {"README.md": "greeter, again\n"}))
    done = walk(made, commands())
    assert done.returncode == 0, done.stdout + done.stderr
    here, there = made.root / "patches/greeter/v1", made.root / "patches/greeter/v2"
    names = [sorted(f.relative_to(top) for f in top.rglob("*")) for top in (here, there)]
    assert names[0] == names[1]
    manners = "polite/files/greeter/manners.py"
    assert (there / manners).read_bytes() == (here / manners).read_bytes()
    profile = made.root / "manifests/profiles/full.yaml"
    profile.write_text(profile.read_text().replace("greeter: v1", "greeter: v2"))
    keys = made.root / "manifests/keys/greeter"
    assert "recipes start greeter/v2, which has no list of keys" in made.patchctl("verify").stdout
    shutil.copy(keys / "v1.tsv", keys / "v2.tsv")
    made.good("verify")
    workspace = made.root.parent / "ws"
    made.good("apply", "--profile", "full", "--workspace", str(workspace))
    assert (workspace / "greeter/README.md").read_text() == "greeter, again\n"
    assert "LOUD" in (workspace / "greeter/greeter/hello.py").read_text()


def test_a_conflict_is_mended_as_the_page_says(made: Made) -> None:
    """Upstream has changed the line that the first commit changes: the commit's side is taken."""
    hello = "greeter/greeter/hello.py"
    old = (made.origins / hello).read_text()
    write_pin(made, *new_pin(made, {"greeter/hello.py": old.replace('"Helo, "', '"Hello there, "')}))
    lines = commands()
    at = next(i for i, line in enumerate(lines) if line.startswith("git cherry-pick"))
    stopped = walk(made, lines[: at + 1])
    assert stopped.returncode != 0 and "CONFLICT" in stopped.stdout + stopped.stderr
    refused = walk(made, ["patchctl export verl/v0.6.1"])
    assert refused.returncode == 5 and "a cherry-pick is in progress" in refused.stderr
    mended = ["git checkout --theirs greeter/hello.py", "git add greeter/hello.py", "git cherry-pick --continue"]
    assert all(f"`{m}`" in section() for m in mended[2:]) and "`git add` them" in section()
    done = walk(made, ["cd edit/verl-v0.6.1", *mended, *lines[at + 1 :]])
    assert done.returncode == 0, done.stdout + done.stderr
    assert (
        '-    text = "Hello there, " + name'
        in (made.root / "patches/greeter/v2/typo/0001-bugfix-typo.patch").read_text()
    )


def test_a_tree_of_zeros_is_refused_with_the_right_one(made: Made) -> None:
    commit, tree = new_pin(made, {"README.md": "greeter, again\n"})
    write_pin(made, commit, "0" * 40)
    done = walk(made, [line for line in commands() if line == "patchctl edit verl/v0.6.1"])
    assert done.returncode == 3 and f"has tree {tree}" in done.stderr


def test_recipe_needs_speaks_once_a_profile_names_the_new_stack(made: Made) -> None:
    write_pin(made, *new_pin(made, {"README.md": "greeter, again\n"}))
    assert "[recipe-needs]" not in made.patchctl("verify", "--static").stdout
    profile = made.root / "manifests/profiles/full.yaml"
    profile.write_text(profile.read_text().replace("greeter: v1", "greeter: v2"))
    said = made.patchctl("verify", "--static").stdout
    assert "loud is none" in said and "[recipe-needs]" in said


def test_git_ignores_the_work_trees() -> None:
    done = subprocess.run(
        ["git", "-C", str(REPO), "check-ignore", "edit/verl-v0.6.1/x"], capture_output=True, check=False
    )
    assert done.returncode == 0


def test_where_the_tests_of_a_patch_lie() -> None:
    """The place that the page names is where tests of this distribution are."""
    text = PAGE.read_text(encoding="utf-8")
    part = re.search(r"\(`(hdp/tests/test_hdp_\w+\.py)`\)", text)
    assert part is not None and list(REPO.glob(f"patches/megatron-lm/*/{part[1]}"))
