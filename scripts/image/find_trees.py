#!/usr/bin/env python3
"""find_trees.py PROFILE PYTHON [--on-this-base] [NAME=DIR ...]: which of a profile's trees a base image has.

Prints a line NAME=DIR each, as `--in-place` takes it. The interpreter that trains is asked where it imports each package from, so that
editable finders, .pth files and PYTHONPATH count as they do in a run. What lies there is then compared with the profile's pin, file by
file, as `patchctl identify` does. NAME=DIR says where a tree is, and is not asked about; NAME= leaves the base's tree alone, and one is
fetched instead. Ends with 3 where a tree is another revision than the profile's; with --on-this-base the `apply` that follows says
whether it can be patched. Runs under patchctl's own interpreter; what it found goes to stderr.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from patchctl.__main__ import compose
from patchctl.cli.app import App
from patchctl.errors import PatchctlError
from patchctl.identify.match import Identified, identify
from patchctl.manifest.distribution import Distribution
from patchctl.stack.tree_lists import known_trees
from patchctl.terminal.text import render_error
from patchctl.workspace.imports import find_imports

WRONG_USE, NOT_THE_PIN = 2, 3
_ANY_BASE = "--on-this-base"


def main(profile_name: str, python: str, *words: str) -> int:
    compose()
    dist = App(root=None, cache=None, release=os.environ.get("PATCHCTL_RELEASE") or None).distribution
    stacks = dist.profile(profile_name).stacks
    any_base = _ANY_BASE in words
    given = dict(word.partition("=")[::2] for word in words if word != _ANY_BASE)
    if unknown := sorted(given.keys() - stacks.keys()):
        say(f"{', '.join(unknown)}: the profile {profile_name} has no such tree; it has {', '.join(stacks)}")
        return WRONG_USE
    wrong = False
    for upstream, stack in stacks.items():
        folder = Path(given[upstream]) if given.get(upstream) else None
        if upstream not in given and (folder := imported(python, upstream, dist)) is not None:
            wrong = not fits(folder, upstream, stack, dist, any_base=any_base) or wrong
        if folder is not None and not wrong:
            print(f"{upstream}={folder}")
    return NOT_THE_PIN if wrong else 0


def imported(python: str, upstream: str, dist: Distribution) -> Path | None:
    """The folder of the tree, or of the packages, that the interpreter imports an upstream from; None where it has none."""
    packages = dist.upstream(upstream).packages
    for found in find_imports(python, upstream, Path("/"), dist):
        place = Path(found.place).resolve() if found.place else None
        if place is None:
            continue
        folder = place.parent if place.is_file() else place
        for inner in (packages[found.package], found.package.replace(".", "/")):
            if folder.as_posix().endswith(f"/{inner}"):
                return folder.parents[inner.count("/")]
    return None


def fits(folder: Path, upstream: str, stack: str, dist: Distribution, *, any_base: bool) -> bool:
    """Whether no file of the folder is another one than the pin's, or it may be. Files beyond it, and absent ones, are no matter here: the
    apply that follows proves each file that it changes."""
    known = [tree for tree in known_trees(dist) if tree.upstream == upstream]
    found = identify(folder, known).trees
    if any(stack in one.stacks and not one.differing and one.at == "" for one in found):
        say(f"{upstream}: {folder} of the base is the profile's {stack}, and is patched in place")
        return True
    what = f"the base imports it from {folder}, which is not the profile's {stack}: {describe(found)}"
    if any_base:
        say(f"{upstream}: {what}; it is patched in place if no patch changes what differs")
        return True
    say(
        f"{upstream}: {what}\n"
        f"  try: a base of that version; or --apply {_ANY_BASE}, which takes it if no patch changes what differs; or --in-place {upstream}= "
        "to leave it alone and install a tree of our own in its place"
    )
    return False


def describe(found: tuple[Identified, ...]) -> str:
    """What `identify` makes of a folder, in a line."""
    if not found:
        return "no revision that the distribution has a list of"
    one = found[0]
    first = f", the first is {one.differing[0].path}" if one.differing else ""
    differ = "1 file differs" if len(one.differing) == 1 else f"{len(one.differing)} files differ"
    return f"nearest to {one.tag or one.commit[:12]}, {differ}{first}"


def say(text: str) -> None:
    print(f"find_trees.py: {text}", file=sys.stderr)


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except PatchctlError as error:
        render_error(error, as_json=False, program="find_trees.py")
        sys.exit(error.code)
