"""The engine against `git apply`: the same bytes where both apply, and refused where git had to look for another place."""

from __future__ import annotations

import contextlib
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_tools import HEAD, Repo, Tree, build, git, run, stack_patch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from patchctl import delta
from patchctl.errors import DoesNotApply
from patchctl.patch.binary import MAX_INFLATED
from patchctl.patch.hunks import apply_and_tell, apply_change
from patchctl.patch.parse import parse_patch

pytestmark = pytest.mark.heavy("thousands of patches beside git")

QUICK = settings(
    max_examples=80,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

# Few different lines, so that context repeats: with a lone CR inside, with CRLF, blanks only, and what looks like a diff.
LINES = [
    b"a",
    b"b",
    b"",
    b"same",
    b"same",
    b"x\ry",
    b"crlf\r",
    b" \t",
    b"-- ",
    b"+++ b/f",
    b"\\ No newline",
    b"@@ -1 +1 @@",
]
NAMES = [
    b"f",
    b"dir/f",
    b"dir/deep/g",
    b"with space",
    b"dir with space/a b c",
    b'quote"d',
    b"back\\slash",
    b"tab\there",
    b"new\nline",
    "é".encode(),
    "目录/文件".encode(),
    b"\xff\xfe latin",
    b"a b/b b",
    b"-- ",
    b"x.bin",
]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo(tmp_path_factory.mktemp("apply") / "a repository")


def text() -> st.SearchStrategy[bytes]:
    """A file of such lines, with or without a final newline; sometimes empty."""
    return st.builds(
        lambda lines, final: b"\n".join(lines) + (b"\n" if final and lines else b""),
        st.lists(st.sampled_from(LINES), max_size=30),
        st.booleans(),
    )


@st.composite
def edited(draw: st.DrawFn, content: bytes) -> bytes:
    """`content` after a few insertions, deletions and replacements of lines, and perhaps another end."""
    lines = content.split(b"\n")
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 3))] = draw(st.lists(st.sampled_from(LINES), max_size=3))
    return b"\n".join(lines)


def binary() -> st.SearchStrategy[bytes]:
    """Bytes that git takes for binary: some compress well, some do not."""
    noise = st.integers(0, 9).map(lambda seed: random.Random(seed).randbytes(700))
    return st.builds(lambda a, b, n: b"\0" + a + b * n, noise, st.binary(min_size=1, max_size=60), st.integers(0, 200))


@st.composite
def trees(draw: st.DrawFn) -> tuple[Tree, Tree]:
    """A tree, and the same after adding, deleting, editing, renaming, copying and changing modes."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6, unique=True))
    modes = st.sampled_from([0o100644, 0o100644, 0o100755])
    before = {n: (draw(modes), draw(binary() if n == b"x.bin" else text())) for n in names}
    after = dict(before)
    for name in names:
        mode, data = before[name]
        what = draw(st.sampled_from(["keep", "edit", "edit", "delete", "mode", "rename", "copy"]))
        changed = draw(edited(data)) if draw(st.booleans()) else data
        if what == "edit":
            after[name] = (mode, draw(edited(data)))
        elif what == "mode":
            after[name] = (0o100755 if mode == 0o100644 else 0o100644, changed)
        elif what in ("delete", "rename"):
            del after[name]
        if what in ("rename", "copy"):
            after[name + b".moved"] = (mode, changed)
    if draw(st.booleans()):
        after[b"made/by/patch"] = (draw(modes), draw(text()))
    assume(before != after)
    return before, after


@QUICK
@given(
    pair=trees(),
    renames=st.sampled_from([("-M",), ("-C", "--find-copies-harder"), ("--no-renames",), ("-M", "-U0"), ("-M", "-U1")]),
)
def test_generated_diffs_give_the_tree_that_git_apply_gives(
    repo: Repo, pair: tuple[Tree, Tree], renames: tuple[str, ...]
) -> None:
    old, new = repo.history(pair)
    diff = repo.diff(old, new, *renames)
    wanted, said = repo.apply_cached(old, diff)
    if "-U0" in renames and wanted is None:
        # git apply counts the missing context as meant for the file's end; the engine as well, but it may find it there.
        with contextlib.suppress(DoesNotApply):
            assert build(repo.dir, old, [HEAD + diff]).tip_tree == repo.tree(new)
        return
    assert wanted == repo.tree(new), said
    assert build(repo.dir, old, [HEAD + diff]).tip_tree == wanted


def diff_of(folder: Path, old: bytes, new: bytes, context: int) -> bytes:
    """git's own diff of two contents, for the path `f`, without the `index` line that would settle everything."""
    (folder / "old").write_bytes(old)
    (folder / "new").write_bytes(new)
    options = ["diff", "--no-index", "--text", f"-U{context}", "--", "old", "new"]
    hunks = run(options, cwd=folder)[1]
    return b"diff --git a/f b/f\n--- a/f\n+++ b/f\n" + hunks[hunks.index(b"@@ ") :]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def git_apply(folder: Path, diff: bytes, content: bytes) -> tuple[bytes | None, bool]:
    """What `git apply` makes of a file in a folder outside any repository: its bytes or None, and whether it searched."""
    (folder / "f").write_bytes(content)
    status, said = run(["apply", "-v", "--whitespace=nowarn", "-"], cwd=folder, stdin=diff, GIT_CEILING_DIRECTORIES="/")
    return ((folder / "f").read_bytes() if status == 0 else None), b"offset" in said


