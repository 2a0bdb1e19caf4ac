"""Every file of a pin, generated and checked in: what `identify` compares a folder with, where no source can be had.

    manifests/trees/<upstream>/<stack>.tsv
    # verl v0.6.0: git commit ddd86f52...            or        # vllm v0.14.1: sdist vllm 0.14.1 sha256 c7c6d0a7...
    100644<TAB>66015ad3...<TAB>.gemini/config.yaml

One line a file, sorted by the bytes of the path. Form git is preferred: it is the whole commit, where an sdist holds what its project
chose to ship, and sometimes files of submodules, which the manifest's `pin.sdist.untracked` names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from patchctl.atomic import replace_file
from patchctl.errors import BadManifest, Where
from patchctl.git.objects import GITLINK, Files, TreeEntry
from patchctl.manifest.types import Stack

if TYPE_CHECKING:
    from patchctl.source.types import Base

TREES = "manifests/trees"
_HEAD = re.compile(
    rb"# (?P<upstream>\S+) (?P<stack>\S+): "
    rb"(?:git commit (?P<commit>[0-9a-f]{40})|sdist (?P<name>\S+) (?P<version>\S+) sha256 (?P<sha256>[0-9a-f]{64}))"
)
_LINE = re.compile(rb"(?P<mode>100644|100755|120000|160000)\t(?P<id>[0-9a-f]{40})\t(?P<path>[^\0]+)")
# What form sdist writes as the message of its root commit (patchctl/source/sdist.py).
_SDIST_MESSAGE = re.compile(r"\n\n(\S+) (\S+) from its source distribution\n\nsha256: ([0-9a-f]{64})\n\Z")
_HINT = "it is generated: `patchctl lock` writes it again"


@dataclass(frozen=True)
class TreeList:
    """The files of a pin. `source` says what they were read from, as the first line has it; `form` is git or sdist."""

    upstream: str
    stack: str
    form: str
    source: str
    files: Files


def tree_list_file(root: Path, upstream: str, stack: str) -> Path:
    """Where the list of a stack's pin lies."""
    return root / TREES / upstream / f"{stack}.tsv"


def read_tree_list(root: Path, stack: Stack) -> TreeList | None:
    """The list of a stack's pin; None when there is none. Raises BadManifest for a bad one, and for another pin's."""
    file = tree_list_file(root, stack.upstream, stack.name)
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadManifest(f"the list of files cannot be read: {error.strerror}", where=Where(str(file))) from error
    found = parse_tree_list(data, str(file))
    if (found.upstream, found.stack) != (stack.upstream, stack.name) or found.source not in _sources(stack, found):
        what = f"the list is of {found.upstream} {found.stack}, {found.source}, and not of the stack's pin"
        raise BadManifest(what, where=Where(str(file), 1), hint=_HINT)
    return found


def _sources(stack: Stack, found: TreeList) -> list[str]:
    """What a list of this stack may have been read from. The sdist's name is the index's affair, not the pin's."""
    sdist = stack.pin.sdist
    known = [f"git commit {stack.pin.commit}"] if stack.pin.commit else []
    if sdist is not None and found.form == "sdist":
        known.append(f"sdist {found.source.split()[1]} {sdist.version} sha256 {sdist.sha256}")
    return known


def parse_tree_list(data: bytes, name: str) -> TreeList:
    """Read the bytes of a list; `name` is what messages call it. Raises BadManifest with the line."""
    lines = data.split(b"\n")
    head = _HEAD.fullmatch(lines[0])
    if head is None or lines.pop() != b"":
        raise BadManifest("this is no list of a pin's files", where=Where(name, 1), hint=_HINT)
    files: Files = {}
    last = b""
    for number, line in enumerate(lines[1:], 2):
        match = _LINE.fullmatch(line)
        if match is None or match["path"] <= last:
            what = "expected mode, blob id and path, with tabs between them, sorted by path"
            raise BadManifest(what, where=Where(name, number), hint=_HINT)
        last = match["path"]
        files[last] = TreeEntry(int(match["mode"], 8), match["id"].decode())
    source = lines[0].partition(b": ")[2].decode("utf-8", "replace")
    form = "git" if head["commit"] else "sdist"
    return TreeList(
        head["upstream"].decode("utf-8", "replace"), head["stack"].decode("utf-8", "replace"), form, source, files
    )


