"""Compares a folder with a known tree: which files are the pin's, which are patched, and which are neither.

Finds which of a stack's patches a file has, if it does not have all that the lock records.

The lock has a file's blob after each patch of the full stack, but profiles leave patches out. So patches are reverted
from the file, in every combination, until the pin's blob is left. Hunks are searched for, which is not fuzz here: the
final blob id proves that every line was right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import PatchctlError
from patchctl.git.objects import EXECUTABLE, REGULAR, SYMLINK, object_id
from patchctl.identify.lists import KnownTree, show
from patchctl.identify.scan import BUILD_OUTPUTS, FileContent, Folder
from patchctl.manifest.lock import LockedPatch
from patchctl.patch.hunks import split_lines
from patchctl.patch.parse import Hunk
from patchctl.stack.patches import load_patch

# At most this many combinations. The first is nearly always right; for unrelated files the work would double with
# each patch. Nine of verl's patches touch megatron_workers.py.
_MOST_WAYS = 256


def applied_patches(known: KnownTree, path: bytes, data: bytes) -> frozenset[int] | None:
    """Return the patches whose removal gives the pin's file, by number; None if no combination does."""
    entry = known.files.get(path)
    numbers = known.touched.get(path, ())
    if entry is None or not numbers:
        return None
    hunks = {n: _hunks(known, known.patches[n], path) for n in numbers}
    for lines, chosen in islice(_ways(split_lines(data), numbers, hunks), _MOST_WAYS):
        if object_id("blob", b"".join(lines)) == entry.id:
            return frozenset(chosen)
    return None


def _ways(
    lines: list[bytes], numbers: Sequence[int], hunks: Mapping[int, list[Hunk] | None]
) -> Iterator[tuple[list[bytes], tuple[int, ...]]]:
    """Yield the file without some patches, and which; starting with all that can be reverted removed."""
    if not numbers:
        yield lines, ()
        return
    *earlier, last = numbers
    without = _without(lines, hunks[last])
    if without is not None:
        for left, chosen in _ways(without, earlier, hunks):
            yield left, (*chosen, last)
    yield from _ways(lines, earlier, hunks)


def _without(lines: list[bytes], hunks: list[Hunk] | None) -> list[bytes] | None:
    """Revert hunks, each at the match of its new lines nearest to its recorded place; None if that fails."""
    if hunks is None:
        return None
    out = list(lines)
    for hunk in reversed(hunks):
        size = len(hunk.new)
        places = [i for i in range(len(out) - size + 1) if out[i : i + size] == hunk.new]
        if not places or not size:
            return None
        at = min(places, key=lambda i: abs(i + 1 - hunk.new_start))
        out[at : at + size] = hunk.old
    return out


def _hunks(known: KnownTree, locked: LockedPatch, path: bytes) -> list[Hunk] | None:
    """Return a patch's hunks for one file; None if it changes it otherwise, or is not the locked patch."""
    file = known.patch_files.get(locked.file)
    return _changes(file, locked.digest).get(path) if file is not None else None


@cache
def _changes(file: Path, digest: str) -> dict[bytes, list[Hunk]]:
    try:
        patch = load_patch(file, file.parent)
    except PatchctlError:
        return {}
    if patch.digest != digest:
        return {}
    return {c.path: c.hunks for c in patch.patch.changes if c.kind == "modify" and c.binary is None}


EMPTY = object_id("blob", b"")
# Fewer files prove nothing: many projects share a licence and an ignore file.
FEWEST = 3
# Files that setuptools-scm, vllm-ascend's setup.py and protobuf's compiler write into packages.
_WRITTEN_MODULE = re.compile(rb"(^|/)(_version|_build_info|[^/]+_pb2|[^/]+_pb2_grpc)\.py$")
_CRLF = "line ends are CRLF; with LF it would be the file"


