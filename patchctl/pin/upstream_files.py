"""What the files of a new revision say: those that upstream's build generates, which are carried over, and what it runs on."""

from __future__ import annotations

import ast
import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

from packaging.utils import canonicalize_name

from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import GITLINK, Files
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import loads
from patchctl.manifest.types import Requirement, Stack, Upstream
from patchctl.source.archive import ArchivedFile, is_generated, read_archive
from patchctl.source.cache import read_record
from patchctl.source.config import archive_limits
from patchctl.source.types import Base
from patchctl.terminal.text import one_line, visible_line

if TYPE_CHECKING:
    from email.message import Message


_TOP_LEVEL = re.compile(r"(?m)^(?=[A-Za-z_]+:)")
# Where upstreams name the files that their build writes.
_BUILD_FILES = (b"setup.py", b"pyproject.toml", b"setup.cfg", b"MANIFEST.in", b".gitignore", b"CMakeLists.txt")
_COMMIT = re.compile(r"g([0-9a-f]{7,40})")
_FILES = re.compile(
    r"requirements[^/]*\.txt|requirements/[^/]+\.txt|pyproject\.toml|setup\.py|setup\.cfg|Dockerfile[^/]*"
)
_LIMIT = r"(?:==|>=|<=|~=|!=|<|>)(?!=)\s*[^\"'#;,\s]+"
_LIMITS = rf"({_LIMIT}(?:\s*,\s*{_LIMIT})*)"
_PYTHON = re.compile(r"(?:requires-python|python_requires)\s*=\s*[\"']" + _LIMITS)
_CANN = re.compile(r"^FROM\s+\S*cann:([0-9][0-9A-Za-z.]*)", re.IGNORECASE)


class BaseReader:
    """The bases of a pin, to be read: the tree of the first, and the archive's files if there is one."""

    def __init__(self, bases: Sequence[Base]) -> None:
        self._base = bases[0]
        self._sdist = next((b for b in bases if b.form == "sdist"), None)

    def __enter__(self) -> BaseReader:
        self._reader = ObjectReader(self._base.repo).__enter__()
        self.files: Files = self._reader.files(self._base.tree)
        self.archived = {f.path: f for f in self._archive()}
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.__exit__()

    @property
    def in_git(self) -> bool:
        """Whether `files` are all files that upstream tracks."""
        return self._base.form == "git"

    def text(self, path: bytes) -> str:
        return self._reader.read(self.files[path].id)[1].decode("utf-8", "replace")

    def written_by(self, path: bytes) -> str | None:
        """The evidence that the build writes this file: the archive has it, or a build file names it."""
        if path in self.archived:
            return "the source distribution"
        name = path.rpartition(b"/")[2].decode()
        return next((f.decode() for f in _BUILD_FILES if f in self.files and name in self.text(f)), None)

    def commit_in_archive(self) -> str | None:
        """The commit that a version file of the archive names, as setuptools-scm writes it: its first digits."""
        for path, file in self.archived.items():
            if path.endswith(b"_version.py") and (found := commit_in(file.data.decode("utf-8", "replace"))):
                return found
        return None

    def metadata(self) -> Message:
        """The archive's PKG-INFO, else what `[project]` of a pyproject.toml says of licence and summary."""
        from email import message_from_bytes

        file = self.archived.get(b"PKG-INFO")
        found = message_from_bytes(file.data if file is not None else b"")
        if file is None and b"pyproject.toml" in self.files and find_spec("tomllib"):  # of Python 3.11 and newer
            with contextlib.suppress(ValueError):
                project = import_module("tomllib").loads(self.text(b"pyproject.toml")).get("project", {})
                for key, name in (("license", "License-Expression"), ("description", "Summary")):
                    if isinstance(project.get(key), str):
                        found[name] = one_line(project[key])
        return found

    def project_in_archive(self) -> tuple[str, str] | None:
        """The project and the version that the archive's PKG-INFO names."""
        found = self.metadata()
        name, version = found.get("Name"), found.get("Version")
        return (str(name), str(version)) if name and version else None

    def _archive(self) -> Iterator[ArchivedFile]:
        record = read_record(self._sdist.repo) if self._sdist else None
        if self._sdist is not None and record is not None and record.archive is not None and record.sha256 is not None:
            yield from read_archive(self._sdist.repo.with_name(record.archive), record.sha256, archive_limits())


