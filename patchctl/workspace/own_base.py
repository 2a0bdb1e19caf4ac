"""The tree at hand in place of the pin's, for `apply --on-this-base`: the pin's files, with the content that differs there.

The commit is made by patchctl, on the pin's, with a fixed author and date: the same folder gives the same id on every machine.
A file of the pin that is absent counts as the pin's, as in any tree that is patched in place: packages leave files out.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK, SYMLINK, Person, TreeBuilder, TreeEntry, render_commit
from patchctl.git.pack import PackWriter
from patchctl.git.packfiles import bring_pack
from patchctl.git.worktree import import_base
from patchctl.source.cache import BaseRecord, new_repository, place, seal, staging
from patchctl.source.types import Base
from patchctl.stack.build import COMMITTER
from patchctl.stack.plan import OwnBase
from patchctl.workspace.state import TreeState
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Tree

_AUTHOR = Person(*COMMITTER, "0 +0000")


def finder(folder: Path, cache: Path, listed: frozenset[bytes] | None) -> Callable[[Base], OwnBase | None]:
    """Return a function that compares `folder` with a pin's base. `listed` limits it to files of an installed package."""
    return partial(_compare, folder, cache, listed)


def applied(tree: Tree, state: TreeState) -> Callable[[Base], OwnBase | None]:
    """Return a function that gives the own base that a tree is applied on, if it was made on this pin's base."""

    def find(pin: Base) -> OwnBase | None:
        if state.pin_base != pin.commit:
            return None
        base = Base(pin.upstream, pin.form, tree.git_dir, state.base_commit, state.base_tree, pin.origin, 0)
        return OwnBase(base, pin.commit, state.differing)

    return find


def _compare(folder: Path, cache: Path, listed: frozenset[bytes] | None, pin: Base) -> OwnBase | None:
    """Return the own base, in the cache; None where no file differs from the pin's."""
    files, pack = TreeFiles(folder), PackWriter(stored=True)
    differing = []
    with ObjectReader(pin.repo) as reader:
        tree = TreeBuilder(base=pin.tree, read=reader.tree_data)
        for path, wanted in sorted(reader.files(pin.tree).items()):
            have = files.entry(path) if listed is None or path in listed else None
            if have is None or wanted.mode == GITLINK or have.id == wanted.id:
                continue
            differing.append(os.fsdecode(path))
            tree.remove(path)
            if have.id:  # otherwise a folder or a device, and no file for this tree
                mode = have.mode if SYMLINK in (have.mode, wanted.mode) else wanted.mode
                tree.put(path, TreeEntry(mode, pack.add("blob", _content(folder, path, have))))
        if not differing:
            return None
        made = tree.write_to(lambda oid, data, before: pack.add_known(oid, "tree", data, before))
    message = f"{len(differing)} files as they were found, on the pin's\n"
    commit = pack.add("commit", render_commit(made, [pin.commit], _AUTHOR, _AUTHOR, message))
    repo = cache / "own" / pin.upstream / f"{commit}.git"
    if not repo.is_dir():
        with staging(cache) as temporary:
            new = new_repository(temporary / repo.name)
            written = pack.write(temporary)
            assert written is not None
            bring_pack(written, new / "objects" / "pack")
            import_base(new, pin.repo)
            seal(new, BaseRecord(pin.upstream, pin.form, commit, made, str(folder)))
            place(new, repo, replace=False)
    return OwnBase(Base(pin.upstream, pin.form, repo, commit, made, pin.origin, 0), pin.commit, tuple(differing))


def _content(folder: Path, path: bytes, entry: TreeEntry) -> bytes:
    full = os.fsencode(folder) + b"/" + path
    if entry.mode == SYMLINK:
        return os.readlink(full)
    with open(full, "rb") as source:
        return source.read()
