"""Determines which tree an interpreter really imports, whatever is installed or on PYTHONPATH.

A package copied out of the tree is recognised by the blob ids of its files, never by a version.

Byte code counts as well. Python runs it instead of a source whose time and size match its header, or unconditionally if
the header says so (PEP 552). To check it, the source is compiled again in a separate process: reading byte code of
unknown origin may crash the interpreter.
"""

from __future__ import annotations

import importlib.util
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from patchctl.doc import Doc
from patchctl.errors import WrongUse
from patchctl.git.objects import GITLINK, SYMLINK, Files
from patchctl.language import message, translated
from patchctl.manifest.distribution import Distribution
from patchctl.python_probe import PythonProbeFailed, ask_python
from patchctl.stack.tree_lists import show
from patchctl.workspace.tree_files import TreeFiles

# Runs in the user's interpreter: finds the packages as `import` would (editable finders included) and imports none.
_PROBE = """
import importlib.util, json, sys
if not sys.path[0]:
    del sys.path[0]  # the current folder, which -c puts first and a program of the user's does not
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except Exception as error:
        found[name] = [None, f"{type(error).__name__}: {error}"]
        continue
    places = list(spec.submodule_search_locations or []) if spec else []
    found[name] = [spec.origin if spec and spec.origin else (places[0] if places else None), None]
print(json.dumps(found))
"""
_TIMEOUT_SECONDS = 60
# The suffix of an extension module: .so, .abi3.so, .cpython-311-aarch64-linux-gnu.so, ...
_EXTENSION = re.compile(rb"(\..+)?\.(so|pyd)")


@dataclass(frozen=True)
class Import:
    """A package: where the interpreter finds it, and whether that is the workspace's tree or an exact copy of its package."""

    package: Annotated[str, Doc("import package of the upstream")]
    place: Annotated[str | None, Doc("location that this Python resolves; null if not found")]
    ours: Annotated[bool, Doc("true if that is this tree or an exact copy of its package")]
    error: Annotated[str | None, Doc("why the location cannot be determined, or how the package differs")]

    def describe(self, style: Any) -> str:
        from patchctl.terminal.text import visible_line

        where = self.place or self.error or message("not found")
        if self.place and self.error:
            where = message("{what} ({why})", what=where, why=self.error)
        does = style.good(translated(message("imports")))
        does = does if self.ours else style.bad(translated(message("does not import")))
        return f"{does} {visible_line(translated(message('{what}: {more}', what=self.package, more=where)))}"


def find_imports(
    python: str, upstream: str, folder: Path, dist: Distribution, tip: Callable[[], Files] | None = None
) -> tuple[Import, ...]:
    """Ask `python` where it finds the packages of an upstream, whose tree is in `folder`.

    `tip` gives the tree's files: with it, an exact copy of a package elsewhere counts as the tree's. Raises WrongUse if
    `python` cannot be run.
    """
    packages = dist.upstream(upstream).packages
    if not packages:
        return ()
    try:
        found = ask_python(python, _PROBE, *packages, seconds=_TIMEOUT_SECONDS, cwd=None)
    except PythonProbeFailed as error:
        what = message("{path} cannot be asked: {problem}", path=python, problem=error.what)
        raise WrongUse(what, hint=message("name an interpreter, for example /usr/bin/python3")) from error
    return tuple(_import(name, found[name], folder, inner, tip) for name, inner in packages.items())


def _import(package: str, found: list[str | None], folder: Path, inner: str, tip: Callable[[], Files] | None) -> Import:
    place, error = found
    if place is None:
        return Import(package, None, False, error)
    resolved = Path(place).resolve()
    ours = (folder / inner).resolve() in (resolved, *resolved.parents)
    if tip is None:
        return Import(package, place, ours, None)
    if ours:
        hidden = next(shadows(folder / inner, _below(tip(), inner)), None)
        return Import(package, place, hidden is None, hidden and _instead(*hidden))
    difference = _difference(resolved.parent if resolved.is_file() else resolved, tip(), inner)
    return Import(package, place, difference is None, difference)


