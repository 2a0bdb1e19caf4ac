"""What `identify` found, as text and as JSON. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.identify.match import Identification, Identified
    from patchctl.terminal.style import Style

_SHOWN = 20
_FORMS = {
    "complete": "complete",
    "package": "the packages alone, as they are installed",
    "sdist": "as in the source distribution",
    "part": "a part",
}
_PASSED_BY = "passed by (.git, __pycache__, environments, ...)"
_MODE = "its executable bit is not the pin's"


def identify_json(found: Identification) -> dict[str, Any]:
    """The shape patchctl.identify/1 (docs/json.md)."""
    return {**asdict(found), "exact": found.exact}


def identify_text(found: Identification, style: Style) -> Iterator[str]:
    """One paragraph a pin, then what else lies in the folder."""
    yield visible_line(found.folder)
    for tree in found.trees:
        yield from _tree(tree, style)
    if not found.trees:
        yield style.bad("no known pin") + ": nothing here is like a tree that this distribution knows"
        yield "    name the folder of one tree, one of its packages, or a site-packages folder"
    yield from _listed(f"{style.bad('cannot be read')}", found.unreadable)
    rest = [
        (found.others, "other file", "other files"),
        (found.build_outputs, "build output", "build outputs"),
        (found.links, "symbolic link (not followed)", "symbolic links (not followed)"),
        (found.passed_by, f"folder {_PASSED_BY}", f"folders {_PASSED_BY}"),
    ]
    words = [f"{count} {one if count == 1 else many}" for count, one, many in rest if count]
    if words:
        yield "beside that: " + ", ".join(words)


def _tree(tree: Identified, style: Style) -> Iterator[str]:
    is_part = f", below {visible_line(tree.at)}" if tree.at else ""
    head = f"{tree.upstream} {', '.join(tree.stacks)}  {tree.commit[:12]}"
    if tree.exact:
        yield f"{style.good('is')} {head}  {_FORMS[tree.form]}{is_part}"
    else:
        yield f"{style.bad('is not exactly')} {head}, the nearest pin  ({_FORMS[tree.form]}{is_part})"
    changed = tree.patched - tree.added
    patched = f", {changed} patched" if changed else ""
    patched += f"; and {tree.added} that patches add" if tree.added else ""
    yield f"    {tree.present} of {tree.listed} files are here: {tree.equal} as pinned{patched}"
    for patch in tree.patches:
        word = style.good("has") if patch.state == "wholly" else style.bad("has a part of")
        yield f"    {word} {patch.feature}  {patch.file}"
        yield from (f"        not in {visible_line(name)}" for name in patch.without[:_SHOWN])
    if not tree.lock:
        yield f"    {style.note('no lock')}: patched files cannot be told from changed ones; `patchctl lock` writes one"
    yield from _listed(style.bad("differs"), [f"{d.path}: {d.why}" for d in tree.differing])
    yield from _all_of(tree, style) if not tree.exact else _some_of(tree, style)
    yield from _listed(style.bad("extra"), [f"{name}: not the pin's, and would be imported" for name in tree.extra])
    yield from (f"    {style.bad('fits as well')}: {rival}" for rival in tree.rivals)


def _all_of(tree: Identified, style: Style) -> Iterator[str]:
    yield from _listed(style.bad("missing"), tree.missing)
    yield from _listed(style.note("mode"), [f"{name}: {_MODE}" for name in tree.modes])


def _some_of(tree: Identified, style: Style) -> Iterator[str]:
    """What an installed package normally lacks: said, and not file by file."""
    if tree.missing:
        first = visible_line(tree.missing[0])
        yield f"    {len(tree.missing)} files that are no modules are missing, the first is {first}"
    if tree.modes:
        first = visible_line(tree.modes[0])
        yield f"    {style.note('mode')} of {len(tree.modes)} files: {_MODE}; the first is {first}"


def _listed(word: str, lines: Sequence[str]) -> Iterator[str]:
    yield from (f"    {word} {visible_line(line)}" for line in lines[:_SHOWN])
    if len(lines) > _SHOWN:
        yield f"    {word} ... and {len(lines) - _SHOWN} more (--json has all)"
