"""Which tree an interpreter really imports: not what is installed, nor what PYTHONPATH should do, but what it finds.

A package that was copied out of the tree is told by its files, each by its blob id, and never by a version.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchctl.errors import WrongUse
from patchctl.git.objects import GITLINK, SYMLINK, Files
from patchctl.manifest.distribution import Distribution
from patchctl.workspace.files import TreeFiles

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


@dataclass(frozen=True)
class Import:
    """A package: where the interpreter finds it, and whether that is the workspace's tree or an exact copy of it there."""

    package: str
    place: str | None
    ours: bool
    error: str | None

    def describe(self, style: Any) -> str:
        from patchctl.report.text import visible_line

        where = visible_line(self.place or self.error or "not found")
        if self.place and self.error:
            where += f" ({visible_line(self.error)})"
        return f"{style.good('imports') if self.ours else style.bad('does not import')} {self.package}: {where}"


def find_imports(
    python: str, upstream: str, folder: Path, dist: Distribution, tip: Callable[[], Files] | None = None
) -> tuple[Import, ...]:
    """Ask `python` where it finds the packages of an upstream, whose tree is in `folder`. `tip` gives the tree's files:
    with it, an exact copy of a package elsewhere counts as the tree's. Raises WrongUse when it cannot be run.
    """
    packages = dist.upstream(upstream).packages
    if not packages:
        return ()
    try:
        done = subprocess.run(
            [python, "-c", _PROBE, *packages],
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=True,
        )
        found = json.loads(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise WrongUse(
            f"--python {python} cannot be asked: {error}", hint="name an interpreter, for example /usr/bin/python3"
        ) from error
    return tuple(_import(name, found[name], folder, inner, tip) for name, inner in packages.items())


def _import(package: str, found: list[str | None], folder: Path, inner: str, tip: Callable[[], Files] | None) -> Import:
    place, error = found
    if place is None:
        return Import(package, None, False, error)
    resolved = Path(place).resolve()
    if (folder / inner).resolve() in (resolved, *resolved.parents):
        return Import(package, place, True, None)
    if tip is None:
        return Import(package, place, False, None)
    difference = _difference(resolved.parent if resolved.is_file() else resolved, tip(), inner)
    return Import(package, place, difference is None, difference)


def _difference(folder: Path, files: Files, inner: str) -> str | None:
    """How the package in `folder` differs from the one in `files`; None for an exact copy. Files beyond are no matter:
    byte code, and what a build made.
    """
    prefix = inner.encode() + b"/"
    links = (GITLINK, SYMLINK)
    wanted = {p.removeprefix(prefix): e for p, e in files.items() if p.startswith(prefix)}
    wanted = {p: e for p, e in wanted.items() if e.mode not in links}
    on_disk = TreeFiles(folder)
    present = {p: on_disk.entry(p) for p in wanted}
    other = sorted(p for p, e in wanted.items() if (have := present[p]) is None or have.id != e.id)
    if not other:
        return None
    first = other[0].decode("utf-8", "backslashreplace")
    return f"another one: {len(other)} of {len(wanted)} files differ, the first is {first}"
