"""Which tree an interpreter really imports: not what is installed, nor what PYTHONPATH should do, but what it finds."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from patchctl.errors import WrongUse
from patchctl.manifest.distribution import Distribution

# Runs in the user's interpreter: finds the packages as `import` would (editable finders included) and imports none.
_PROBE = """
import importlib.util, json, sys
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
    """A top-level package: where the interpreter finds it, and whether that is the workspace's tree."""

    package: str
    place: str | None
    ours: bool
    error: str | None

    def describe(self, style: Any) -> str:
        from patchctl.report.text import visible_line

        where = visible_line(self.place) if self.place else visible_line(self.error or "not found")
        return f"{style.good('imports') if self.ours else style.bad('does not import')} {self.package}: {where}"


def find_imports(python: str, upstream: str, folder: Path, dist: Distribution) -> tuple[Import, ...]:
    """Ask `python` where it finds the packages of an upstream. Raises WrongUse when it cannot be run."""
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
    return tuple(_import(name, found[name], folder / inner) for name, inner in packages.items())


def _import(package: str, found: list[str | None], wanted: Path) -> Import:
    place, error = found
    ours = place is not None and wanted.resolve() in (Path(place).resolve(), *Path(place).resolve().parents)
    return Import(package, place, ours, error)
