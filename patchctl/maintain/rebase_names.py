"""What the patches of a rebased stack call of upstream's, and what of it changed although no hunk did."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from patchctl.git.catfile import ObjectReader
from patchctl.maintain.tripwire_modules import Reader
from patchctl.maintain.tripwires import Source, changed_names, written_lines
from patchctl.stack.patches import StackPatch
from patchctl.workspace.trees import commit_tree


def changed_calls(
    reader: ObjectReader, old: str, commits: Sequence[str], patches: Sequence[StackPatch]
) -> Iterator[tuple[str, str]]:
    """A feature and a line for each name that is gone, or has another signature, between two patched trees: that of the commit `old`, and that of the
    last of `commits`, which the patches became."""
    if not commits:
        return
    before, after = _texts(reader, old), _texts(reader, commits[-1])
    for patch, commit in zip(patches, commits, strict=True):
        for one in changed_names(list(_sources(patch, _texts(reader, commit))), before, after):
            now = f"is {one.now}" if one.now else "is gone"
            yield (
                patch.feature,
                f"{patch.feature}: {one.file}:{one.line} uses {one.name}, which was {one.was} and {now}",
            )


def _sources(patch: StackPatch, tree: Reader) -> Iterator[Source]:
    """The Python that a patch writes, as it stands behind it."""
    yield from (Source(path, data) for path, data in patch.carried.items() if path.endswith(".py"))
    for change in patch.patch.changes:
        path = os.fsdecode(change.new_path or b"")
        data = tree(path) if path.endswith(".py") else None
        if data is not None:
            yield Source(path, data, written_lines(change.hunks))


def _texts(reader: ObjectReader, commit: str) -> Reader:
    files = reader.files(commit_tree(reader, commit))

    def text(path: str) -> bytes | None:
        entry = files.get(os.fsencode(path))
        return reader.read(entry.id)[1] if entry is not None else None

    return text
