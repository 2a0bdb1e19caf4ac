"""The stack function: what it gives, that it repeats, and that it gives exactly the objects that the base lacks."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
from engine_tools import HEAD, Repo, build, git, reader_tree, stack_patch, stored

from patchctl.errors import DoesNotApply
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import TreeEntry, object_id
from patchctl.source.types import Base
from patchctl.stack.build import Built, StackBuilder, Touched
from patchctl.stack.plan import missing_files

Mode = tuple[int, bytes]


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo")


def history(repo: Repo, count: int = 30) -> tuple[list[str], list[bytes]]:
    """Commits that edit, add, remove and rename files of a tree of many folders, and their patches."""
    rng = random.Random(4)
    files: dict[bytes, Mode] = {
        b"pkg%d/sub%d/f%d.py" % (i % 5, i % 3, i): (
            0o100644,
            b"".join(b"v%d = %d\n" % (n, rng.randrange(999)) for n in range(120)),
        )
        for i in range(40)
    }
    trees = [dict(files)]
    for number in range(count):
        name = rng.choice(sorted(files))
        lines = files[name][1].split(b"\n")
        lines[rng.randrange(len(lines) - 1)] = b"edit = %d" % number
        files[name] = (files[name][0], b"\n".join(lines))
        if number % 4 == 1:
            files[b"new/n%d.py" % number] = (0o100755, b"x = %d\n" % number)
        if number % 6 == 2:
            del files[rng.choice([f for f in sorted(files) if f != name])]
        if number % 7 == 3:
            files[b"moved/m%d.py" % number] = files.pop(rng.choice([f for f in sorted(files) if f != name]))
        trees.append(dict(files))
    commits = repo.history(trees)
    return commits, [HEAD + repo.diff(a, b, "-M") for a, b in itertools.pairwise(commits)]


def test_each_step_has_the_tree_of_the_history(repo: Repo) -> None:
    commits, patches = history(repo)
    built = build(repo.dir, commits[0], patches)
    assert [s.tree for s in built.steps] == [repo.tree(c) for c in commits[1:]]
    assert (built.base_commit, built.base_tree) == (commits[0], repo.tree(commits[0]))
    assert (built.tip_commit, built.tip_tree) == (built.steps[-1].commit, built.steps[-1].tree)
    with ObjectReader(repo.dir) as reader:
        tip = reader.files(built.tip_tree)
        assert {path: built.tree.get(path) for path in tip} == tip


def test_the_pack_holds_what_the_base_lacks_and_nothing_else(repo: Repo, tmp_path: Path) -> None:
    """A workspace is the base's pack and this one; with less it would be broken, with more the base would be stored twice."""
    commits, patches = history(repo)
    built = build(repo.dir, commits[0], patches)
    fresh = Repo(tmp_path / "fresh")
    base = repo.git("pack-objects", "--revs", "--stdout", "-q", stdin=f"{commits[0]}\n".encode())
    git("unpack-objects", "-q", cwd=fresh.path, stdin=base)
    pack = built.objects.write(fresh.dir / "objects" / "pack")
    assert pack is not None
    listed = fresh.git("rev-list", "--objects", built.tip_commit, f"^{commits[0]}").decode().splitlines()
    needed = {line.split()[0] for line in listed}
    said = fresh.git("verify-pack", "-v", str(pack)).decode().splitlines()
    held = {line.split()[0] for line in said if len(line.split()[0]) == 40}
    # rev-list leaves out what a later commit brings back from the base's tree; the pack must hold all that is needed.
    assert held >= needed
    in_base = set(fresh.git("rev-list", "--objects", "--no-object-names", commits[0]).decode().split())
    assert not held & in_base
    fresh.git("update-ref", "refs/heads/main", built.tip_commit)
    git("fsck", "--strict", "--full", cwd=fresh.path)


def test_the_same_input_gives_the_same_ids_and_the_same_pack(repo: Repo, tmp_path: Path) -> None:
    commits, patches = history(repo, 10)
    packs = []
    for name in ("one", "two"):
        built = build(repo.dir, commits[0], patches)
        pack = built.objects.write(tmp_path / name)
        assert pack is not None
        packs.append((built.tip_commit, pack.name, pack.read_bytes()))
    assert packs[0] == packs[1]


