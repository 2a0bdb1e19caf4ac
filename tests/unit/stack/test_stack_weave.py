"""Leaving patches out of the middle of a stack: exactly what the kept ones make of the file, or a refusal; never a guess."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from engine_tools import HEAD, Repo, build, run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from patchctl.errors import DoesNotApply
from patchctl.patch.hunks import apply_change
from patchctl.patch.parse import parse_patch
from patchctl.stack.build import Misfit, Weave

QUICK = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
Mode = tuple[int, bytes]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Repo:
    return Repo(tmp_path_factory.mktemp("weave") / "repo")


class Stack:
    """Successive contents of a file, each change of which is one patch, as git makes it."""

    def __init__(self, repo: Repo, contents: list[bytes], options: tuple[str, ...] = ()) -> None:
        self.repo = repo
        self.contents = contents
        self.commits = repo.history([{b"f": (0o100644, c)} for c in contents])
        pairs = itertools.pairwise(self.commits)
        self.patches = [HEAD + repo.diff(old, new, "--text", "--no-renames", *options) for old, new in pairs]

    def without(self, left_out: set[int]) -> bytes | None:
        """The file without these patches, or None when that is refused; always through the whole stack function."""
        try:
            built = build(self.repo.dir, self.commits[0], self.patches, sorted(left_out))
        except DoesNotApply as refused:
            assert refused.where is not None and refused.where.line is not None
            return None
        if built.tip_commit == self.commits[0]:
            return self.contents[0]
        assert [s.patch.file.name for s in built.steps] == [
            f"{i + 1:04}-feature-p{i}.patch" for i in range(len(self.patches)) if i not in left_out
        ]
        built.objects.write(self.repo.dir / "objects" / "pack")
        return self.repo.git("cat-file", "blob", f"{built.tip_tree}:f")

    def merged(self, left_out: set[int], folder: Path) -> bytes | None:
        """The same by git's three-way merge: each kept change merged into what there is without the ones left out.

        None when a merge conflicts. Where lines are unique, a clean merge is the right answer.
        """
        have = self.contents[0]
        for number, (old, new) in enumerate(itertools.pairwise(self.contents)):
            if number in left_out:
                continue
            for name, data in (("have", have), ("old", old), ("new", new)):
                (folder / name).write_bytes(data)
            status, _ = run(["merge-file", "-q", "have", "old", "new"], cwd=folder)
            if status != 0:
                return None
            have = (folder / "have").read_bytes()
        return have


def fresh(counter: itertools.count[int], count: int) -> list[bytes]:
    return [b"line %d\n" % next(counter) for _ in range(count)]


@st.composite
def histories(draw: st.DrawFn) -> list[bytes]:
    """Contents in which every line ever written is unique; edits land anywhere, also at both ends and on each other."""
    counter = itertools.count()
    lines = fresh(counter, draw(st.integers(4, 40)))
    contents = [b"".join(lines)]
    for _ in range(draw(st.integers(2, 5))):
        for _ in range(draw(st.integers(1, 2))):
            at = draw(st.integers(0, len(lines)))
            gone = draw(st.integers(0, 3))
            added = draw(st.integers(0 if gone else 1, 3))
            lines[at : at + gone] = fresh(counter, added)
        if b"".join(lines) == contents[-1] or not lines:
            lines += fresh(counter, 1)
        contents.append(b"".join(lines))
    return contents


@pytest.mark.heavy("hundreds of stacks beside git")
@QUICK
@given(contents=histories(), data=st.data(), context=st.sampled_from(["-U3", "-U3", "-U1"]))
def test_a_random_subset_is_what_merging_gives_or_is_refused(
    repo: Repo, tmp_path: Path, contents: list[bytes], data: st.DataObject, context: str
) -> None:
    stack = Stack(repo, contents, (context,))
    left_out = data.draw(st.sets(st.integers(0, len(stack.patches) - 1)))
    ours = stack.without(left_out)
    if ours is not None:
        assert ours == stack.merged(left_out, tmp_path)
    if not left_out:
        assert ours == contents[-1]


@pytest.mark.heavy("thousands of edits beside git")
@QUICK
@given(
    order=st.permutations(range(5)),
    left_out=st.sets(st.integers(0, 4)),
    repeated=st.booleans(),
    sizes=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=5, max_size=5),
)
def test_edits_that_are_known_to_be_apart_never_stand_in_each_others_way(
    repo: Repo, order: list[int], left_out: set[int], repeated: bool, sizes: list[tuple[int, int]]
) -> None:
    """Five blocks, one patch each, in any order, eight lines apart; with all lines alike between them, or each unique.

    The result is known without any merge: the blocks that are kept, edited.
    """
    counter = itertools.count()

    def block() -> list[bytes]:
        return [b"    x = 1\n", b"\n"] * 4 if repeated else fresh(counter, 8)

    between = [block() for _ in range(6)]
    plain = [fresh(counter, gone) for gone, _ in sizes]
    edited = [fresh(counter, added or (1 if not gone else 0)) for gone, added in sizes]

    def content(done: set[int]) -> bytes:
        parts = [between[0]]
        for i in range(5):
            parts += [edited[i] if i in done else plain[i], between[i + 1]]
        return b"".join(itertools.chain.from_iterable(parts))

    stack = Stack(repo, [content(set(order[:count])) for count in range(6)])
    ours = stack.without(left_out)
    wanted = content({block for number, block in enumerate(order) if number not in left_out})
    # Between repeated lines git may write down another place for the same text; then a refusal is right as well.
    assert ours == wanted or (repeated and ours is None)


TEN = [b"line %d\n" % i for i in range(1, 11)]
FORTY = [b"line %d\n" % i for i in range(1, 41)]


def edit(lines: list[bytes], at: int, gone: int, *added: bytes) -> list[bytes]:
    """`lines` (counted from 1) with `gone` of them at `at` replaced."""
    return [*lines[: at - 1], *added, *lines[at - 1 + gone :]]


def three(repo: Repo, *versions: list[bytes]) -> Stack:
    return Stack(repo, [b"".join(v) for v in versions])


def test_a_later_patch_moves_with_what_is_left_out(repo: Repo) -> None:
    first = edit(FORTY, 5, 0, b"a\n", b"b\n", b"c\n")
    stack = three(repo, FORTY, first, edit(first, 30, 1, b"second\n"))
    assert stack.without({0}) == b"".join(edit(FORTY, 27, 1, b"second\n"))
    assert stack.without({1}) == b"".join(first)
    assert stack.without({0, 1}) == b"".join(FORTY)


def test_the_kept_place_is_known_where_a_search_would_find_another(repo: Repo) -> None:
    """Ten equal blocks: without the first patch, the recorded line number names another copy of the same context."""
    block = [b"def f():\n", b"    a\n", b"    b\n", b"    c\n", b"    return\n", b"\n"]
    base = [b"import os\n", *block * 10]
    first = [b"import os\n", *block, *block, *block * 10]
    second = edit(first, 1 + 6 * 6 + 3, 1, b"    B\n")
    stack = three(repo, base, first, second)
    # git's diff says that the two new blocks came last; here they come first, which gives the same file.
    lines = b"".join([b" import os\n", *(b"+" + line for line in block * 2), *(b" " + line for line in block[:3])])
    head = stack.patches[0][: stack.patches[0].index(b"@@ ")]
    stack.patches[0] = head + b"@@ -1,4 +1,16 @@\n" + lines
    assert stack.without(set()) == b"".join(second)
    assert stack.without({0}) == b"".join(edit(base, 1 + 6 * 4 + 3, 1, b"    B\n"))


@pytest.mark.parametrize(
    ("why", "second"),
    [
        ("context is a line that the first one wrote", lambda f: edit(f, 8, 0, b"x\n")),
        ("it deletes such a line", lambda f: edit(f, 5, 1)),
        ("it changes such a line", lambda f: edit(f, 6, 1, b"changed\n")),
        ("it adds between such lines", lambda f: edit(f, 6, 0, b"between\n")),
    ],
)
def test_a_patch_that_builds_on_one_left_out_is_refused(repo: Repo, why: str, second: object) -> None:
    assert callable(second)
    first = edit(FORTY, 5, 0, b"a\n", b"b\n")
    stack = three(repo, FORTY, first, second(first))
    assert stack.without({0}) is None, why
    with pytest.raises(DoesNotApply, match=r"builds on lines of a feature that is left out, in f line \d+$") as refused:
        build(repo.dir, stack.commits[0], stack.patches, [0])
    assert refused.value.code == 4 and refused.value.hint and refused.value.where is not None
    assert refused.value.where.line == HEAD.count(b"\n") + 5, "the hunk's line in the patch file"


def test_a_place_where_a_left_out_deletion_lies_within_the_context_is_refused(repo: Repo) -> None:
    first = edit(FORTY, 10, 2)
    stack = three(repo, FORTY, first, edit(first, 8, 1, b"near\n"))
    assert stack.without({0}) is None
    far = three(repo, FORTY, first, edit(first, 5, 1, b"far\n"))
    assert far.without({0}) == b"".join(edit(FORTY, 5, 1, b"far\n"))


@pytest.mark.parametrize("end", ["start", "end"])
def test_a_hunk_that_means_the_ends_of_the_file_needs_them(repo: Repo, end: str) -> None:
    """The first patch takes the file's first (last) line; the second adds one there. Without the first, where is that?"""
    if end == "start":
        first = edit(TEN, 1, 1)
        stack = three(repo, TEN, first, edit(first, 1, 0, b"new start\n"))
    else:
        first = edit(TEN, 10, 1)
        stack = three(repo, TEN, first, [*first, b"new end\n"])
    assert stack.without({0}) is None


