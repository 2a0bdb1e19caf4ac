"""What an upstream's own files say that it runs on: a proposal for a profile's `runtime:`, read from texts, nothing of it run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from patchctl.maintain.generated import Source
from patchctl.manifest.types import Requirement

_FILES = re.compile(
    r"requirements[^/]*\.txt|requirements/[^/]+\.txt|pyproject\.toml|setup\.py|setup\.cfg|Dockerfile[^/]*"
)
_LIMIT = r"(?:==|>=|<=|~=|!=|<|>)(?!=)\s*[^\"'#;,\s]+"
_LIMITS = rf"({_LIMIT}(?:\s*,\s*{_LIMIT})*)"
_PYTHON = re.compile(r"(?:requires-python|python_requires)\s*=\s*[\"']" + _LIMITS)
_CANN = re.compile(r"^FROM\s+\S*cann:([0-9][0-9A-Za-z.]*)", re.IGNORECASE)


@dataclass(frozen=True)
class Proposal:
    """A requirement, the version or limits that a file names, and the line."""

    name: str
    value: str
    file: str
    line: int


def propose(requirements: Mapping[str, Requirement], source: Source) -> list[Proposal]:
    """Each requirement of the distribution with every value that a file of the build names, once."""
    found: list[Proposal] = []
    for path in build_files(source):
        for number, line in enumerate(source.text(path).splitlines(), 1):
            for name, needed in requirements.items():
                value = _value(name, needed, line)
                if value and (name, value) not in [(p.name, p.value) for p in found]:
                    found.append(Proposal(name, value, path.decode(), number))
    return sorted(found, key=lambda p: list(requirements).index(p.name))


def build_files(source: Source) -> list[bytes]:
    """The files of a tree that say what it needs."""
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
