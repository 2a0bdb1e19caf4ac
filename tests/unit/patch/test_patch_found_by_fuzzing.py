"""Patches on which the parser or the stack function once differed from `git am`, found by `make fuzz`, as small as they get.

Each was accepted, where git refuses it, ends in the middle of it, or makes another tree or message of it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from engine_tools import HEAD, Repo, build, run

from patchctl.errors import BadPatch, DoesNotApply
from patchctl.git.objects import object_id

ONE = b"one\n"
TREE = {b"f": (0o100644, ONE), b"bin": (0o100644, b"\0\1\2")}
ADD = b"diff --git %s %s\nnew file mode 100644\n--- /dev/null\n+++ %s\n@@ -0,0 +1 @@\n+x\n"
RENAME = b"diff --git a/f b/%s\nsimilarity index 100%%\n%s"
LITERAL = b"GIT binary patch\nliteral 0\nHcmV?d00001\n\nliteral 2\nJcmb>60ssK~0D}Mk\n"
BIN = b"diff --git a/bin b/bin\nindex %s..%s 100644\n" % (
    object_id("blob", b"\0\1\2").encode(),
    object_id("blob", b"").encode(),
)

CUT = "truncated"
FOUND: dict[str, tuple[bytes, str]] = {
    "a last line without its newline": (HEAD + ADD[:-1] % (b"a/n", b"b/n", b"b/n"), CUT),
    "a binary patch whose last line has no newline": (HEAD + BIN + LITERAL[:-1], CUT),
    "a binary patch without its empty line": (HEAD + BIN + LITERAL, CUT),
    "an abbreviated id after a binary patch": (HEAD + BIN.replace(b"391 ", b" ") + LITERAL + b"\n", "full ids"),
    "a line of a binary patch that holds a blank": (
        HEAD + BIN + LITERAL.replace(b"001\n", b"001\n \n") + b"\n",
        "does not have the length",
    ),
    "a name with a NUL": (HEAD + ADD % (b'"a/a\\000b"', b'"b/a\\000b"', b'"b/a\\000b"'), "contains a NUL"),
    "a name that ends with a tab": (HEAD + RENAME % (b"n", b"rename from f\nrename to n\t\n"), "does not name"),
    "a name that goes on behind a tab": (
        HEAD + RENAME % (b"n", b"rename from f\t2026\nrename to n\n"),
        "does not name",
    ),
    "a name that ends with a carriage return": (
        HEAD + RENAME % (b"n\r", b"rename from f\nrename to n\r\n"),
        "unquoted carriage return",
    ),
    "half of a copy beside a rename": (
        HEAD + RENAME % (b"n", b"copy to n\nrename from f\nrename to n\n"),
        "belong together",
    ),
    "a mail behind the signature": (
        HEAD + ADD % (b"a/n", b"b/n", b"b/n") + b"-- \nFrom abc Mon Sep 17 00:00:00 2001\n",
        "not understood",
    ),
    "a NUL in the subject's bracket": (
        HEAD.replace(b"[PATCH]", b"[P\0H]") + ADD % (b"a/n", b"b/n", b"b/n"),
        "header contains a NUL",
    ),
    "a quote inside a name": (
        HEAD + b'diff --git a/"n" b/"n"\nnew file mode 100755\n',
        "the two names of `diff --git` differ",
    ),
    "no context behind line 1": (
        HEAD + b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,0 +2 @@\n+y\n",
        "without context",
    ),
}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repo, str]:
    repo = Repo(tmp_path_factory.mktemp("found") / "repo")
    return repo, repo.history([TREE])[0]


@pytest.mark.parametrize("name", FOUND)
def test_it_is_refused(repo: tuple[Repo, str], name: str) -> None:
    data, why = FOUND[name]
    with pytest.raises((BadPatch, DoesNotApply), match=why) as refused:
        build(repo[0].dir, repo[1], [data])
    assert refused.value.where is not None and refused.value.where.line is not None


@pytest.mark.parametrize("name", [n for n, (data, _) in FOUND.items() if b"GIT binary" in data])
def test_git_takes_none_of_it_or_a_part(repo: tuple[Repo, str], tmp_path: Path, name: str) -> None:
    """What made the fault worse: for a binary patch that is cut off, `git am` ends with 0 and keeps the sections before."""
    data = FOUND[name][0].replace(b"---\n", b"---\n" + ADD % (b"a/n", b"b/n", b"b/n"), 1)
    (tmp_path / "m").write_bytes(data)
    repo[0].git("checkout", "-q", "-f", "--detach", repo[1])
    status, _ = run(["am", "-q", "--keep-cr", str(tmp_path / "m")], cwd=repo[0].path)
    kept = repo[0].git("ls-tree", "-r", "--name-only", "HEAD").split()
    run(["am", "--abort"], cwd=repo[0].path)
    assert (status, b"n" in kept) in {(0, True), (128, False)}
    with pytest.raises(BadPatch):
        build(repo[0].dir, repo[1], [data])
