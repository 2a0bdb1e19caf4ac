"""What manifests/requirements/ says that the trees declare, against the trees: each file by its blob and its lines."""

from __future__ import annotations

import pytest
from trees import REPO, Trees

from patchctl.git.objects import object_id
from patchctl.manifest.distribution import Distribution
from patchctl.requirements.declared import Declared, parse, read_declared
from patchctl.requirements.sets import all_sets

SETS = all_sets(Distribution.load(REPO))
DECLARED = [one for named in SETS for one in read_declared(named)]


@pytest.mark.parametrize("one", DECLARED, ids=lambda d: f"{d.stack} {d.title}")
def test_it_is_what_the_tree_says(one: Declared, trees: Trees) -> None:
    if trees.stack(one.upstream).name != one.stack:
        pytest.skip(f"the tree is another stack of {one.upstream} than {one.stack}")
    file = trees.path(one.upstream) / one.path
    if not file.is_file():
        pytest.skip(f"{one.title} is not in this form of the source")
    data = file.read_bytes()
    assert (object_id("blob", data), tuple(parse(one.file, data))) == (one.blob, one.requirements)


def test_no_patch_changes_what_a_tree_declares() -> None:
    """So that the pin's files are those of the patched tree."""
    names = {d.file.encode() for named in SETS for d in named.value.declared}
    for patch in (REPO / "patches").rglob("*.patch"):
        touched = {line[6:] for line in patch.read_bytes().splitlines() if line.startswith((b"--- a/", b"+++ b/"))}
        assert not touched & names, patch
