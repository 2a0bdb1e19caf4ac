"""What a new pin needs, read from its files without running them: `runtime:` versions, and imports that nothing provides."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from patchctl.doc import Doc
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Requirement, Upstream
from patchctl.pin.generated import BaseReader

_FILES = re.compile(
    r"requirements[^/]*\.txt|requirements/[^/]+\.txt|pyproject\.toml|setup\.py|setup\.cfg|Dockerfile[^/]*"
)
_LIMIT = r"(?:==|>=|<=|~=|!=|<|>)(?!=)\s*[^\"'#;,\s]+"
_LIMITS = rf"({_LIMIT}(?:\s*,\s*{_LIMIT})*)"
_PYTHON = re.compile(r"(?:requires-python|python_requires)\s*=\s*[\"']" + _LIMITS)
_CANN = re.compile(r"^FROM\s+\S*cann:([0-9][0-9A-Za-z.]*)", re.IGNORECASE)


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
    words = {_canonical(word) for path in build_files(source) for word in _WORD.findall(source.text(path))}
    words |= {_canonical(one.distribution) for one in dist.requirements.values() if one.distribution}
    required = (n for n in names if any(spelled.format(_canonical(n)) in words for spelled in _SPELLINGS))
    return {n for n in names if n in has} | {*required}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