@dataclass(frozen=True)
class FileDifference:
    """A file that is neither the pin's nor a patched version of it, and why."""

    path: Annotated[str, Doc("path below the folder")]
    why: Annotated[str, Doc("reason: other content, CRLF, symbolic link or unreadable")]


@dataclass(frozen=True)
class PatchFound:
    """A patch of the stack found "wholly" (in all of its files that are here) or "partly" (missing in `without`)."""

    file: Annotated[str, Doc("patch file")]
    feature: Annotated[str, Doc("feature name")]
    state: Annotated[str, Doc("`wholly` or `partly`")]
    without: Annotated[tuple[str, ...], Doc("files that lack the patch; empty unless `state` is `partly`")] = ()


@dataclass
class Comparison:
    """The raw result of a comparison.

    Paths are the folder's, in bytes. `at` is the tree's folder that was compared, ending with '/', empty for the
    whole tree. `applied` has the patch numbers found in each touched file that is here.
    """

    known: KnownTree
    at: bytes
    present: set[bytes] = field(default_factory=set)
    equal: set[bytes] = field(default_factory=set)
    telling: set[bytes] = field(default_factory=set)
    missing: list[bytes] = field(default_factory=list)
    extra: list[bytes] = field(default_factory=list)
    modes: list[bytes] = field(default_factory=list)
    differing: list[FileDifference] = field(default_factory=list)
    applied: dict[bytes, frozenset[int]] = field(default_factory=dict)

    @property
    def patched(self) -> int:
        return sum(1 for numbers in self.applied.values() if numbers)

    @property
    def similar(self) -> bool:
        """Whether the folder is similar enough to report as this pin."""
        fewest = min(FEWEST, sum(1 for e in self.known.files.values() if e.id != EMPTY))
        return len(self.telling) >= fewest and len(self.telling) * 10 >= len(self.present)

    @property
    def exact(self) -> bool:
        """Whether the folder is the pin, patched or not: nothing else, no modules missing, enough files to tell."""
        modules = [n for n in self.missing if n.endswith(b".py") and self.known.in_package(self.at + n)]
        whole = all(p.state == "wholly" for p in patches_found(self))
        enough = self.similar and len(self.present) >= len(self.missing)
        return enough and whole and not (self.differing or self.extra or modules)


def compare(folder: Folder, known: KnownTree, at: bytes) -> Comparison:
    """Compare every file that the tree has below `at`. Each file is read at most once, however many trees it meets."""
    result = Comparison(known, at)
    paths = {p for p in known.files.keys() | known.touched.keys() if p.startswith(at)} - known.submodules
    if folder.is_site_packages and known.packages:
        paths = {p for p in paths if known.in_package(p)}  # many wheels, verl's too, install a top-level `tests`
    absent = []
    for path in sorted(paths):
        name = path[len(at) :]
        if name not in folder.files:
            absent.append(path)
            continue
        result.present.add(name)
        content = folder.content(name)
        if isinstance(content, str):
            result.differing.append(FileDifference(show(name), content))
        else:
            _judge(result, folder, path, name, content)
    here = {(at + n).rpartition(b"/")[0] for n in result.present}
    for path in absent:
        if _nearest_folder(known, path) in here:
            _absent(result, path)
    result.extra = _extra(folder, known, at, result.present)
    return result


def _nearest_folder(known: KnownTree, path: bytes) -> bytes:
    """Return a path's folder, or the nearest one above in which the pin has files: patches may add folders."""
    folder = path.rpartition(b"/")[0]
    while folder and folder not in known.folders:
        folder = folder.rpartition(b"/")[0]
    return folder


def _absent(result: Comparison, path: bytes) -> None:
    """Record an absent file whose neighbours exist: deleted by a patch, not added by one, or missing."""
    name = path[len(result.at) :]
    gone = next((s for s in result.known.states.get(path, ()) if s.id is None), None)
    if gone is not None:
        result.applied[name] = gone.applied
    else:
        result.missing.append(name)


