"""Lists of all files of a pin, generated and committed, so that `identify` needs no source.

    manifests/trees/<upstream>/<stack>.tsv
    # verl v0.6.0: git commit ddd86f52...            or        # vllm v0.14.1: sdist vllm 0.14.1 sha256 c7c6d0a7...
    100644<TAB>66015ad3...<TAB>.gemini/config.yaml

One line per file, sorted by the path's bytes. Form git is preferred: it is the whole commit, while an sdist has what
its project ships, sometimes including files of submodules, which the manifest lists in `pin.sdist.untracked`.

The files of a distribution's pins: each tree's list, and the versions that the stack's patches make.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, Where
from patchctl.git.objects import GITLINK, Files, TreeEntry
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedPatch, StackLock, read_lock
from patchctl.manifest.types import Stack

if TYPE_CHECKING:
    from patchctl.source.types import Base


@dataclass(frozen=True)
class FileState:
    """A version of a file: its blob id (None: absent) with the patches `applied`, by number."""

    id: str | None
    applied: frozenset[int]


@dataclass(frozen=True)
class KnownTree:
    """A stack's pin. `packages` are folders ending with '/'; `generated` are files that upstream's build writes."""

    stack: Stack
    patch_files: Mapping[str, Path]
    source: str
    files: Files
    packages: tuple[bytes, ...]
    generated: frozenset[bytes]
    lock: StackLock | None

    @property
    def upstream(self) -> str:
        return self.stack.upstream

    @property
    def patches(self) -> Sequence[LockedPatch]:
        return self.lock.patches if self.lock else ()

    @cached_property
    def submodules(self) -> frozenset[bytes]:
        return frozenset(p for p, e in self.files.items() if e.mode == GITLINK)

    @cached_property
    def touched(self) -> dict[bytes, tuple[int, ...]]:
        """Files that patches change or add, with the numbers of those patches in order."""
        found: dict[bytes, tuple[int, ...]] = {}
        for number, patch in enumerate(self.patches):
            for file in patch.files or ():
                path = file.path.encode("utf-8", "surrogateescape")
                found[path] = (*found.get(path, ()), number)
        return found

    @cached_property
    def states(self) -> dict[bytes, tuple[FileState, ...]]:
        """The versions of each touched file: at the pin and after each patch of the full stack, last first.

        Last first, since a file left unchanged by the later of two patches counts as having both.
        """
        found: dict[bytes, tuple[FileState, ...]] = {}
        for path, numbers in self.touched.items():
            entry = self.files.get(path)
            chain = [FileState(entry.id if entry else None, frozenset())]
            for position, number in enumerate(numbers):
                chain.append(FileState(self._after(number, path), frozenset(numbers[: position + 1])))
            found[path] = tuple(reversed(chain))
        return found

    def _after(self, number: int, path: bytes) -> str | None:
        after = [f.after for f in self.patches[number].files or () if f.path.encode("utf-8", "surrogateescape") == path]
        return after[-1][1] if after and after[-1] else None

    @cached_property
    def folders(self) -> frozenset[bytes]:
        """Folders that directly contain files; the root is b""."""
        return frozenset(p.rpartition(b"/")[0] for p in self.files)

    @cached_property
    def folder_names(self) -> frozenset[bytes]:
        return frozenset(part for path in self.files for part in path.split(b"/")[:-1])

    def in_package(self, path: bytes) -> bool:
        """Whether an import of the upstream's packages could find this file."""
        return path.startswith(self.packages)

    def is_module(self, path: bytes) -> bool:
        """Whether every installation has this file: `find_packages` skips folders without `__init__.py`."""
        init = path.rpartition(b"/")[0] + b"/__init__.py"
        return self.in_package(path) and path.endswith(b".py") and init in self.files


def known_trees(dist: Distribution) -> list[KnownTree]:
    """Return every stack with a committed file list. Raises BadManifest for a damaged list or lock."""
    found = []
    for stack in dist.stacks.values():
        listed = read_tree_list(dist.root, stack)
        if listed is None:
            continue
        packages = tuple(f"{p}/".encode() for p in dist.upstream(stack.upstream).packages.values())
        generated = frozenset(g.path.encode() for g in stack.generated)
        lock = read_lock(dist.root, stack)
        patch_files = {file.name: file for file in dist.patch_files(stack)}
        found.append(KnownTree(stack, patch_files, listed.source, listed.files, packages, generated, lock))
    return found