def carried_over(manifest: str, old: Stack, new: Stack, source: BaseReader) -> tuple[str, list[str]]:
    """The block `generated:` of the old manifest for the new stack, and what a person should look at.

    Raises WrongUse, which names every file that the new revision tracks, or that nothing in it writes.
    """
    block = next((b for b in _TOP_LEVEL.split(manifest) if b.startswith("generated:")), "")
    if not old.generated:
        return "", []
    for before, after in _replacements(old, new, source.commit_in_archive()):
        block = block.replace(before, after)
    block = block.rstrip("\n") + "\n"
    text = f"schema: 1\nupstream: {new.upstream}\nname: {new.name}\npin: {{commit: null}}\npatches: []\n{block}"
    made = loads(text.encode(), Stack, "generated:").value.generated
    wrong, notes = [], []
    for one in made:
        path = one.path.encode()
        writer = source.written_by(path)
        if path in source.files and source.in_git:
            wrong.append(f"{one.path}: upstream tracks it at {new.name}, and its build writes it no more")
        elif writer is None:
            wrong.append(f"{one.path}: nothing at {new.name} names it, neither the build nor the source distribution")
        else:
            notes.append(f"generated {one.path}: {writer} of {new.name} has it{'' if writer[0] == 't' else ' written'}")
            notes += _differences(one.path, one.content, source.archived.get(path))
    if wrong:
        hint = f"see what the build of {new.name} writes instead, and write its manifest by hand: docs/rebase.md"
        raise WrongUse(
            "generated files of the old stack are not those of the new revision\n  " + "\n  ".join(wrong), hint=hint
        )
    return block, notes


def untracked_files(stack: Stack, source: BaseReader) -> list[str]:
    """Files of the archive that upstream does not track and `generated:` does not name: the build wrote them, the package may need
    them. Files of a submodule get one line together."""
    if not source.in_git:
        return []
    declared = {g.path.encode() for g in stack.generated}
    unknown = [f.path for f in source.archived.values() if f.path not in source.files and not is_generated(f, declared)]
    notes = []
    for submodule in sorted(path for path, entry in source.files.items() if entry.mode == GITLINK):
        inside = [path for path in unknown if path.startswith(submodule + b"/")]
        unknown = [path for path in unknown if path not in inside]
        if inside:
            files = "a file" if len(inside) == 1 else f"{len(inside)} files"
            notes.append(f"the source distribution has {files} of the submodule {_shown(submodule)}")
    return notes + [
        f"the source distribution has {_shown(path)}, which upstream does not track: does the package need it?"
        for path in sorted(unknown)
    ]


def _shown(path: bytes) -> str:
    return visible_line(path.decode("utf-8", "backslashreplace"))


def _replacements(old: Stack, new: Stack, archived: str | None) -> Iterator[tuple[str, str]]:
    """(old, new) texts of a version file: the version, its tuple, the abbreviated commit. For a pin without a commit the one that its
    files name: of the new pin `archived`, the archive's."""
    versions = [s.pin.sdist.version if s.pin.sdist else _version_in(s.pin.tag or s.name) for s in (old, new)]
    if all(versions):
        before, after = versions
        yield f"'{before}'", f"'{after}'"
        yield f'"{before}"', f'"{after}"'
        yield repr(_as_tuple(before)), repr(_as_tuple(after))
    was = old.pin.commit or next(filter(None, (commit_in(g.content) for g in old.generated)), None)
    now = new.pin.commit or archived
    if was and now:
        for length in (40, *range(12, 6, -1)):
            yield f"g{was[:length]}", f"g{now[:length]}"


def _version_in(name: str) -> str:
    found = re.search(r"\d.*", name)
    return found[0] if found else ""


def _as_tuple(version: str) -> tuple[int | str, ...]:
    """As setuptools-scm writes __version_tuple__: the numbers, then the rest."""
    from packaging.version import InvalidVersion, Version

    try:
        parsed = Version(version)
    except InvalidVersion:
        return (version,)
    pre = ["".join(map(str, parsed.pre))] if parsed.pre else []
    post = [f"post{parsed.post}"] if parsed.post is not None else []
    return (*parsed.release, *pre, *post)


def commit_in(text: str) -> str | None:
    """The first digits of the commit that a version file names, as setuptools-scm writes it."""
    told = _assigned(text).get("__commit_id__")
    found = _COMMIT.fullmatch(told) if isinstance(told, str) else None
    return found[1] if found else None


def _differences(path: str, content: str, archived: ArchivedFile | None) -> Iterator[str]:
    """Names to which both files assign, with another value in upstream's."""
    if archived is None:
        return
    theirs, ours = _assigned(archived.data.decode("utf-8", "replace")), _assigned(content)
    for name in sorted(ours.keys() & theirs.keys()):
        if theirs[name] != ours[name] and name != "__all__":
            yield f"generated {path}: {name} is {ours[name]!r}, and {theirs[name]!r} in the source distribution"


