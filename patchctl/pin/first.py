"""Begins a distribution: its upstream, first stack, profile, and what tests and CI need. `init` fills a folder with it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from string import Template

import yaml

from patchctl.atomic import make_folder, replace_file
from patchctl.errors import LocalEdits, WrongUse
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.typeinfo import shape_of
from patchctl.manifest.types import FORMAT, Distributed, GitUrl, Name, Stack, Upstream
from patchctl.pin.generated import BaseReader
from patchctl.pin.pin import find_pin, newest, write_pin
from patchctl.source.types import SourceOptions
from patchctl.terminal.progress import Progress

_TEMPLATES = Path(__file__).with_name("templates")
# By path in the new folder.
_FILES = {
    "README.md": "README.md.in",
    "conftest.py": "conftest.py.in",
    "tests/behaviour/harness.py": "harness.py.in",
    ".github/workflows/patches.yml": "patches.yml.in",
}
UNKNOWN = "NOASSERTION"  # SPDX's word for a licence that no one has looked up
_IGNORED = "edit/\nworkspace/\n__pycache__/\n"
_ENTRIES = ("manifests", "patches", ".gitignore", *dict.fromkeys(name.partition("/")[0] for name in _FILES))
_NO_PACKAGES = {"test", "tests", "doc", "docs", "example", "examples", "benchmark", "benchmarks", "scripts", "tools"}


def check_place(root: Path, name: str, git: Sequence[str], sdist: str | None) -> None:
    """Check that a distribution can begin there. Raises WrongUse for names and addresses, LocalEdits for what is in the way."""
    if not shape_of(Name).takes_text(name) or yaml.safe_load(name) != name:
        hint = "lower-case letters, digits, '.', '_', '-'; nothing that YAML takes for a number, a truth value or null"
        raise WrongUse(f"{name!a} is no name of an upstream", hint=hint)
    for url in git:
        if not shape_of(GitUrl).takes_text(url):
            what = "--git takes an https://, ssh://, git:// or file:/// address without a password"
            hint = f"a repository of this machine alone: --mirror {name}=DIR, with the upstream's address"
            raise WrongUse(what, hint=hint)
    if sdist and not shape_of(Distributed).takes_text(sdist):
        raise WrongUse(f"{sdist!a} is no name of a project on a package index", hint="--sdist PROJECT, as pip takes it")
    if not root.parent.is_dir():
        raise WrongUse(f"there is no folder {root.parent}", hint=f"mkdir -p {shlex.quote(str(root.parent))}")
    there = [str(root / entry) for entry in _ENTRIES if (root / entry).exists()]
    if there:
        raise LocalEdits("these are there already", there, hint="take an empty folder: --dir DIR")


def declare(root: Path, name: str, upstream: Upstream) -> Distribution:
    """Write upstreams.yaml with one upstream, and read it back. Raises InvalidManifest for what no manifest takes."""
    # Every value is JSON, which is YAML too.
    facts = (f"    {key}: {json.dumps(value, ensure_ascii=False)}" for key, value in asdict(upstream).items() if value)
    text = "\n".join([f"schema: {FORMAT}", "upstreams:", f"  {name}:", *facts]) + "\n"
    _write(root / "manifests" / "upstreams.yaml", text)
    return Distribution.load(root)


def begin(
    dist: Distribution, name: str, wanted: str, options: SourceOptions, progress: Progress
) -> tuple[Stack, list[str]]:
    """Write the first stack of the upstream that is declared, its profile, and the files beside. Return the stack, and
    what a person has to do.

    Raises what `find_pin` raises.
    """
    root = dist.root
    pinned = find_pin(dist, newest(dist, name, wanted), wanted, options, progress)
    with BaseReader(pinned.bases) as source:
        said, packages = source.metadata(), dict(_packages(source, name))
    summary, license_ = str(said.get("Summary") or name), str(said.get("License-Expression") or UNKNOWN)
    declare(root, name, replace(dist.upstream(name), summary=summary, license=license_, packages=packages))
    write_pin(pinned)
    profile = (
        f"schema: {FORMAT}\nname: {name}\nsummary: {name} with our patches.\nstacks: {{{name}: {pinned.stack.name}}}\n"
    )
    _write(root / "manifests" / "profiles" / f"{name}.yaml", profile)
    folder = next(iter(packages.values()), "").rpartition("/")[0]
    for path, template in _FILES.items():
        text = Template((_TEMPLATES / template).read_text(encoding="utf-8")).substitute(name=name, folder=folder)
        _write(root / path, text)
    _write(root / ".gitignore", _IGNORED)
    notes = [
        *pinned.notes,
        "put your patchctl's address into .github/workflows/patches.yml in place of OWNER/patchctl@TAG",
    ]
    if license_ == UNKNOWN:
        notes.append("no file says its licence as an SPDX expression: write it into manifests/upstreams.yaml")
    if not packages:
        notes.append("no package was found at the tree's top or in src/: write them into manifests/upstreams.yaml")
    return pinned.stack, notes


def _write(file: Path, text: str) -> None:
    make_folder(file.parent)
    replace_file(file, text.encode())


def _packages(source: BaseReader, name: str) -> Iterator[tuple[str, str]]:
    """Yield import packages at the tree's top or in src/: the one of the upstream's name, else all but tests and the like."""
    found = {}
    for path in source.files:
        match = re.fullmatch(r"((?:src/)?([A-Za-z_]\w*))/__init__\.py", path.decode("utf-8", "replace"))
        if match and match[2] not in _NO_PACKAGES:
            found[match[2]] = match[1]
    own = name.replace("-", "_").replace(".", "_")
    yield from ({own: found[own]} if own in found else found).items()