TREES = "manifests/trees"
_HEAD = re.compile(
    rb"# (?P<upstream>\S+) (?P<stack>\S+): "
    rb"(?:git commit (?P<commit>[0-9a-f]{40})|sdist (?P<name>\S+) (?P<version>\S+) sha256 (?P<sha256>[0-9a-f]{64}))"
)
_LINE = re.compile(rb"(?P<mode>100644|100755|120000|160000)\t(?P<id>[0-9a-f]{40})\t(?P<path>[^\0]+)")
# The message of form sdist's root commit (patchctl/source/sdist.py).
_SDIST_MESSAGE = re.compile(r"\n\n(\S+) (\S+) from its source distribution\n\nsha256: ([0-9a-f]{64})\n\Z")
_HINT = "it is generated: `patchctl lock` recreates it"


@dataclass(frozen=True)
class TreeList:
    """The files of a pin. `source` is where they were read from, as in the first line; `form` is git or sdist."""

    upstream: str
    stack: str
    form: str
    source: str
    files: Files


def tree_list_file(root: Path, upstream: str, stack: str) -> Path:
    """Return the path of the list of a stack's pin."""
    return root / TREES / upstream / f"{stack}.tsv"


def read_tree_list(root: Path, stack: Stack) -> TreeList | None:
    """Return the list of a stack's pin, or None. Raises BadManifest for a damaged list or another pin's."""
    file = tree_list_file(root, stack.upstream, stack.name)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadManifest(f"cannot read the file list: {error.strerror}", where=Where(str(file))) from error
    found = parse_tree_list(data, str(file))
    if (found.upstream, found.stack) != (stack.upstream, stack.name) or found.source not in _sources(stack, found):
        what = f"the file list is for {found.upstream} {found.stack}, {found.source}, not for the stack's pin"
        raise BadManifest(what, where=Where(str(file), 1), hint=_HINT)
    return found


def _sources(stack: Stack, found: TreeList) -> list[str]:
    """Return the sources a list of this stack may name. The sdist's name comes from the index, not the pin."""
    sdist = stack.pin.sdist
    known = [f"git commit {stack.pin.commit}"] if stack.pin.commit else []
    if sdist is not None and found.form == "sdist":
        known.append(f"sdist {found.source.split()[1]} {sdist.version} sha256 {sdist.sha256}")
    return known


def parse_tree_list(data: bytes, name: str) -> TreeList:
    """Parse the bytes of a list; `name` is for messages. Raises BadManifest with the line."""
    lines = data.split(b"\n")
    head = _HEAD.fullmatch(lines[0])
    if head is None or lines.pop() != b"":
        raise BadManifest("not a list of a pin's files", where=Where(name, 1), hint=_HINT)
    files: Files = {}
    last = b""
    for number, line in enumerate(lines[1:], 2):
        match = _LINE.fullmatch(line)
        if match is None or match["path"] <= last:
            what = "expected mode, blob id and path, separated by tabs and sorted by path"
            raise BadManifest(what, where=Where(name, number), hint=_HINT)
        last = match["path"]
        files[last] = TreeEntry(int(match["mode"], 8), match["id"].decode())
    source = lines[0].partition(b": ")[2].decode("utf-8", "replace")
    form = "git" if head["commit"] else "sdist"
    return TreeList(
        head["upstream"].decode("utf-8", "replace"), head["stack"].decode("utf-8", "replace"), form, source, files
    )


def render_tree_list(found: TreeList) -> bytes:
    """Return the file's bytes. Raises BadManifest for a name with a line end, which the format cannot hold."""
    broken = next((p for p in found.files if b"\n" in p), None)
    if broken is not None:
        raise BadManifest(f"{found.upstream} has a file name with a line end: {broken!a}")
    lines = [f"# {found.upstream} {found.stack}: {found.source}".encode()]
    lines += [b"%o\t%s\t%s" % (e.mode, e.id.encode(), p) for p, e in sorted(found.files.items())]
    return b"\n".join(lines) + b"\n"


def tree_list_of(stack: Stack, base: Base) -> TreeList:
    """Return the list of a cached base, with every tree object verified. Raises SourceMismatch."""
    from patchctl.git.catfile import ObjectReader

    with ObjectReader(base.repo) as reader:
        files = reader.files(base.tree)
        message = "" if base.form == "git" else reader.read(base.commit)[1].decode("utf-8", "replace")
    source = f"git commit {base.commit}" if base.form == "git" else _sdist_source(message, base)
    return TreeList(stack.upstream, stack.name, base.form, source, files)


def _sdist_source(message: str, base: Base) -> str:
    match = _SDIST_MESSAGE.search(message)
    if match is None:
        raise BadManifest(
            f"{base.commit} is not a commit that patchctl made from a source distribution", where=str(base.repo)
        )
    return "sdist {} {} sha256 {}".format(*match.groups())