@st.composite
def wrong_inputs(draw: st.DrawFn) -> tuple[bytes, bytes, bytes]:
    """A content, what a patch makes of it, and another content that the patch is then tried on."""
    old = draw(text())
    new = draw(edited(old))
    other = draw(edited(old))
    assume(old != new and old and new)  # an empty side is an addition or a deletion to git
    return old, new, other


@settings(QUICK, max_examples=250)
@given(case=wrong_inputs(), context=st.sampled_from([3, 3, 1, 2]))
def test_other_content_is_taken_only_where_git_apply_needs_no_search(
    folder: Path, case: tuple[bytes, bytes, bytes], context: int
) -> None:
    old, new, other = case
    diff = diff_of(folder, old, new, context)
    change = parse_patch(HEAD + diff, "p").changes[0]
    assert apply_change(change, old, "p") == new
    theirs, searched = git_apply(folder, diff, other)
    try:
        ours = apply_change(change, other, "p")
    except DoesNotApply as refused:
        # git glues lines together where it should find that a last line is not the last: a\n and a\n+a made `a\naa`.
        assert theirs is None or searched or b"\n\\ No newline" in diff, refused
    else:
        assert ours == theirs and not searched


@settings(QUICK, max_examples=250)
@given(case=wrong_inputs(), context=st.sampled_from([3, 3, 1, 2]))
def test_what_lies_around_the_hunks_makes_a_delta_back_to_the_old_content(
    folder: Path, case: tuple[bytes, bytes, bytes], context: int
) -> None:
    old, new, _ = case
    change = parse_patch(HEAD + diff_of(folder, old, new, context), "p").changes[0]
    after, kept = apply_and_tell(change, old, "p")
    assert after == new and kept is not None and len(kept) == len(change.hunks) + 1
    made = delta.render(len(new), old, kept, len(old))
    assert made is not None and delta.apply_delta(new, made, MAX_INFLATED) == old
    assert delta.render(len(new), old, kept, len(old) - sum(copy.size for copy in kept) - 1) is None, (
        "the limit is exact"
    )


@settings(QUICK, max_examples=40)
@given(case=wrong_inputs())
def test_with_an_index_line_any_other_content_is_refused(repo: Repo, case: tuple[bytes, bytes, bytes]) -> None:
    old, new, other = case
    assume(other != old)
    first, second, third = repo.history([{b"f": (0o100644, d)} for d in (old, new, other)])
    diff = repo.diff(first, second, "--text")
    with pytest.raises(DoesNotApply) as refused:
        build(repo.dir, third, [HEAD + diff])
    assert refused.value.where is not None and refused.value.where.line == HEAD.count(b"\n") + 1


