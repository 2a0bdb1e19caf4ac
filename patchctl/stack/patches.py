"""A stack's patches as loaded from the distribution: bytes read once, parsed, with carried files and digests. As rules and
generated pages read one: its lines, and the paragraphs of its message. Which of them a run leaves out, and why.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from patchctl.errors import BadPatch, Where, WrongUse
from patchctl.language import joined, message
from patchctl.manifest.series import CARRIED, shared_folder
from patchctl.patch.header import Header
from patchctl.patch.names import why_refused
from patchctl.patch.parse import MAX_PATCH, FileChange, LatePatch, Patch

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


CARRIED_FOLDER = CARRIED
_ALLOWED_MODES = {0o100644, 0o100755}
_RUN_BY_PYTHON = ("sitecustomize", "usercustomize")
_COMPILED = (".pyc", ".pyo")


@dataclass(frozen=True)
class StackPatch:
    """A patch of a stack. `data` is read once: what is hashed is what is applied."""

    file: Path
    shown: str
    data: bytes
    patch: Patch
    carried: dict[str, bytes]

    @property
    def header(self) -> Header:
        return self.patch.header

    @property
    def feature(self) -> str:
        """The feature's name: the `Feature:` trailer, else the file's stem."""
        return self.header.trailer("Feature") or self.file.stem

    @property
    def requires(self) -> list[tuple[str, str | None]]:
        """(feature, upstream, or None for the same one) of every `Requires:`."""
        pairs = [r.partition("@") for r in self.header.listed("Requires")]
        return [(name, upstream or None) for name, _, upstream in pairs]

    @cached_property
    def digest(self) -> str:
        """sha256 over the patch's bytes and each carried file's path and bytes."""
        return self._with_carried(hashlib.sha256(hashlib.sha256(self.data).digest()))

    @cached_property
    def change_digest(self) -> str:
        """sha256 over changes with context, switch and carried files; what evidence is bound to.

        Line numbers, the rest of each file and the header's text do not count, so that other patches or a better
        sentence leave a proof valid.
        """
        total = hashlib.sha256(repr(self.header.listed("Switch")).encode())
        for c in self.patch.changes:
            hunks = [(h.marks, h.old, h.new) for h in c.hunks]
            binary = (c.old_id, c.new_id) if c.binary else None
            total.update(repr((c.kind, c.old_path, c.new_path, c.old_mode, c.new_mode, hunks, binary)).encode())
        return self._with_carried(total)

    def _with_carried(self, total: hashlib._Hash) -> str:
        for path in sorted(self.carried):
            total.update(path.encode() + b"\0" + hashlib.sha256(self.carried[path]).digest())
        return total.hexdigest()

    @property
    def paths(self) -> set[bytes]:
        """Every path of the upstream tree that the patch reads or writes."""
        names = {p for c in self.patch.changes for p in (c.old_path, c.new_path) if p is not None}
        return names | {p.encode() for p in self.carried}


Patches = Mapping[str, Sequence[StackPatch]]


def load_patch(file: Path, root: Path) -> StackPatch:
    """Read and parse a patch and its carried files. Shown paths are relative to `root`. Raises BadPatch."""
    return parsed(load_unparsed(file, root))


def load_unparsed(file: Path, root: Path) -> StackPatch:
    """Like `load_patch`, but parse only the header, for patches that were `parsed` before. Raises BadPatch."""
    shown = _shown(file, root)
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):  # reading a FIFO would block
            raise BadPatch("not a regular file", where=Where(shown))
        if status.st_size > MAX_PATCH:
            raise BadPatch(f"the patch is larger than {MAX_PATCH // 2**20} MiB", where=Where(shown))
        data = file.read_bytes()
    except OSError as error:
        raise BadPatch(f"cannot be read: {error.strerror}", where=Where(shown)) from error
    patch = LatePatch(data, shown)
    return StackPatch(file, shown, data, patch, _carried(file, patch))


def parsed(one: StackPatch) -> StackPatch:
    """Parse and check a patch that was loaded unparsed. Raises BadPatch."""
    patch = one.patch
    check_patch(patch)
    changed = {c.path for c in patch.changes}
    twice = next((path for path in one.carried if path.encode() in changed), None)
    if twice is not None:
        line = next(t.line for t in patch.header.trailers["Carries"] if twice in t.value)
        raise _carried_twice(twice, Where(one.shown, line))
    return one


def _carried_twice(path: str, where: Where) -> BadPatch:
    return BadPatch(f"{path} is carried twice, or carried and changed by the diff", where=where)


def carried_folder(file: Path, path: str) -> Path:
    """Return the folder with a file that the patch `file` carries: next to the patch, else where stacks share it."""
    own, shared = (folder / CARRIED_FOLDER for folder in (file.parent, shared_folder(file.parent)))
    return shared if not os.path.lexists(own / path) and os.path.lexists(shared / path) else own


def _carried(file: Path, patch: Patch) -> dict[str, bytes]:
    carried: dict[str, bytes] = {}
    for trailer in patch.header.trailers.get("Carries", []):
        for path in (p.strip() for p in trailer.value.split(",") if p.strip()):
            check_carried(path, patch, trailer.line)
            folder = carried_folder(file, path)
            source = folder / path
            where = Where(patch.name, trailer.line)
            if path in carried:
                raise _carried_twice(path, where)
            ways = accumulate([str(folder), *path.split("/")], os.path.join)
            if any(map(os.path.islink, ways)) or not os.path.isfile(source):
                raise BadPatch(
                    f"carries {path}, but {CARRIED_FOLDER}/{path} next to the patch is not a file", where=where
                )
            carried[path] = source.read_bytes()
    return carried


def _shown(file: Path, root: Path) -> str:
    try:
        return file.relative_to(root).as_posix()
    except ValueError:
        return str(file)


@dataclass(frozen=True)
class LintedPatch:
    """A parsed patch file with its raw lines."""

    source: StackPatch

    @cached_property
    def lines(self) -> list[bytes]:
        return self.source.data.split(b"\n")

    @cached_property
    def header_end(self) -> int:
        """The 0-based number of the diff's first line."""
        return self.source.patch.changes[0].line - 1

    @property
    def kind(self) -> str:
        """feature or bugfix, from the file name."""
        return self.source.file.name.split("-")[1] if self.source.file.name.count("-") >= 2 else ""

    @property
    def name(self) -> str:
        """The feature, from the file name."""
        return self.source.file.stem.split("-", 2)[-1]

    def line_of(self, text: bytes) -> int:
        """Return the header line that starts with `text`, or 1."""
        found = (n for n, line in enumerate(self.lines[: self.header_end], 1) if line.startswith(text))
        return next(found, 1)

    def trailer_line(self, key: str) -> int:
        """Return the line of a trailer, or of the first trailer if it is missing."""
        trailers = self.source.header.trailers
        if key in trailers:
            return trailers[key][0].line
        return min((t.line for found in trailers.values() for t in found), default=self.line_of(b"Subject:"))

    @property
    def paragraphs(self) -> list[str]:
        """The paragraphs of the body, without trailers."""
        header = self.source.header
        paragraphs = [p.strip("\n") for p in re.split(r"\n[ \t]*\n", header.body) if p.strip()]
        return paragraphs[:-1] if header.trailers else paragraphs


