"""Whether what `Switch:` declares occurs in the code that the patch writes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.catalog.linted import LintedPatch
from patchctl.check.python_code import Changed
from patchctl.findings.report import Finding
from patchctl.stack.patches import StackPatch


def switch_name(switch: str | None) -> str | None:
    """The variable, the option, or the last part of the key; None for `none` and for what cannot be read."""
    kind, _, rest = (switch or "").partition(" ")
    name = rest.partition("=")[0].strip()
    if kind == "env":
        return name or None
    if kind == "config":
        return name.rpartition(".")[2].lstrip("+") or None
    if kind == "option":
        return name.lstrip("-") or None
    return None


def check_switch(patch: StackPatch, upstream: str, changed: Changed | None) -> Iterator[Finding]:
    """Looks in the lines that the patch adds, in carried files, and with `changed` in the whole files after it.

    Without a source a switch that the patch only uses is not found here; that is a note.
    """
    name = switch_name(patch.header.trailer("Switch"))
    if name is None:
        return
    pattern = re.compile(rb"(?<![A-Za-z0-9_])" + re.escape(name.encode()) + rb"(?![A-Za-z0-9_])")
    if any(pattern.search(text) for text in _written(patch)):
        return
    line = LintedPatch(patch).trailer_line("Switch")
    if changed is None:
        message = f"{name} is in no line that the patch adds, and the whole files could not be had"
        yield Finding("switch-in-code", message, patch.shown, line, "note", upstream, patch.feature)
    elif not any(pattern.search(after) for _, after in changed.files.values()):
        message = f"{name} is in no file that the patch writes"
        yield Finding("switch-in-code", message, patch.shown, line, "error", upstream, patch.feature)


def _written(patch: StackPatch) -> Iterator[bytes]:
    for change in patch.patch.changes:
        for hunk in change.hunks:
            at = 0
            for mark in hunk.marks:
                if mark == ord("+"):
                    yield hunk.new[at]
                if mark != ord("-"):
                    at += 1
    yield from patch.carried.values()