@pytest.mark.parametrize("added", [1, 5, 10])
def test_a_shifted_hunk_is_refused_and_the_message_says_where_its_lines_are(folder: Path, added: int) -> None:
    old = b"".join(b"line %d\n" % i for i in range(40))
    new = old.replace(b"line 20\n", b"LINE 20\n")
    diff = diff_of(folder, old, new, 3)
    shifted = b"new\n" * added + old
    assert git_apply(folder, diff, shifted)[1], "git apply must have searched, or this shows nothing"
    with pytest.raises(DoesNotApply, match=f"is for line 18 of f, but its lines are at line {18 + added}$") as refused:
        apply_change(parse_patch(HEAD + diff, "p").changes[0], shifted, "p")
    assert refused.value.where is not None and refused.value.where.line == HEAD.count(b"\n") + 4


def test_the_wrong_copy_of_repeated_context_is_caught_by_the_blob_id(repo: Repo) -> None:
    """The trap that exactness is for: another copy stands where the hunk says, and `git apply` patches it and exits 0."""
    copy = b"def f():\n    x = 1\n    return x\n\n\n"
    old = b"import os\n\n\n" + copy * 4
    new = b"import os\n\n\n" + copy + copy.replace(b"x = 1", b"x = 2") + copy * 2
    other = b"import os\n\n\n" + copy + copy + copy * 4  # two more copies in front of the one that is meant
    commits = repo.history([{b"f": (0o100644, d)} for d in (old, new, other)])
    diff = repo.diff(commits[0], commits[1])
    tree, said = repo.apply_cached(commits[2], diff)
    assert tree is not None and b"offset" not in said, "git apply must take the wrong copy, or this shows nothing"
    with pytest.raises(DoesNotApply, match=r"f is blob [0-9a-f]{12}, the patch is for [0-9a-f]{12}$"):
        build(repo.dir, commits[2], [HEAD + diff])


def test_a_large_file_with_repeated_context_is_patched_at_the_right_copy(folder: Path) -> None:
    old = b"same\n" * 5000
    lines = old.split(b"\n")
    lines[4000] = b"other"
    new = b"\n".join(lines)
    # git's diff of repeated lines may name any copy; the hunk's line numbers decide, and both must agree on them.
    diff = diff_of(folder, old, new, 3)
    assert apply_change(parse_patch(HEAD + diff, "p").changes[0], old, "p") == new == git_apply(folder, diff, old)[0]


def test_a_patch_in_a_folder_of_another_repository_is_not_skipped(tmp_path: Path) -> None:
    """`git apply` below another repository skips `diff --git` patches and exits 0 (wine-staging#7); the engine has no folder."""
    outer = Repo(tmp_path / "outer")
    inner = outer.path / "venv" / "package"
    inner.mkdir(parents=True)
    diff = diff_of(tmp_path, b"a\nb\n", b"a\nc\n", 3)
    assert git_apply(inner, diff, b"a\nb\n")[0] == b"a\nb\n", "git apply is expected to skip this patch"
    assert apply_change(parse_patch(HEAD + diff, "p").changes[0], b"a\nb\n", "p") == b"a\nc\n"