@dataclass(frozen=True)
class Omission:
    """A patch that is not applied, and why."""

    upstream: str
    patch: StackPatch
    reason: str


def parse_feature(text: str) -> tuple[str, str | None]:
    """Split FEATURE or FEATURE@UPSTREAM."""
    name, _, upstream = text.partition("@")
    return name, upstream or None


def check_name(patch: StackPatch) -> None:
    """Raise BadPatch for an invalid feature name: names go into state, command lines and messages."""
    trailers = patch.header.trailers.get("Feature", [])
    if trailers and not _NAME.fullmatch(patch.feature):
        what = f"{patch.feature!a} is not a feature name: use lower-case letters, digits and '_'"
        raise BadPatch(what, where=Where(patch.shown, trailers[0].line))


def named_patches(patches: Patches, feature: str) -> list[tuple[str, StackPatch]]:
    """Return every patch of FEATURE[@UPSTREAM]. Raises WrongUse with the nearest known name."""
    name, upstream = parse_feature(feature)
    found = [(u, p) for u, series in patches.items() for p in series if p.feature == name and upstream in (None, u)]
    if not found:
        import difflib

        known = sorted({p.feature for series in patches.values() for p in series})
        near = difflib.get_close_matches(name, known, 1)
        hint = message("known features (see `patchctl list`): {names}", names=joined(known))
        if near:
            hint = message("did you mean {name}?", name=near[0])
        raise WrongUse(message("this profile has no feature {feature}", feature=repr(feature)), hint=hint)
    return found


def leave_out(patches: Patches, without: Iterable[str], reason: str) -> list[Omission]:
    """Return omissions for the patches of these features, without duplicates."""
    named = {id(p): (u, p) for feature in without for u, p in named_patches(patches, feature)}
    return [Omission(u, p, reason) for u, p in named.values()]


