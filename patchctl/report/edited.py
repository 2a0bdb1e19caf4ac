"""What `drift` found in a workspace, as text, as JSON and as findings. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from patchctl.errors import DONE, FINDINGS
from patchctl.findings.report import Finding
from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.blame.edited import EditedTree
    from patchctl.terminal.style import Style


def edited_json(trees: Sequence[EditedTree]) -> dict[str, Any]:
    """The shape patchctl.drift/1 (docs/json.md)."""
    found = any(t.files or t.problem for t in trees)
    return {"stacks": [], "trees": [asdict(t) for t in trees], "verdict": FINDINGS if found else DONE}


def edited_text(trees: Sequence[EditedTree], style: Style) -> Iterator[str]:
    """A diff of each file, each hunk with whose lines it changes."""
    for tree in trees:
        if tree.problem is not None:
            yield f"{tree.upstream}: {style.bad('cannot be looked at')}: {visible_line(tree.problem)}"
        for file in tree.files:
            path = visible_line(f"{tree.folder}/{file.path}")
            yield style(path, bold=True) + ("" if file.hunks else f"  {style.bad(file.state)}")
            for hunk in file.hunks:
                head, *lines = hunk.diff
                yield f"{visible_line(head)} {style.note(', '.join(hunk.owners))}"
                yield from (visible_line(line) for line in lines)
    changed = sum(len(t.files) for t in trees)
    yield f"{changed} of the files that were applied differ" if changed else style.good("as it was applied")


def edited_findings(trees: Sequence[EditedTree]) -> list[Finding]:
    """One for each hunk, and for each file without."""
    found = [Finding("drift-tree", t.problem, t.folder, upstream=t.upstream) for t in trees if t.problem]
    for tree in trees:
        for file in tree.files:
            path = f"{tree.folder}/{file.path}"
            for hunk in file.hunks:
                message = f"lines of {', '.join(hunk.owners)} are not as they were applied"
                found.append(Finding("drift-edited", message, path, hunk.line, upstream=tree.upstream))
            if not file.hunks:
                found.append(Finding("drift-edited", f"the file is {file.state}", path, upstream=tree.upstream))
    return found