def test_an_addition_to_a_file_that_was_emptied_is_refused(repo: Repo) -> None:
    stack = three(repo, [b"a\n"], [], [b"b\n"])
    assert stack.without({0}) is None
    assert stack.without(set()) == b"b\n"


def test_a_final_newline_that_is_left_out_stays_out(repo: Repo) -> None:
    base = [*FORTY[:-1], b"line 40"]
    stack = three(repo, base, FORTY, edit(FORTY, 5, 1, b"five\n"))
    assert stack.without({0}) == b"".join(edit(base, 5, 1, b"five\n"))
    assert three(repo, base, FORTY, [*FORTY, b"more\n"]).without({0}) is None


def test_leaving_out_in_a_chain(repo: Repo) -> None:
    """Three patches on one line each build on the one before: only what stands at the end may go."""
    versions = [edit(FORTY, 20, 1, b"v%d\n" % i) for i in range(4)]
    stack = three(repo, *versions)
    assert stack.without({2}) == b"".join(versions[2])
    assert stack.without({1, 2}) == b"".join(versions[1])
    for middle in ({0}, {1}, {0, 2}):
        assert stack.without(middle) is None
    assert stack.without({0, 1, 2}) == b"".join(versions[0])


def test_a_change_that_was_undone_and_made_again(repo: Repo) -> None:
    changed = edit(FORTY, 20, 1, b"other\n")
    stack = three(repo, FORTY, changed, FORTY, changed)
    assert stack.without({0, 1}) == b"".join(changed)
    assert stack.without({1, 2}) == b"".join(changed)
    assert stack.without({0}) is None


