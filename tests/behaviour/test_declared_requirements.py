"""What manifests/requirements/ says that the trees declare, against the trees: each file by its blob and its lines."""

from __future__ import annotations

import pytest
from trees import REPO, Trees

from patchctl.git.objects import object_id
from patchctl.manifest.distribution import Distribution
from patchctl.requirements.declared import Declared, parse, read_declared
from patchctl.requirements.sets import all_sets

(SET,) = all_sets(Distribution.load(REPO))


@pytest.mark.parametrize("one", read_declared(SET), ids=lambda d: d.title)
def test_it_is_what_the_tree_says(one: Declared, trees: Trees) -> None:
    file = trees.path(one.upstream) / one.file
    if not file.is_file():
        pytest.skip(f"{one.title} is not in this form of the source")
    data = file.read_bytes()
    assert (object_id("blob", data), tuple(parse(one.file, data))) == (one.blob, one.requirements)


def test_no_patch_changes_what_a_tree_declares() -> None:
    """So that the pin's files are those of the patched tree."""
    names = {d.file.encode() for d in SET.value.declared}
    for patch in (REPO / "patches").rglob("*.patch"):
        touched = {line[6:] for line in patch.read_bytes().splitlines() if line.startswith((b"--- a/", b"+++ b/"))}
        assert not touched & names, patch
