"""What a plan meets where it is to be applied: trees that are applied already, installed packages, what an interpreter imports.

For `apply --on-this-base`, the tree at hand takes the place of the pin's: the pin's files, with the content that differs there.
The commit is made by patchctl, on the pin's, with a fixed author and date: the same folder gives the same id on every machine.
A file of the pin that is absent counts as the pin's, as in any tree that is patched in place: packages leave files out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from patchctl.errors import WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import COMMITTER, GITLINK, SYMLINK, Person, TreeBuilder, TreeEntry, render_commit
from patchctl.git.pack import PackWriter, bring_pack
from patchctl.git.worktree import import_base
from patchctl.language import joined, message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Upstream
from patchctl.source.cache import BaseRecord, new_repository, place, seal, staging
from patchctl.source.types import Base
from patchctl.stack.plan import AppliedStack, CurrentState, InstalledPackage, OwnBase
from patchctl.workspace.imports import find_imports
from patchctl.workspace.journal import read_journal
from patchctl.workspace.state import TreeState, in_profile, load_state
from patchctl.workspace.tree_files import TreeFiles
from patchctl.workspace.trees import Tree, listed

# vllm's, with its compiled parts, has 0.3 MB.
_RECORD_LIMIT = 64 << 20


def current_state(
    workspace: Path, dist: Distribution, into: Mapping[str, Path], own_bases_in: Path | None = None
) -> CurrentState:
    """The state now, or after an interrupted run is finished. With a cache for own bases, the folders of `into` are bases of their
    own where they differ from the pin. Raises WrongUse where two distributions claim one package."""
    journal = read_journal(workspace)
    found = journal.after if journal else load_state(workspace)
    trees = found.trees if found else {}
    installed = {n: p for n, f in into.items() if (p := find_installed(f, dist.upstream(n).packages.values()))}
    own_bases: dict[str, Callable[[Base], OwnBase | None]] = {}
    if own_bases_in is not None:
        for name in into.keys() - trees.keys():
            package = installed[name].files if name in installed else None
            own_bases[name] = finder(into[name], own_bases_in, package)
    applied = {}
    for name, state in trees.items():
        tree = Tree.of(workspace, name, state)
        if state.differing:
            own_bases[name] = applied_base(tree, state)
        if state.record and tree.kept_record.is_file():  # patched already: the files that the installer listed
            installed[name] = InstalledPackage(tree.folder, state.record, listed(tree.kept_record.read_bytes()))
        if in_profile(state) and tree.folder.is_dir() and not tree.uninstalled:
            applied[name] = AppliedStack(
                state.stack,
                state.form,
                state.tip_commit,
                tuple((p.file, p.digest) for p in state.patches),
                frozenset(o.feature for o in state.left_out),
            )
    return CurrentState(installed, applied, own_bases)


def find_installed(folder: Path, packages: Iterable[str]) -> InstalledPackage | None:
    """The installed distribution whose RECORD in `folder` lists one of these packages. None for a checkout, and for packages
    without a RECORD.

    Raises WrongUse when two distributions list it, and when RECORD could not be rewritten and restored: it, or its folder, is a link.
    """
    import csv

    modules = [f"{inner}/__init__.py,".encode() for inner in packages]
    found = []
    for record in sorted(folder.glob("*.dist-info/RECORD")):
        if not record.is_file() or record.stat().st_size > _RECORD_LIMIT:  # a pipe would be waited for
            continue
        data = record.read_bytes()
        if any(data.startswith(m) or b"\n" + m in data for m in modules):
            if record.is_symlink() or record.parent.is_symlink():
                raise WrongUse(
                    message("the package's RECORD is a link, or lies in a folder that is one"), where=str(record)
                )
            try:
                found.append(InstalledPackage(folder, str(record.relative_to(folder)), listed(data)))
            except csv.Error as error:
                raise WrongUse(
                    message("the package's RECORD cannot be read: {error}", error=error), where=str(record)
                ) from error
    if len(found) > 1:
        what = message("{records} list the same package", records=joined((p.record for p in found), " and "))
        raise WrongUse(what, where=str(folder), hint=message("uninstall both, and install the one that is wanted"))
    return found[0] if found else None


def top_of(folder: Path, upstream: Upstream) -> Path:
    """The folder of an upstream's tree when the folder of its package was named: site-packages for .../verl."""
    for inner in upstream.packages.values():
        above = Path(*folder.absolute().parts[: -len(Path(inner).parts)])
        if not (folder / inner).exists() and above / inner == folder.absolute() and (folder / "__init__.py").is_file():
            return above
    return folder


def imported_folders(python: str, workspace: Path, dist: Distribution, names: Iterable[str]) -> dict[str, Path]:
    """Where an interpreter finds these upstreams' packages, except those of the workspace itself.

    Raises WrongUse when it finds none, or finds one upstream in two places.
    """
    found: dict[str, Path] = {}
    ours = False
    for name in names:
        folders = set()
        for one in find_imports(python, name, workspace / name, dist):
            ours |= one.ours
            inner = Path(dist.upstream(name).packages[one.package])
            if one.place is not None and not one.ours:
                # Of the file, the folder: uv may have linked the file into its cache, which must not change.
                place = Path(one.place)
                place = (place.parent if place.is_file() else place).resolve()
                if place.parts[-len(inner.parts) :] == inner.parts:
                    folders.add(Path(*place.parts[: -len(inner.parts)]))
        if len(folders) > 1:
            raise WrongUse(
                message(
                    "{python} imports {name} from {folders}",
                    python=python,
                    name=name,
                    folders=joined(map(str, sorted(folders)), " and "),
                )
            )
        found.update(dict.fromkeys([name] if folders else [], *folders))
    if names and not found and not ours:
        hint = message(
            "`patchctl apply` without it makes trees in the workspace; `patchctl install` puts them into a Python"
        )
        raise WrongUse(message("{python} imports no package of this profile", python=python), hint=hint)
    return found


_AUTHOR = Person(*COMMITTER, "0 +0000")


def finder(folder: Path, cache: Path, listed: frozenset[bytes] | None) -> Callable[[Base], OwnBase | None]:
    """Return a function that compares `folder` with a pin's base. `listed` limits it to files of an installed package."""
    return partial(_compare, folder, cache, listed)


def applied_base(tree: Tree, state: TreeState) -> Callable[[Base], OwnBase | None]:
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