def dependents(patches: Patches, omitted: Sequence[Omission]) -> list[Omission]:
    """Return the kept patches that require an omitted one, directly or indirectly."""
    gone = {(o.upstream, o.patch.feature) for o in omitted}
    out = {id(o.patch) for o in omitted}
    found: list[Omission] = []
    grew = True
    while grew:
        grew = False
        for upstream, patch in _kept(patches, out):
            missing = [r for r in _requirements(upstream, patch) if r in gone]
            if missing:
                needed = f"{missing[0][1]}@{missing[0][0]}"
                reason = message("requires {feature}, which is left out", feature=needed)
                found.append(Omission(upstream, patch, reason))
                out.add(id(patch))
                gone.add((upstream, patch.feature))
                grew = True
    return found


def check_requirements(patches: Patches, omitted: Sequence[Omission], stacks: Mapping[str, str]) -> None:
    """Raise WrongUse if a kept patch requires one left out, BadPatch if it requires one the profile lacks.

    `stacks` names the profile's stack of each upstream.
    """
    known = {(u, p.feature) for u, series in patches.items() for p in series}
    for upstream, patch in _kept(patches, {id(o.patch) for o in omitted}):
        for needed_upstream, feature in _requirements(upstream, patch):
            if (needed_upstream, feature) not in known:
                trailer = patch.header.trailers["Requires"][0]
                stack = stacks.get(needed_upstream)
                lacks = f"which this profile's {needed_upstream} {stack} does not have"
                lacks = lacks if stack else f"but this profile has no stack of {needed_upstream}"
                what = f"requires {feature}@{needed_upstream}, {lacks}"
                raise BadPatch(what, where=Where(patch.shown, trailer.line))
    left = dependents(patches, omitted)
    if left:
        needs = (message("{what} {more}", what=f"{o.patch.feature}@{o.upstream}", more=o.reason) for o in left)
        what = joined(needs, "; ")
        options = " ".join(f"--without {o.patch.feature}@{o.upstream}" for o in left)
        raise WrongUse(what, hint=message("leave out its dependents as well: {options}", options=options))


def _kept(patches: Patches, out: set[int]) -> list[tuple[str, StackPatch]]:
    return [(u, p) for u, series in patches.items() for p in series if id(p) not in out]


def _requirements(upstream: str, patch: StackPatch) -> list[tuple[str, str]]:
    return [(u or upstream, f) for f, u in patch.requires]


def with_requirements(patches: Sequence[StackPatch], wanted: StackPatch, upstream: str) -> list[StackPatch]:
    """Return a patch and everything it requires in its stack, in stack order."""
    needed, to_see = {wanted.feature}, [wanted]
    by_name = {p.feature: p for p in patches}
    while to_see:
        for feature, other in to_see.pop().requires:
            if other in (None, upstream) and feature not in needed and feature in by_name:
                needed.add(feature)
                to_see.append(by_name[feature])
    return [p for p in patches if p.feature in needed]


def check_patch(patch: Patch) -> None:
    """Raise BadPatch for the first change that leaves the tree, makes links or submodules, or runs by itself."""
    for change in patch.changes:
        where = Where(patch.name, change.line)
        for path in {change.old_path, change.new_path} - {None}:
            assert path is not None
            reason = why_refused(path) or _runs_by_itself(path)
            if reason:
                shown = ascii(path[:300].decode("utf-8", "backslashreplace"))
                raise BadPatch(f"a patch may not touch {shown}: {reason}", where=where)
        _check_modes(change, where)


def check_carried(path: str, patch: Patch, line: int) -> None:
    """Apply the same rules to the path of a carried file."""
    reason = why_refused(path.encode()) or _runs_by_itself(path.encode())
    if reason:
        raise BadPatch(f"a patch may not carry {path[:300]!a}: {reason}", where=Where(patch.name, line))


def _check_modes(change: FileChange, where: Where) -> None:
    for mode in (change.old_mode, change.new_mode):
        if mode is not None and mode not in _ALLOWED_MODES:
            raise BadPatch(f"mode {mode:06o} is refused: a stack changes regular files only", where=where)
    if change.kind == "add" and change.new_mode is None:
        raise BadPatch("a new file needs `new file mode`", where=where)


def _runs_by_itself(path: bytes) -> str | None:
    """Return why Python would run this file without an import, or instead of its source; None if it would not."""
    parts = path.decode("utf-8", "replace").casefold().split("/")
    if parts[-1].endswith(".pth") or any(part.split(".")[0] in _RUN_BY_PYTHON for part in parts):
        return "Python would run it at every start"
    if parts[-1].endswith(_COMPILED):
        return "Python would run it instead of its source"
    return None
