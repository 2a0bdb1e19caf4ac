"""Compares a folder with a known tree: which files are the pin's, which are patched, and which are neither.

The folder is listed once, and files are read on demand: symbolic links are never followed, and only regular files are
opened, since a FIFO would block.

If a file does not have all that the lock records, it is searched for those of the stack's patches that it has. The lock
has a file's blob after each patch of the full stack, but profiles leave patches out. So patches are reverted
from the file, in every combination, until the pin's blob is left. Hunks are searched for, which is not fuzz here: the
final blob id proves that every line was right.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated

from patchctl.doc import Doc
from patchctl.errors import PatchctlError
from patchctl.git.objects import EXECUTABLE, REGULAR, SYMLINK, object_id
from patchctl.manifest.lock import LockedPatch
from patchctl.patch.hunks import split_lines
from patchctl.patch.parse import Hunk
from patchctl.stack.patches import load_patch
from patchctl.stack.tree_lists import KnownTree, show

# Not part of source trees; those that could be (`build`, `venv`) are scanned if a known tree has the name.
_PASSED_BY = frozenset(
    b".git .hg .svn .venv .tox .nox .eggs .mypy_cache .pytest_cache .ruff_cache .hypothesis .patchctl"
    b" __pycache__ node_modules venv build dist".split()
)
_PASSED_BY_ENDS = (b".egg-info", b".dist-info")
BUILD_OUTPUTS = (b".so", b".pyd", b".dylib", b".dll", b".o", b".a", b".pyc", b".pyo", b".egg-link")
_LARGEST = 1 << 28


@dataclass(frozen=True)
class FileContent:
    """A file's blob id and mode. `lf_id` is its id with LF line ends, None if it has no CRLF."""

    id: str
    mode: int
    lf_id: str | None = None


@dataclass
class Folder:
    """The names below a folder. `files` maps a path (bytes, '/') to its mode; 0 for types that git does not store.

    `is_site_packages`: there is a .dist-info, so files beside the packages can belong to anyone.
    """

    path: Path
    files: dict[bytes, int] = field(default_factory=dict)
    passed_by: int = 0
    is_site_packages: bool = False
    unreadable: list[bytes] = field(default_factory=list)
    _contents: dict[bytes, FileContent | str] = field(default_factory=dict)

    def content(self, path: bytes) -> FileContent | str:
        """Return the content of the file at `path`, read once, or why it cannot be read."""
        if path not in self._contents:
            self._contents[path] = self._read(path)
        return self._contents[path]

    def data(self, path: bytes) -> bytes:
        """Return the bytes of a regular file. Raises OSError."""
        return _regular_bytes(self._full(path))

    def _full(self, path: bytes) -> bytes:
        return os.fsencode(self.path) + b"/" + path

    def _read(self, path: bytes) -> FileContent | str:
        mode = self.files[path]
        try:
            if mode == SYMLINK:
                return FileContent(object_id("blob", os.readlink(self._full(path))), mode)
            if mode == 0:
                return "is no regular file"
            data = _regular_bytes(self._full(path))
        except OSError as error:
            return f"cannot be read: {error.strerror or error}"
        lf_id = object_id("blob", data.replace(b"\r\n", b"\n")) if b"\r\n" in data else None
        return FileContent(object_id("blob", data), mode, lf_id)


def _regular_bytes(full: bytes) -> bytes:
    """Read a regular file, checked again after opening, since it may have been replaced."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(full, flags), "rb") as source:
        status = os.fstat(source.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is no regular file")
        if status.st_size > _LARGEST:
            raise OSError(0, f"it is larger than {_LARGEST >> 20} MiB")
        return source.read()


def scan(path: Path, known_folders: Collection[bytes], submodules: Collection[bytes]) -> Folder:
    """List a folder, names and modes only.

    `known_folders` are folder names in known trees; `submodules` are paths of submodules, whose content is not the
    tree's.
    """
    found = Folder(path)
    skipped = _PASSED_BY - {*known_folders}
    pending = [b""]
    while pending:
        prefix = pending.pop()
        try:
            with os.scandir(os.fsencode(path) + b"/" + prefix) as entries:
                listed = sorted(entries, key=lambda e: e.name)
        except OSError:
            found.unreadable.append(prefix.rstrip(b"/") or b".")
            continue
        for entry in listed:
            name = prefix + entry.name
            if entry.is_dir(follow_symlinks=False):
                if _is_passed_by(entry, skipped) or name in submodules:
                    found.passed_by += 1
                    found.is_site_packages |= not prefix and name.endswith(b".dist-info")
                else:
                    pending.append(name + b"/")
            else:
                found.files[name] = _mode(entry)
    return found


def _is_passed_by(entry: os.DirEntry[bytes], skipped: Collection[bytes]) -> bool:
    if entry.name in skipped or entry.name.endswith(_PASSED_BY_ENDS):
        return True
    return os.path.lexists(os.path.join(entry.path, b"pyvenv.cfg"))


def _mode(entry: os.DirEntry[bytes]) -> int:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except OSError:
        return 0
    if stat.S_ISLNK(mode):
        return SYMLINK
    if not stat.S_ISREG(mode):
        return 0
    return EXECUTABLE if mode & 0o100 else REGULAR


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
