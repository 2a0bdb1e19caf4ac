"""Damaged mails, `patchctl import` against `git am`: what both take gives one tree, what git refuses is refused here too."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import foreign
import pytest
from distribution import Made, make_distribution
from foreign import ZOO, Repository

from patchctl.errors import PatchctlError
from patchctl.importing.import_patches import import_series
from patchctl.importing.types import Options
from patchctl.manifest.distribution import Distribution
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

pytestmark = pytest.mark.heavy("thousands of patches beside git")

SEEDS = 60
_LINES = [
    b"diff --git a/zoo/ape.py b/zoo/ape.py", b"--- a/zoo/ape.py", b"+++ b/zoo/ape.py", b"--- /dev/null", b"+++ /dev/null",
    b"-- ", b"---", b"rename from old.txt", b"copy from old.txt", b"new file mode 100644", b"old mode 100644", b"", b" ",
    b"new mode 100755", b"@@ -1,1 +1,1 @@", b"@@ -0,0 +1 @@", b"\\ No newline at end of file", b"+x", b"-x", b"\r",
    b"index 1234567..89abcde", b"From: x <x@y>", b"Index: x", b"GIT binary patch", b"similarity index 50%",
    b"deleted file mode 100644", b"rename to b.txt",
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    made = make_distribution(tmp_path_factory.mktemp("import-am"), (ZOO,))
    shutil.rmtree(made.root / "manifests/profiles")
    return made


@pytest.fixture(scope="module")
def repo(made: Made) -> Repository:
    """One commit that changes, renames, adds, deletes, and turns a mode."""
    repo = Repository(made.origins / "zoo", made.origins.parent / "clone")
    repo.replace("zoo/ape.py", "value + 7\n", "value + 70\n")
    repo.replace("zoo/ape.py", "value + 20\n", "value + 200\n")
    repo.git("mv", "zoo/bear.py", "zoo/grizzly bear.py")
    repo.replace("zoo/grizzly bear.py", "value + 9\n", "value\n")
    (repo.folder / "zoo/new.py").write_text("A = 1\nB = 2")
    (repo.folder / "old.txt").unlink()
    (repo.folder / "run.sh").chmod(0o644)
    repo.commit("zoo: do much", "It is wanted.\n\n- one\n- two")
    return repo


def damaged(rng: random.Random, mail: bytes) -> bytes:
    """The mail with one to three lines lost, doubled, moved, changed or put in."""
    lines = mail.split(b"\n")
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        rng.choice(_DAMAGES)(rng, lines, at, other)
    return b"\n".join(lines)


def _byte(rng: random.Random, lines: list[bytes], at: int, other: int) -> None:
    if lines[at]:
        line = bytearray(lines[at])
        line[rng.randrange(len(line))] = rng.choice(b"019 +-@/ab\t\xff")
        lines[at] = bytes(line)


def _number(rng: random.Random, lines: list[bytes], at: int, other: int) -> None:
    by = rng.choice([-1, 1, 4])
    lines[at] = re.sub(rb"\d{1,9}", lambda m: b"%d" % max(0, int(m[0]) + by), lines[at], count=1)


def _swap(rng: random.Random, lines: list[bytes], at: int, other: int) -> None:
    lines[at], lines[other] = lines[other], lines[at]


_DAMAGES: list[Callable[[random.Random, list[bytes], int, int], object]] = [
    _byte, _number, _swap,
    lambda rng, lines, at, other: lines.pop(at) if len(lines) > 1 else None,
    lambda rng, lines, at, other: lines.insert(at, lines[other]),
    lambda rng, lines, at, other: lines.insert(at, rng.choice(_LINES)),
    lambda rng, lines, at, other: lines.__setitem__(at, rng.choice(_LINES)),
    lambda rng, lines, at, other: lines.__setitem__(at, lines[at] + rng.choice([b" ", b"\r", b"\t", b"x"])),
    lambda rng, lines, at, other: lines.__delitem__(slice(at + 1, at + 5)),
]  # fmt: skip


def test_no_damaged_mail_gives_another_tree_than_git_am(made: Made, repo: Repository, tmp_path: Path) -> None:
    """With every repair on, which is the most that import ever takes. `git am` may read names as -p1 or -p0, and keep
    carriage returns: import tells which by what is in the tree."""
    forms = [repo.mail("HEAD", "-M"), repo.mail("HEAD", "--full-index", "--no-renames"), repo.mail("HEAD", "--no-prefix"),
             foreign.multipart(repo.mail()), foreign.encoded("quoted-printable")(repo.mail())]  # fmt: skip
    dist = Distribution.load(made.root)
    places = SourceOptions(cache=made.cache)
    options = Options(repair=frozenset(["line-ends", "blank-line", "ids"]))
    file = tmp_path / "mail.patch"
    counts = {"taken": 0, "refused": 0}
    for seed in range(SEEDS):
        rng = random.Random(seed)
        file.write_bytes(damaged(rng, rng.choice(forms)))
        try:
            ours = import_series(dist, [file], "zoo/v1", options, places, Progress(), dry_run=True).tip_tree
        except PatchctlError as error:
            assert error.code in (2, 4), (seed, error)
            counts["refused"] += 1
            continue
        counts["taken"] += 1
        assert ours in {tree_of_git_am(repo, file, option) for option in ("-p1", "-p0", "--keep-cr")}, seed
    assert min(counts.values()) > SEEDS // 10, counts


def tree_of_git_am(repo: Repository, file: Path, option: str) -> str | None:
    """The tree that git makes of a mail on the base, or None when it refuses it."""
    repo.git("checkout", "--quiet", "--force", "--detach", repo.base)
    repo.git("am", "--quiet", option, str(file), check=False)
    taken = not (repo.folder / ".git/rebase-apply").exists()
    tree = repo.tree if taken else None
    repo.git("am", "--abort", check=False)
    (repo.folder / ".git/index.lock").unlink(missing_ok=True)  # git am ends by a signal on some of these mails
    repo.git("reset", "--quiet", "--hard", repo.base)
    repo.git("clean", "-qfdx")
    return tree if tree != repo.tree else None
