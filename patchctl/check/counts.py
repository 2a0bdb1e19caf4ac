"""Reads every diff a second time with unidiff, a parser that others wrote, and compares the lines that both count."""

from __future__ import annotations

from collections.abc import Iterator

from patchctl.findings.report import Finding
from patchctl.stack.patches import StackPatch


def check_counts(patch: StackPatch, upstream: str) -> Iterator[Finding]:
    """Files with hunks, in order: added and removed lines of each. Binary patches are unknown to unidiff."""
    from unidiff.errors import UnidiffParseError
    from unidiff.patch import PatchSet

    if any(c.binary is not None for c in patch.patch.changes):
        return
    ours = [
        (sum(h.marks.count(b"+") for h in c.hunks), sum(h.marks.count(b"-") for h in c.hunks))
        for c in patch.patch.changes
        if c.hunks
    ]
    first = patch.patch.changes[0].line - 1
    # One character a byte, and lines split at \n alone, as git does: U+2028 or a form feed ends no line.
    lines = [line.decode("latin-1") + "\n" for line in patch.data.removesuffix(b"\n").split(b"\n")[first:]]
    try:
        theirs = [(f.added, f.removed) for f in PatchSet(lines) if len(f)]
    except UnidiffParseError as error:
        message = f"unidiff cannot read it: {error}"
        yield Finding("unidiff-counts", message, patch.shown, first + 1, "error", upstream, patch.feature)
        return
    if theirs != ours:
        message = f"unidiff counts (added, removed) lines as {theirs}, patchctl as {ours}"
        yield Finding("unidiff-counts", message, patch.shown, first + 1, "error", upstream, patch.feature)