def render_tree_list(found: TreeList) -> bytes:
    """The file's bytes. Raises BadManifest for a name with a line end, which no list of lines can hold."""
    broken = next((p for p in found.files if b"\n" in p), None)
    if broken is not None:
        raise BadManifest(f"{found.upstream} has a file whose name holds a line end: {broken!a}")
    lines = [f"# {found.upstream} {found.stack}: {found.source}".encode()]
    lines += [b"%o\t%s\t%s" % (e.mode, e.id.encode(), p) for p, e in sorted(found.files.items())]
    return b"\n".join(lines) + b"\n"


def tree_list_of(stack: Stack, base: Base) -> TreeList:
    """The list of a base of the cache, every object of it verified. Raises SourceMismatch."""
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
            f"{base.commit} is no commit that patchctl made of a source distribution", where=str(base.repo)
        )
    return "sdist {} {} sha256 {}".format(*match.groups())


@dataclass(frozen=True)
class ListDifference:
    """What differs between a list and a base, and what makes them agree: a command, or lines for the stack's manifest."""

    what: str
    cure: str


def check_tree_list(root: Path, stack: Stack, base: Base) -> ListDifference | None:
    """What differs between the list that is checked in and this base; None when they agree.

    A list of form git agrees with an sdist whose files are the commit's, apart from those that the manifest calls untracked.
    """
    wanted = tree_list_of(stack, base)
    have = _listed(root, stack)
    shown = f"{TREES}/{stack.upstream}/{stack.name}.tsv"
    lock = f"`patchctl lock --upstream {stack.upstream}"
    if have is None:
        return ListDifference(f"{shown} is missing or cannot be used", f"{lock}` writes it")
    if have.form == "git" and base.form == "sdist":
        return _sdist_difference(
            stack, have, wanted, shown, f"{lock} --source git --mirror {stack.upstream}=REPOSITORY`"
        )
    other = sorted(p for p in have.files.keys() | wanted.files.keys() if have.files.get(p) != wanted.files.get(p))
    if other:
        return ListDifference(_differs(shown, wanted, other), f"{lock}` writes it")
    if have.source != wanted.source:
        return ListDifference(f"{shown} says {have.source}, and this is {wanted.source}", f"{lock}` writes it")
    return None


def _sdist_difference(stack: Stack, have: TreeList, wanted: TreeList, shown: str, relock: str) -> ListDifference | None:
    """Between the pinned commit's files and those of its sdist."""
    changed = sorted(p for p, e in wanted.files.items() if have.files.get(p, e) != e)
    if changed:
        return ListDifference(
            _differs(shown, wanted, changed), f"{relock} writes it, if the list was changed and not the pin"
        )
    assert stack.pin.sdist is not None
    manifest = f"manifests/stacks/{stack.upstream}/{stack.name}.yaml"
    untracked = sorted(wanted.files.keys() - have.files.keys())
    named = {name: [p for p in untracked if _at(p, name)] for name in stack.pin.sdist.untracked}
    unnamed = [p for p in untracked if not any(p in paths for paths in named.values())]
    if unnamed:
        submodule = next((p for p, e in have.files.items() if e.mode == GITLINK and _at(unnamed[0], p.decode())), None)
        line = f"{_text(submodule or unnamed[0])}: {'The files of a submodule.' if submodule else 'WHY'}"
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
    """Whether a path is the file, or in the folder, of that name."""
    return path == name.encode() or path.startswith(name.encode() + b"/")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")


def _differs(shown: str, wanted: TreeList, paths: list[bytes]) -> str:
    files = "1 file" if len(paths) == 1 else f"{len(paths)} files"
    return f"{shown} differs from {wanted.source} in {files}, the first is {_text(paths[0])}"


def update_tree_list(root: Path, stack: Stack, base: Base) -> ListDifference | None:
    """Write the list where `check_tree_list` finds a difference; returns that, None when nothing was written.

    Raises BadManifest instead of letting an sdist replace the list of the pinned commit, which it contradicts.
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
    """Write the list of this base, whatever is there; by rename, so that no reader sees half of it."""
    file = tree_list_file(root, stack.upstream, stack.name)
    replace_file(file, render_tree_list(tree_list_of(stack, base)))
    return file


def _listed(root: Path, stack: Stack) -> TreeList | None:
    try:
        return read_tree_list(root, stack)
    except BadManifest:
        return None  # damaged, or of another pin: it is written anew