def test_building_writes_nothing(repo: Repo) -> None:
    commits, patches = history(repo, 5)
    before = stored(repo.dir)
    build(repo.dir, commits[0], patches)
    with pytest.raises(DoesNotApply):
        build(repo.dir, commits[0], [*patches, patches[0]])
    assert stored(repo.dir) == before


def test_a_stack_of_nothing_is_its_base(repo: Repo) -> None:
    commits, patches = history(repo, 2)
    for built in (build(repo.dir, commits[0], []), build(repo.dir, commits[0], patches, [0, 1])):
        assert (built.tip_commit, built.tip_tree, built.steps, len(built.objects)) == (
            commits[0],
            built.base_tree,
            [],
            0,
        )


def test_what_a_step_touches(repo: Repo) -> None:
    x, y = (0o100644, b"x\n" * 9), (0o100644, b"y\n" * 9)
    commits = repo.history(
        [{b"a": x, b"b": y, b"run": x}, {b"a": (0o100644, b"x\n" * 8), b"c": y, b"run": (0o100755, x[1])}]
    )
    built = build(repo.dir, commits[0], [HEAD + repo.diff(commits[0], commits[1], "-M")])
    ids = {data: object_id("blob", data) for data in (x[1], y[1], b"x\n" * 8)}
    assert sorted(built.steps[0].touched, key=lambda t: t.path) == [
        Touched(b"a", TreeEntry(0o100644, ids[x[1]]), TreeEntry(0o100644, ids[b"x\n" * 8])),
        Touched(b"b", TreeEntry(0o100644, ids[y[1]]), None),
        Touched(b"c", None, TreeEntry(0o100644, ids[y[1]])),
        Touched(b"run", TreeEntry(0o100644, ids[x[1]]), TreeEntry(0o100755, ids[x[1]])),
    ]


def test_left_out_may_be_an_iterator(repo: Repo) -> None:
    commits, patches = history(repo, 4)
    parsed = [stack_patch(data, f"{n}.patch") for n, data in enumerate(patches)]
    with ObjectReader(repo.dir) as reader:
        built = StackBuilder(reader, commits[0], reader_tree(reader, commits[0])).build(parsed, iter(parsed[-2:]))
    assert [s.patch.shown for s in built.steps] == ["0.patch", "1.patch"]


def test_two_equal_patches_are_two_patches(repo: Repo) -> None:
    """Leaving one out leaves the other in."""
    commits = repo.history([{b"f": (0o100644, b"a\n")}, {b"f": (0o100644, b"b\n")}])
    there, back = (HEAD + repo.diff(a, b) for a, b in (commits, commits[::-1]))
    assert build(repo.dir, commits[0], [there, back, there], [1, 2]).tree.get(b"f").id == object_id("blob", b"b\n")


def test_files_that_a_form_lacks_are_named(repo: Repo) -> None:
    commits = repo.history(
        [
            {b"f": (0o100644, b"a\n"), b"recipe/g": (0o100644, b"a\n")},
            {b"f": (0o100644, b"b\n"), b"recipe/g": (0o100644, b"b\n")},
        ]
    )
    (without,) = repo.history([{b"f": (0o100644, b"a\n")}])
    patch = stack_patch(HEAD + repo.diff(commits[0], commits[1]))
    lacking, whole = (Base("demo", "sdist", repo.dir, c, repo.tree(c), "here", 0) for c in (without, commits[0]))
    assert missing_files(lacking, [patch]) == [(patch, ["recipe/g"])]
    assert missing_files(whole, [patch]) == []


def test_a_patch_that_fails_in_the_middle_names_itself(repo: Repo) -> None:
    commits, patches = history(repo, 6)
    broken = [*patches[:3], patches[3].replace(b"\n+edit", b"\n+EDIT"), *patches[4:]]
    with pytest.raises(DoesNotApply, match="promises") as refused:
        build(repo.dir, commits[0], broken)
    assert refused.value.where is not None and refused.value.where.file == "0004-feature-p3.patch"