def test_every_kind_of_change_in_one_patch(repo: Repo) -> None:
    """One fixed case of each kind, so that none depends on what is generated."""
    body = b"".join(b"row %d\n" % i for i in range(50))
    noise = random.Random(1).randbytes(5000)
    before = {
        b"mod": (0o100644, body),
        b"gone": (0o100644, b"x\n"),
        b"gone empty": (0o100644, b""),
        b"old name": (0o100644, body * 2),
        b"pure rename": (0o100644, b"pure\n" * 9),
        b"run": (0o100644, b"#!/bin/sh\n"),
        b"bin": (0o100644, b"\0" + noise),
        b"becomes/folder": (0o100644, b"x"),
        b"no newline": (0o100644, b"a\nb"),
        b"link": (0o120000, b"mod"),
    }
    after = {
        b"mod": (0o100644, body.replace(b"row 7\n", b"").replace(b"row 40\n", b"row 40\r\n")),
        b"new name": (0o100755, (body * 2).replace(b"row 9\n", b"ROW 9\n", 1)),
        b"pure/renamed": (0o100644, b"pure\n" * 9),
        b"run": (0o100755, b"#!/bin/sh\n"),
        b"bin": (0o100644, b"\0" + noise[:2500] + b"\0\1\2" + noise[2500:]),
        b"becomes": (0o100644, b"a file\n"),
        b"no newline": (0o100644, b"a\nb\n"),
        b"added": (0o100755, b"no end"),
        b"added empty": (0o100644, b""),
        b"link": (0o120000, b"new name"),
        b"new bin": (0o100644, b"\0\1\2" * 999),
        b"copied": (0o100644, body),
    }
    old, new = repo.history([before, after])
    diff = repo.diff(old, new, "-M", "-C", "--find-copies-harder")
    for word in (
        b"rename from",
        b"copy from",
        b"old mode",
        b"GIT binary patch",
        b"\ndelta ",
        b"\nliteral ",
        b"\\ No newline",
    ):
        assert word in diff, word
    assert repo.apply_cached(old, diff)[0] == repo.tree(new) == build(repo.dir, old, [HEAD + diff]).tip_tree


def test_submodules_are_applied_by_the_engine_as_git_does(repo: Repo) -> None:
    """Real history holds gitlinks; the rules for a stack's own patches refuse them (tests/hostile/patch)."""
    (commit,) = repo.history([{b"f": (0o100644, b"x\n")}])
    trees = []
    for other in ("1" * 40, "2" * 40):
        entries = f"100644 blob {git('hash-object', '-w', '--stdin', cwd=repo.path, stdin=b'x').decode().strip()}\tf\n160000 commit {other}\tsub\n"
        trees.append(repo.git("mktree", "--missing", stdin=entries.encode()).decode().strip())
    commits = [repo.git("commit-tree", "-p", commit, "-m", "x", tree).decode().strip() for tree in trees]
    for old, new in ((commits[0], commits[1]), (commit, commits[0]), (commits[0], commit)):
        assert build(repo.dir, old, [HEAD + repo.diff(old, new)]).tip_tree == repo.tree(new)


def test_a_file_that_becomes_a_link_and_back(repo: Repo) -> None:
    """git writes it as a deletion and an addition of one path (found in Megatron-LM's history)."""
    old, new = repo.history(
        [{b"a": (0o100644, b"text\n"), b"b": (0o120000, b"a")}, {b"a": (0o120000, b"b"), b"b": (0o100644, b"text\n")}]
    )
    diff = repo.diff(old, new, "-M")
    assert diff.count(b"diff --git a/a b/a\n") == 2
    assert repo.apply_cached(old, diff)[0] == repo.tree(new) == build(repo.dir, old, [HEAD + diff]).tip_tree


def test_all_results_are_worked_out_on_the_tree_before_the_patch(repo: Repo) -> None:
    """Two files that change places, which `git apply` also takes from the tree before the patch."""
    a, b = (random.Random(seed).randbytes(900).hex("\n", 20).encode() + b"\n" for seed in (1, 2))
    old, new = repo.history([{b"a": (0o100644, a), b"b": (0o100644, b)}, {b"a": (0o100644, b), b"b": (0o100644, a)}])
    diff = repo.diff(old, new, "-M", "-B")
    assert b"rename from a" in diff and b"rename from b" in diff
    assert build(repo.dir, old, [HEAD + diff]).tip_tree == repo.tree(new)


def test_the_scratch_repository_was_not_needed_for_parsing() -> None:
    """Parsing starts no process: it works where there is no git at all."""
    patch = stack_patch(HEAD + b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n").patch
    assert [re.sub(rb"\n", b"", line) for line in patch.changes[0].hunks[0].new] == [b"b"]
    assert shutil.which("git")