def _judge(result: Comparison, folder: Folder, path: bytes, name: bytes, content: FileContent) -> None:
    known = result.known
    entry = known.files.get(path)
    applied = _applied(known, folder, path, name, content.id)
    if content.mode == SYMLINK and (entry is None or entry.mode != SYMLINK):
        result.differing.append(FileDifference(show(name), "is a symbolic link"))
        return
    if applied is None:
        of_lf = _applied(known, folder, path, name, content.lf_id) if content.lf_id else None
        result.differing.append(FileDifference(show(name), "other content" if of_lf is None else _CRLF))
        return
    if path in known.touched:
        result.applied[name] = applied
    if entry is not None and not applied:
        result.equal.add(name)
    if content.id != EMPTY:
        result.telling.add(name)
    if entry is not None and {entry.mode, content.mode} == {REGULAR, EXECUTABLE}:
        result.modes.append(name)


def _applied(known: KnownTree, folder: Folder, path: bytes, name: bytes, oid: str) -> frozenset[int] | None:
    """Return the patches in a file with this blob id; None if it is not a version of the pin's file."""
    if path not in known.touched:
        return frozenset() if known.files[path].id == oid else None
    for state in known.states[path]:
        if state.id == oid:
            return state.applied
    content = folder.content(name)
    if isinstance(content, str) or content.id != oid or content.mode == SYMLINK:
        return None
    try:
        return applied_patches(known, path, folder.data(name))
    except OSError:
        return None


def _extra(folder: Folder, known: KnownTree, at: bytes, present: set[bytes]) -> list[bytes]:
    """Return modules inside the packages that the pin does not have: they are imported like the others.

    Excludes what builds write (`_version.py`) and folders that are not packages: vllm-ascend installs whole operator
    kits with Python files below `_cann_ops_custom`.
    """
    if not any(known.in_package(at + n) for n in present):
        return []
    return [
        name
        for name in sorted(folder.files)
        if name.endswith(b".py")
        and name not in present
        and known.in_package(at + name)
        and at + name not in known.generated
        and not is_build_output(name)
        and _in_packages_all_the_way(folder, known, at, name)
    ]


def _in_packages_all_the_way(folder: Folder, known: KnownTree, at: bytes, name: bytes) -> bool:
    """Whether every folder on the way, below the upstream's package, is the pin's or has an `__init__.py`."""
    parts = name.split(b"/")[:-1]
    above = [b"/".join(parts[: i + 1]) for i in range(len(parts))]
    return all(
        at + f in known.folders or f + b"/__init__.py" in folder.files for f in above if known.in_package(at + f + b"/")
    )


def patches_found(result: Comparison) -> tuple[PatchFound, ...]:
    """Return the stack's patches that are in the folder, in order."""
    found = []
    for number, patch in enumerate(result.known.patches):
        names = [n for n in result.applied if number in result.known.touched[result.at + n]]
        having = [n for n in names if number in result.applied[n]]
        if having:
            without = tuple(sorted(show(n) for n in names if n not in having))
            found.append(PatchFound(patch.file, patch.feature, "partly" if without else "wholly", without))
    return tuple(found)


def form_of(result: Comparison, folder: Folder) -> str:
    """Return what the folder contains.

    complete: every file of the list. package: all modules of the packages and nothing else. sdist: the same, plus
    what a source distribution has. part: less than that.
    """
    known, at = result.known, result.at
    expected = known.files.keys() - known.submodules
    here = {at + n for n in result.present | result.applied.keys()}
    if expected <= here:
        return "complete"
    modules = {p for p in expected if known.is_module(p)}
    if not modules or not modules <= here:
        return "part"
    if all(known.in_package(p) for p in here):
        return "package"
    return "sdist" if at == b"" and b"PKG-INFO" in folder.files else "part"


def is_build_output(name: bytes) -> bool:
    """Whether compilers, interpreters or packaging tools write files of this name."""
    return name.endswith(BUILD_OUTPUTS) or _WRITTEN_MODULE.search(name) is not None