def test_a_case_rename_is_no_collision(repo: Repo) -> None:
    one, two = ({name: (0o100644, b"x\n" * 5)} for name in (b"Readme", b"README"))
    commits = repo.history([one, two])
    assert build(repo.dir, commits[0], [HEAD + repo.diff(*commits, "-M")]).tip_tree == repo.tree(commits[1])


def test_a_file_becomes_a_folder_and_back(repo: Repo) -> None:
    one, two = (
        {b"a": (0o100644, b"x\n"), b"z": (0o100644, b"z\n")},
        {b"a/b": (0o100644, b"y\n"), b"z": (0o100644, b"z\n")},
    )
    commits = repo.history([one, two, one])
    patches = [HEAD + repo.diff(a, b, "--no-renames") for a, b in itertools.pairwise(commits)]
    assert [s.tree for s in build(repo.dir, commits[0], patches).steps] == [
        repo.tree(commits[1]),
        repo.tree(commits[0]),
    ]


def test_carried_files_are_part_of_the_commit(repo: Repo) -> None:
    commits = repo.history(
        [
            {b"f": (0o100644, b"a\n")},
            {b"f": (0o100644, b"b\n")},
            {b"f": (0o100644, b"b\n"), b"own/new.py": (0o100644, b"n\n")},
        ]
    )
    patch = stack_patch(HEAD + repo.diff(commits[0], commits[1]))
    carrying = type(patch)(patch.file, patch.shown, patch.data, patch.patch, {"own/new.py": b"n\n"})
    assert carrying.digest != patch.digest and carrying.paths == {b"f", b"own/new.py"}
    with ObjectReader(repo.dir) as reader:
        builder = StackBuilder(reader, commits[0], repo.tree(commits[0]))
        assert builder.build([carrying]).tip_tree == repo.tree(commits[2])
        clash = type(patch)(patch.file, patch.shown, patch.data, patch.patch, {"F": b"n\n"})
        with pytest.raises(DoesNotApply, match="collide where case is ignored"):
            builder.build([clash])


def test_only_the_folders_that_patches_touch_are_read(repo: Repo) -> None:
    files: dict[bytes, Mode] = {
        b"pkg/in/a": (0o100644, b"a\n"),
        b"pkg/b": (0o100644, b"b\n"),
        b"far/c": (0o100644, b"c\n"),
    }
    commits = repo.history([files, {**files, b"pkg/b": (0o100644, b"B\n"), b"pkg/new/d": (0o100644, b"d\n")}])
    with ObjectReader(repo.dir, afresh=True) as reader:
        patch = stack_patch(HEAD + repo.diff(*commits))
        built = StackBuilder(reader, commits[0], repo.tree(commits[0])).build([patch])
        assert built.tip_tree == repo.tree(commits[1])
        assert set(reader._trees) == {
            repo.tree(commits[0]),
            repo.git("rev-parse", f"{commits[0]}:pkg").decode().strip(),
        }


def test_a_twin_is_found_in_every_folder_that_is_one_where_case_is_ignored(repo: Repo) -> None:
    """A base may have such folders: upstream's Linux users do not notice. A file that is gone is no twin."""
    files: dict[bytes, Mode] = dict.fromkeys((b"src/in/a", b"SRC/In/B", b"src/c"), (0o100644, b"x\n"))
    (base,) = repo.history([files])
    gone = {p: m for p, m in files.items() if p != b"SRC/In/B"}

    def built(*trees: dict[bytes, Mode]) -> Built:
        commits = repo.history([files, *trees])
        return build(repo.dir, base, [HEAD + repo.diff(a, b) for a, b in itertools.pairwise(commits)])

    with pytest.raises(DoesNotApply, match="src/in/b and SRC/In/B collide where case is ignored"):
        built({**files, b"src/in/b": (0o100644, b"y\n")})
    with pytest.raises(DoesNotApply, match="src/C and src/c collide where case is ignored"):
        built({**files, b"src/C/d": (0o100644, b"y\n")})
    assert built(gone, {**gone, b"src/in/b": (0o100644, b"y\n")}).tree.get(b"src/in/b") is not None
    with pytest.raises(DoesNotApply, match="src/in/B and src/in/b collide where case is ignored"):
        one = {**gone, b"src/in/b": (0o100644, b"y\n")}
        built(gone, one, {**one, b"src/in/B": (0o100644, b"z\n")})