@dataclass(frozen=True)
class ListDifference:
    """A difference between a list and a base, and how to fix it: a command, or lines for the manifest."""

    what: str
    cure: str


def check_tree_list(root: Path, stack: Stack, base: Base) -> ListDifference | None:
    """Compare the committed list with this base; return the difference, or None.

    A list of form git matches an sdist whose files are the commit's, apart from those that the manifest calls
    untracked.
    """
    wanted = tree_list_of(stack, base)
    have = _listed(root, stack)
    shown = f"{TREES}/{stack.upstream}/{stack.name}.tsv"
    lock = f"`patchctl lock --upstream {stack.upstream}"
    if have is None:
        return ListDifference(f"{shown} is missing or unusable", f"{lock}` writes it")
    if have.form == "git" and base.form == "sdist":
        return _sdist_difference(
            stack, have, wanted, shown, f"{lock} --source git --mirror {stack.upstream}=REPOSITORY`"
        )
    other = sorted(p for p in have.files.keys() | wanted.files.keys() if have.files.get(p) != wanted.files.get(p))
    if other:
        return ListDifference(_differs(shown, wanted, other), f"{lock}` writes it")
    if have.source != wanted.source:
        return ListDifference(f"{shown} names {have.source}, but the base is {wanted.source}", f"{lock}` writes it")
    return None


def _sdist_difference(stack: Stack, have: TreeList, wanted: TreeList, shown: str, relock: str) -> ListDifference | None:
    """Compare the pinned commit's files with those of its sdist."""
    changed = sorted(p for p, e in wanted.files.items() if have.files.get(p, e) != e)
    if changed:
        return ListDifference(
            _differs(shown, wanted, changed), f"{relock} writes it, if the list is wrong and not the pin"
        )
    assert stack.pin.sdist is not None
    manifest = f"manifests/stacks/{stack.upstream}/{stack.name}.yaml"
    untracked = sorted(wanted.files.keys() - have.files.keys())
    named = {name: [p for p in untracked if _at(p, name)] for name in stack.pin.sdist.untracked}
    unnamed = [p for p in untracked if not any(p in paths for paths in named.values())]
    if unnamed:
        submodule = next((p for p, e in have.files.items() if e.mode == GITLINK and _at(unnamed[0], p.decode())), None)
        line = f"{show(submodule or unnamed[0])}: {'The files of a submodule.' if submodule else 'WHY'}"
        return ListDifference(
            f"{_differs(shown, wanted, unnamed)}, which the pinned commit does not track",
            f"add `untracked: {{{line}}}` below `sdist:` in {manifest}",
        )
    idle = next((name for name, paths in named.items() if not paths), None)
    if idle is not None:
        what = f"{wanted.source} has no file at {idle} that the pinned commit does not track"
        return ListDifference(what, f"remove {idle} from `untracked:` in {manifest}")
    return None


def _at(path: bytes, name: str) -> bool:
    """Whether a path is the file or folder `name`, or inside it."""
    return path == name.encode() or path.startswith(name.encode() + b"/")


def show(path: bytes) -> str:
    """Return a path as text, whatever its bytes."""
    return path.decode("utf-8", "backslashreplace")


def _differs(shown: str, wanted: TreeList, paths: list[bytes]) -> str:
    files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    return f"{shown} differs from {wanted.source} in {files}; the first is {show(paths[0])}"


def update_tree_list(root: Path, stack: Stack, base: Base) -> ListDifference | None:
    """Write the list if `check_tree_list` finds a difference; return that difference, or None.

    Raises BadManifest instead of replacing the pinned commit's list by that of an sdist that contradicts it.
    """
    difference = check_tree_list(root, stack, base)
    if difference is None:
        return None
    have = _listed(root, stack)
    if have is not None and have.form == "git" and base.form == "sdist":
        raise BadManifest(
            difference.what, where=str(tree_list_file(root, stack.upstream, stack.name)), hint=difference.cure
        )
    write_tree_list(root, stack, base)
    return difference


def write_tree_list(root: Path, stack: Stack, base: Base) -> Path:
    """Write the list of this base unconditionally, by rename."""
    file = tree_list_file(root, stack.upstream, stack.name)
    replace_file(file, render_tree_list(tree_list_of(stack, base)))
    return file


def _listed(root: Path, stack: Stack) -> TreeList | None:
    try:
        return read_tree_list(root, stack)
    except BadManifest:
        return None  # damaged or for another pin: to be replaced