def shadows(folder: Path, files: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """What `import` finds in `folder` before one of these modules or namespace packages, and is none of `files`: (its path,
    the module's). A package and an extension come before a module of their name, byte code where its source is not
    there, and each of them and a module before a folder without `__init__` (importlib's FileFinder).
    """
    files = set(files)
    for above, name, stems, namespaces in _beside_modules(folder, files):
        stem, _, rest = name.partition(b".")
        if stem in stems:
            module = above + stem + b".py"
            found = rest == b"pyc" and not os.path.lexists(os.path.join(os.fsencode(folder), module))
        elif stem in namespaces:
            module = above + stem + b"/"
            found = rest in (b"py", b"pyc")
        else:
            continue
        path = above + name
        found = found or bool(rest and _EXTENSION.fullmatch(b"." + rest))
        paths = [path] if found else [] if rest else _package(os.fsencode(folder), path)
        if paths and stem not in stems and not _any_there(folder, module, files):
            continue  # nothing to hide: a wheel has no such folder (`examples/`), and another package has
        yield from ((one, module) for one in paths if one not in files)


def _any_there(folder: Path, above: bytes, files: Iterable[bytes]) -> bool:
    return any(os.path.lexists(os.path.join(os.fsencode(folder), path)) for path in files if path.startswith(above))


def additions(folder: Path, files: Iterable[bytes]) -> Iterator[bytes]:
    """Yield extra modules and packages that Python finds in `folder`, at its top or in a package of these files.

    Excludes extensions, which builds put there, and folders that are not packages: build folders, outputs of a run.
    """
    files = set(files)
    packages = {path.rpartition(b"/")[0] for path in files if path.endswith(b".py")}
    for above, name, stems, namespaces in _beside_modules(folder, files):
        stem, _, rest = name.partition(b".")
        path = above + name
        if (
            stem in stems
            or stem in namespaces
            or (above and stem == b"__init__")  # `shadows` yields what hides one
            or path in packages
            or name == b"__pycache__"
            or not stem.decode("utf-8", "replace").isidentifier()
        ):
            continue
        found = [path] if rest in (b"py", b"pyc") else [] if rest else _package(os.fsencode(folder), path)
        yield from (one for one in found if one not in files)


def modules_by_folder(files: Iterable[bytes]) -> dict[bytes, set[bytes]]:
    """Return the names of the modules in each folder; folder names end with a slash."""
    modules: dict[bytes, set[bytes]] = {}
    for path in files:
        if path.endswith(b".py"):
            above, slash, name = path.rpartition(b"/")
            modules.setdefault(above + slash, set()).add(name.removesuffix(b".py"))
    return modules


def _beside_modules(folder: Path, files: Iterable[bytes]) -> Iterator[tuple[bytes, bytes, set[bytes], set[bytes]]]:
    """Yield each name in the top folder and in every folder that has modules at any depth: the folder with its slash, the
    name, the folder's modules, and its namespace packages, folders with modules and without `__init__`.
    """
    modules = modules_by_folder(files)
    namespaces: dict[bytes, set[bytes]] = {b"": set()}
    for inner in modules:
        while inner:
            above, slash, name = inner[:-1].rpartition(b"/")
            beside = namespaces.setdefault(above + slash, set())
            if b"__init__" not in modules.get(inner, ()):
                beside.add(name)
            namespaces.setdefault(inner, set())
            inner = above + slash
    for above in sorted(namespaces):
        for name in _names(os.path.join(os.fsencode(folder), above)):
            yield above, name, modules.get(above, set()), namespaces[above]


def _package(folder: bytes, path: bytes) -> list[bytes]:
    """Return the files that make a folder a package; of a link that leads nowhere here, the link."""
    if _leads_nowhere(os.path.join(folder, path)):
        return [path]
    inside = (name for name in _names(os.path.join(folder, path)) if name.startswith(b"__init__."))
    made = (n for n in inside if n[8:] in (b".py", b".pyc") or _EXTENSION.fullmatch(n[8:]))
    return [path + b"/" + name for name in made]


def _leads_nowhere(path: bytes) -> bool:
    """Whether it is a link to what is not here. Where Python runs it may be there: an image is unpacked in part, a folder is mounted later."""
    return os.path.islink(path) and not os.path.exists(path)


def _names(folder: bytes) -> list[bytes]:
    """Return the names in a folder; empty if there is none, or if it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _instead(path: bytes, module: bytes) -> str:
    return message("{path} is imported in place of {module}", path=show(path), module=show(module))


def _below(files: Files, inner: str) -> Files:
    """Return the files of a package, by path in it."""
    prefix = inner.encode() + b"/"
    return {p.removeprefix(prefix): e for p, e in files.items() if p.startswith(prefix)}


def _difference(folder: Path, files: Files, inner: str) -> str | None:
    """Return how the package in `folder` differs from the one in `files`; None for an exact copy.

    Additional files do not count (byte code, build outputs) unless they would be imported instead of one.
    """
    package, links = _below(files, inner), (GITLINK, SYMLINK)
    wanted = {p: e for p, e in package.items() if e.mode not in links}
    on_disk = TreeFiles(folder)
    present = {p: on_disk.entry(p) for p in wanted}
    other = sorted(p for p, e in wanted.items() if (have := present[p]) is None or have.id != e.id)
    if other:
        return message(
            "another one: {count} of {files} files differ, the first is {first}",
            count=len(other),
            files=len(wanted),
            first=show(other[0]),
        )
    hidden = next(shadows(folder, package), None)
    return hidden and _instead(*hidden)


_NAME = re.compile(rb"([^.]+)\.([a-z]+-?\d+)(?:\.opt-([0-9]+))?\.pyc")
_OURS = (sys.implementation.cache_tag or "").encode()
_HASHED, _COMPARED = 1, 2
# Reads lines `LEVEL BYTECODE SOURCE` (paths in hexadecimal) and answers 1 if byte code and source agree.
_COMPARE = """
import marshal, sys
for line in sys.stdin:
    level, code, source = line.split()
    same = False
    try:
        with open(bytes.fromhex(code), "rb") as file:
            have = marshal.loads(file.read()[16:])
        with open(bytes.fromhex(source), "rb") as file:
            wanted = compile(file.read(), have.co_filename, "exec", dont_inherit=True, optimize=int(level))
        same = have == wanted
    except Exception:
        pass
    print(int(same), flush=True)
"""


def forged(folder: Path, files: Iterable[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return byte code that Python would run in place of these modules: first what differs from their compilation, is a link
    that leads nowhere here or something that is waited for, then what another Python made, which this one cannot check.
    """
    root = os.fsencode(folder)
    unseen: list[bytes] = []
    mine: list[tuple[bytes, int, bytes]] = []
    others: list[bytes] = []
    for above, stems in sorted(modules_by_folder(files).items()):
        kept = above + b"__pycache__"
        if _leads_nowhere(os.path.join(root, kept)):
            unseen.append(kept)
        for name in _names(os.path.join(root, kept)):
            match = _NAME.fullmatch(name)
            if not match or match[1] not in stems:
                continue
            path, module = kept + b"/" + name, above + match[1] + b".py"
            if not _believed(os.path.join(root, path), os.path.join(root, module), match[2]):
                full = os.path.join(root, path)
                waits = os.path.exists(full) and not os.path.isfile(full) and not os.path.isdir(full)  # a FIFO
                unseen += [path] if waits or _leads_nowhere(full) else []
            elif match[2] == _OURS:
                mine.append((path, min(int(match[3] or 0), 2), module))
            else:
                others.append(path)
    for form in ((), ("-X", "no_debug_ranges")):  # PYTHONNODEBUGRANGES: the same code without columns
        lines = [f"{level} {_hex(folder, path)} {_hex(folder, module)}\n" for path, level, module in mine]
        mine = [one for one, same in zip(mine, _same(lines, form), strict=True) if not same]
    return unseen + [path for path, _, _ in mine], others


def _same(lines: list[str], form: Sequence[str]) -> Iterator[bool]:
    while lines:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-W", "ignore", *form, "-c", _COMPARE],
            input="".join(lines),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            check=False,
        )
        answers = [answer == "1" for answer in done.stdout.split()]
        if len(answers) < len(lines):  # the interpreter crashed at the next one
            answers.append(False)
        yield from answers
        lines = lines[len(answers) :]


def _believed(file: bytes, module: bytes, tag: bytes) -> bool:
    if not (os.path.isfile(file) and os.path.isfile(module)):
        return False
    try:
        with open(file, "rb") as source:
            head = source.read(16)
        status = os.stat(module)
        if len(head) < 16 or (tag == _OURS and head[:4] != importlib.util.MAGIC_NUMBER):
            return False
        flags = int.from_bytes(head[4:8], "little")
        if flags & _HASHED:
            if not flags & _COMPARED:
                return True
            with open(module, "rb") as source:
                return head[8:16] == importlib.util.source_hash(source.read())
        return head[8:16] == struct.pack("<II", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)
    except OSError:
        return False


def _hex(folder: Path, path: bytes) -> str:
    return (os.fsencode(folder) + b"/" + path).hex()
