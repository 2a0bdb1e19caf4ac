"""A bundle that is made while somebody edits the distribution beside it: what was proven and hashed is what is in it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from distribution import Made
from on_disk import copy_of, environment

# argv: a part of a path; a file, and its new text, written when the run opens the first path with that part; the arguments.
EDITED = """
import sys
at, file, text = sys.argv[1:4]
def hook(event, args):
    global at
    if at and event == "open" and isinstance(args[0], str) and at in args[0]:
        at = ""
        with open(file, "w") as out:
            out.write(text)
sys.addaudithook(hook)
from patchctl.__main__ import run
sys.exit(run(sys.argv[4:]))
"""


@pytest.fixture
def made(small: Made, tmp_path: Path) -> Made:
    made = copy_of(small, tmp_path)
    (made.root / "docs").mkdir()
    (made.root / "docs/page.md").write_text("before\n")
    return made


def create(made: Made, out: Path, at: str, file: Path, text: str) -> subprocess.CompletedProcess[str]:
    line = [f"--root={made.root}", f"--cache={made.cache}", "bundle", "create", "--profile", "full", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-c", EDITED, at, str(file), text, *line],
        env={**environment(made), "PIP_FIND_LINKS": str(made.index)},
        cwd=out.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert file.read_text() == text  # somebody did edit it
    return done


def test_a_page_that_is_edited_after_it_was_read_is_in_it_as_it_was_read(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    done = create(made, out, ".out.tar", made.root / "docs/page.md", "after\n")
    assert done.returncode == 0, done.stderr
    made.good("bundle", "verify", str(out))
    with tarfile.open(out) as archive:
        page = next(m for m in archive if m.name.endswith("docs/page.md"))
        held = archive.extractfile(page)
        assert held is not None and held.read() == b"before\n"


@pytest.mark.parametrize("what", ["patch", "carried", "manifest"])
def test_what_was_proven_is_not_replaced_by_what_came_later(made: Made, tmp_path: Path, what: str) -> None:
    """The edit comes after the stacks were built, when the first page is read."""
    stack = made.root / "manifests/stacks/greeter/v1.yaml"
    carried = next((made.root / "patches").rglob("manners.py"))
    file = {"patch": made.patch("polite"), "carried": carried, "manifest": stack}[what]
    text = file.read_text()
    change = {"patch": ("add a polite form", "add a rude form"), "carried": ("please", "or else")}
    old, new = change.get(what, (text[text.index("  - 0003") :] if "  - 0003" in text else text, ""))
    assert old in text
    done = create(made, tmp_path / "out.tar", "docs/page.md", file, text.replace(old, new))
    assert done.returncode == 3 and "was modified while the bundle was being created" in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and [p.name for p in tmp_path.iterdir() if "out.tar" in p.name] == []


def test_a_file_that_goes_meanwhile_is_named(made: Made, tmp_path: Path) -> None:
    page = made.root / "docs/zz.md"
    page.write_text("here\n")
    gone = EDITED.replace('with open(file, "w") as out:\n            out.write(text)', "import os; os.unlink(file)")
    line = [f"--root={made.root}", f"--cache={made.cache}", "bundle", "create", "--profile", "full"]
    done = subprocess.run(
        [sys.executable, "-c", gone, "docs/page.md", str(page), "", *line, "--out", str(tmp_path / "out.tar")],
        env=environment(made),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and str(page) in done.stderr and "Traceback" not in done.stderr, done.stderr