# ---- what is not line by line


def trees(repo: Repo, *contents: dict[bytes, Mode]) -> tuple[str, list[bytes], list[str]]:
    commits = repo.history(contents)
    return commits[0], [HEAD + repo.diff(a, b, "-M") for a, b in itertools.pairwise(commits)], commits


def test_a_mode_that_is_left_out_is_not_brought_by_a_later_patch(repo: Repo) -> None:
    """The later patch's `index` line says 100755, since that was the mode by then; it does not set it."""
    text = b"".join(FORTY)
    one, two = b"".join(edit(FORTY, 5, 1, b"x\n")), b"".join(edit(edit(FORTY, 5, 1, b"x\n"), 30, 1, b"y\n"))
    base, patches, _ = trees(repo, {b"f": (0o100644, text)}, {b"f": (0o100755, one)}, {b"f": (0o100755, two)})
    assert b"100755" in patches[1]
    built = build(repo.dir, base, patches, [0])
    assert built.tree.get(b"f").mode == 0o100644
    assert build(repo.dir, base, patches).tree.get(b"f").mode == 0o100755


def test_modes_that_build_on_a_left_out_one_are_refused(repo: Repo) -> None:
    lines = [FORTY, edit(FORTY, 5, 1, b"x\n")]
    lines.append(edit(lines[1], 20, 1, b"y\n"))
    lines.append(edit(lines[2], 35, 1, b"z\n"))
    texts = [b"".join(v) for v in lines]
    modes = [0o100644, 0o100755, 0o100644, 0o100755]
    base, patches, _ = trees(repo, *({b"f": (m, t)} for m, t in zip(modes, texts, strict=True)))
    with pytest.raises(
        DoesNotApply, match="the patch changes the mode of f, which is 100644 without the features left out"
    ):
        build(repo.dir, base, patches, [0])
    # Both left out: the third sets the mode on the very mode that it expects.
    built = build(repo.dir, base, patches, [0, 1])
    assert built.tree.get(b"f").mode == 0o100755
    assert built.tip_tree == repo.tree(repo.history([{b"f": (0o100755, b"".join(edit(FORTY, 35, 1, b"z\n")))}])[0])


