"""A stack's list of patches, written anew by export, import and rebase."""

from __future__ import annotations

import pytest

from patchctl.errors import WrongUse
from patchctl.manifest.files import rewrite_patches

MANIFEST = """\
schema: 1
patches:  # in order
  # mends what vllm needs
  - 0001-bugfix-a.patch  # PR 1

  - "0002-feature-b.patch"
  # the end
# of the next key
dropped: {}
"""


def test_comments_stay_with_their_patch_whatever_its_number() -> None:
    assert rewrite_patches(MANIFEST, ["0001-feature-b.patch", "0002-bugfix-a.patch", "0003-bugfix-c.patch"]) == (
        "schema: 1\npatches:  # in order\n  - 0001-feature-b.patch\n  # mends what vllm needs\n"
        "  - 0002-bugfix-a.patch  # PR 1\n  - 0003-bugfix-c.patch\n  # the end\n# of the next key\ndropped: {}\n"
    )


def test_a_patch_that_goes_takes_its_comments_along() -> None:
    rest = "  # the end\n# of the next key\ndropped: {}\n"
    assert rewrite_patches(MANIFEST, []) == f"schema: 1\npatches: []  # in order\n{rest}"


def test_an_empty_list_becomes_a_block() -> None:
    assert rewrite_patches("patches: []\nb: 1\n", ["0001-x.patch"]) == "patches:\n  - 0001-x.patch\nb: 1\n"
    with pytest.raises(WrongUse):
        rewrite_patches("patches: [a.patch]\n", [])