def _assigned(text: str) -> dict[str, object]:
    """The literals that a module assigns to names."""
    found: dict[str, object] = {}
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return {}
    for node in body:
        if isinstance(node, ast.Assign):
            try:
                value = ast.literal_eval(node.value)
            except ValueError:
                continue
            found.update({t.id: value for t in node.targets if isinstance(t, ast.Name)})
    return found


@dataclass(frozen=True)
class Proposal:
    """A requirement version found in one of upstream's files."""

    name: Annotated[str, Doc("requirement name in upstreams.yaml")]
    value: Annotated[str, Doc("version or limits")]
    file: Annotated[str, Doc("upstream file that states it")]
    line: Annotated[int, Doc("line number in that file, from 1")]


def propose(requirements: Mapping[str, Requirement], source: BaseReader) -> list[Proposal]:
    """Return each requirement of the distribution with every distinct value in a build file."""
    found: list[Proposal] = []
    for path in build_files(source):
        for number, line in enumerate(source.text(path).splitlines(), 1):
            for name, needed in requirements.items():
                value = _value(name, needed, line)
                if value and (name, value) not in [(p.name, p.value) for p in found]:
                    found.append(Proposal(name, value, path.decode(), number))
    return sorted(found, key=lambda p: list(requirements).index(p.name))


def build_files(source: BaseReader) -> list[bytes]:
    """Return the files of a tree that declare requirements."""
    return sorted(p for p in source.files if _FILES.fullmatch(p.decode("utf-8", "replace")))


def _value(name: str, needed: Requirement, line: str) -> str | None:
    if name == "python":
        match = _PYTHON.search(line)
    elif name == "cann":
        match = _CANN.search(line)
    elif needed.distribution is not None:
        spelled = re.escape(needed.distribution).replace(r"\-", "[-_]")
        match = re.match(rf"\s*[\"']?{spelled}\s*(?:\[[^\]]*\])?\s*{_LIMITS}", line, re.IGNORECASE)
    else:
        return None
    return re.sub(r"\s+", "", match[1]) if match else None


_IMPORT = re.compile(r"(?m)^(?:import|from)[ \t]+([A-Za-z_]\w*)")
_WORD = re.compile(r"[A-Za-z0-9][\w.-]*")
# The name of a module's package on the index.
_SPELLINGS = ("{0}", "py{0}", "python-{0}", "{0}-python")


def new_imports(dist: Distribution, upstream: Upstream, old: BaseReader, new: BaseReader) -> list[str]:
    """Return a line for each module that the package imports at top level in `new` but not in `old`, and that nothing provides.

    Imports in a `try` are ignored: the package works without them.
    """
    fresh: dict[str, str] = {}
    for path in _package(upstream, new):
        if path in old.files and old.files[path].id == new.files[path].id:
            continue
        text = new.text(path)
        for name in _IMPORT.findall(text):
            if name not in fresh and (line := _line_of(text, name)) is not None:
                fresh[name] = f"{path.decode('utf-8', 'replace')}:{line}"
    left = fresh.keys() - _provided(dist, new, fresh)
    if left:
        left -= {name for path in _package(upstream, old) for name in _IMPORT.findall(old.text(path))}
    return [
        f"{name} is imported at {fresh[name]}, and was not before: neither the tree nor its requirements name it"
        for name in sorted(left)
    ]


def _package(upstream: Upstream, source: BaseReader) -> Iterator[bytes]:
    """Yield the Python files that are installed."""
    tops = tuple(f"{folder}/".encode() for folder in upstream.packages.values())
    return (path for path in sorted(source.files) if path.endswith(b".py") and path.startswith(tops))


def _line_of(text: str, name: str) -> int | None:
    """Return the line of the module's import statement; None if the text has none or cannot be parsed."""
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    for node in body:
        if isinstance(node, ast.Import) and any(a.name.partition(".")[0] == name for a in node.names):
            return node.lineno
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").partition(".")[0] == name:
            return node.lineno
    return None


def _provided(dist: Distribution, source: BaseReader, names: Iterable[str]) -> set[str]:
    """Return the names provided by Python, the tree, another upstream or a requirement of the tree."""
    has = {path.partition(b"/")[0].removesuffix(b".py").decode("utf-8", "replace") for path in source.files}
    has |= {package.partition(".")[0] for one in dist.upstreams.values() for package in one.packages} | {
        *sys.stdlib_module_names
    }
    words = {canonicalize_name(word) for path in build_files(source) for word in _WORD.findall(source.text(path))}
    words |= {canonicalize_name(one.distribution) for one in dist.requirements.values() if one.distribution}
    required = (n for n in names if any(spelled.format(canonicalize_name(n)) in words for spelled in _SPELLINGS))
    return {n for n in names if n in has} | {*required}