@pytest.mark.parametrize("kind", ["delete", "edited rename", "binary", "mode"])
def test_changes_that_are_not_line_by_line_are_refused_on_both_sides(repo: Repo, kind: str) -> None:
    text = b"".join(FORTY)
    other = b"".join(edit(FORTY, 5, 1, b"x\n"))
    last: dict[str, dict[bytes, Mode]] = {
        "delete": {},
        "edited rename": {b"g": (0o100644, other + b"z\n")},
        "binary": {b"f": (0o100644, b"\0" + other)},
        "mode": {b"f": (0o100755, other)},
    }
    base, patches, _ = trees(
        repo, {b"f": (0o100644, text)}, {b"f": (0o100644, other)}, last[kind] | {b"z": (0o100644, b"z\n")}
    )
    with pytest.raises(DoesNotApply, match=r"but not line by line|is blob"):
        build(repo.dir, base, patches, [0])
    # What comes last is left out as it is, whatever it does.
    (before,) = repo.history([{b"f": (0o100644, other)}])
    assert build(repo.dir, base, patches, [1]).tip_tree == repo.tree(before)


def test_a_rename_that_edits_nothing_moves_the_file_as_it_is(repo: Repo) -> None:
    text, other = b"".join(FORTY), b"".join(edit(FORTY, 5, 1, b"x\n"))
    versions: list[dict[bytes, Mode]] = [{b"f": (0o100644, text)}, {b"f": (0o100644, other)}, {b"g": (0o100644, other)}]
    later: dict[bytes, Mode] = {b"g": (0o100644, b"".join(edit(edit(FORTY, 5, 1, b"x\n"), 30, 1, b"y\n")))}
    base, patches, _ = trees(repo, *versions, later)
    (moved,) = repo.history([{b"g": (0o100644, text)}])
    assert build(repo.dir, base, patches[:2], [0]).tip_tree == repo.tree(moved)
    with pytest.raises(DoesNotApply, match="g is blob"):
        build(repo.dir, base, patches, [0])


def test_a_file_that_a_left_out_patch_brings_is_missing_for_a_later_one(repo: Repo) -> None:
    base, patches, _ = trees(
        repo,
        {b"a": (0o100644, b"a\n")},
        {b"a": (0o100644, b"a\n"), b"n": (0o100644, b"1\n")},
        {b"a": (0o100644, b"a\n"), b"n": (0o100644, b"2\n")},
    )
    with pytest.raises(DoesNotApply, match="n is not in the tree"):
        build(repo.dir, base, patches, [0])
    assert build(repo.dir, base, patches, [0, 1]).tree.get(b"n") is None


def test_a_file_that_a_kept_patch_brings_and_one_left_out_changes(repo: Repo) -> None:
    lines = [b"".join(v) for v in (FORTY, edit(FORTY, 5, 1, b"x\n"), edit(edit(FORTY, 5, 1, b"x\n"), 30, 1, b"y\n"))]
    base, patches, commits = trees(
        repo, {b"a": (0o100644, b"a\n")}, *({b"a": (0o100644, b"a\n"), b"n": (0o100644, t)} for t in lines)
    )
    assert build(repo.dir, base, patches, [2]).tip_tree == repo.tree(commits[2])
    with pytest.raises(DoesNotApply):
        build(repo.dir, base, patches, [1])


def test_a_wrong_blob_id_is_seen_although_an_earlier_patch_is_left_out(repo: Repo) -> None:
    first = edit(FORTY, 5, 0, b"a\n")
    stack = three(repo, FORTY, first, edit(first, 30, 1, b"second\n"))
    at = stack.patches[1].index(b"index ") + 6
    for which, spot in (("the patch is for", at), ("promises", at + 42)):
        wrong = bytearray(stack.patches[1])
        wrong[spot : spot + 4] = b"0000"
        with pytest.raises(DoesNotApply, match=which):
            build(repo.dir, stack.commits[0], [stack.patches[0], bytes(wrong)], [0])


def test_the_misfit_names_the_first_hunk_from_the_end_that_does_not_fit() -> None:
    first = parse_patch(HEAD + b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n a\n+new\n b\n", "p").changes[0]
    second = parse_patch(
        HEAD + b"diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,3 +1,3 @@\n a\n new\n-b\n+c\n", "p"
    ).changes[0]
    weave = Weave(b"a\nb\n", {0})
    weave.apply(0, first.hunks)
    assert weave.full() == apply_change(first, b"a\nb\n", "p") and weave.content() == b"a\nb\n"
    with pytest.raises(Misfit) as misfit:
        weave.apply(1, second.hunks)
    assert misfit.value.number == 0
