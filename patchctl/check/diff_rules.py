"""Rules about the form of a diff, which make two machines write the same bytes for the same change; and a second reading of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.check.rule import Violation, patch_rule
from patchctl.findings.report import Finding
from patchctl.patch.parse import FileChange, Hunk
from patchctl.stack.patches import LintedPatch, StackPatch

CONTEXT = 3
_EXTENDED = (
    b"old mode ",
    b"new mode ",
    b"deleted file ",
    b"new file ",
    b"copy ",
    b"rename ",
    b"similarity ",
    b"index ",
)
_HUNK = re.compile(rb"@@ -\d+(,\d+)? \+\d+(,\d+)? @@")


@patch_rule(
    "full-index",
    "every `index` line has two ids of 40 digits",
    "a shorter one proves less, and depends on the repository",
)
def full_index(patch: LintedPatch) -> Iterator[Violation]:
    for change in patch.source.patch.changes:
        if change.old_id is None or change.new_id is None:
            if change.hunks or change.binary is not None:
                yield Violation(change.line, "there is no `index` line: nothing says which file the change is for")
        elif len(change.old_id) != 40 or len(change.new_id) != 40:
            at = _index_line(patch, change)
            yield Violation(at, f"the ids have {len(change.old_id)} and {len(change.new_id)} digits; 40 were expected")


def _index_line(patch: LintedPatch, change: FileChange) -> int:
    following = enumerate(patch.lines[change.line - 1 : change.line + 7], change.line)
    return next((n for n, line in following if line.startswith(b"index ")), change.line)


@patch_rule(
    "no-function-context",
    "nothing stands after the second `@@`",
    "git versions and settings write different text there",
)
def no_function_context(patch: LintedPatch) -> Iterator[Violation]:
    for _, hunk in _hunks(patch):
        if _HUNK.fullmatch(patch.lines[hunk.line - 1]) is None:
            yield Violation(hunk.line, "text stands after the second `@@`")


@patch_rule(
    "no-diffstat", "the line `---` is followed by the diff at once", "a diffstat is as wide as someone's terminal"
)
def no_diffstat(patch: LintedPatch) -> Iterator[Violation]:
    lines = patch.lines[: patch.header_end]
    end = next((n for n in range(len(lines) - 1, -1, -1) if lines[n] == b"---"), None)
    if end is None:
        yield Violation(patch.header_end, "there is no line `---` between the message and the diff")
    elif end != len(lines) - 1:
        yield Violation(end + 2, "text stands between `---` and the diff")


@patch_rule("no-signature", "the file ends with its last hunk", "`git format-patch` signs with its version")
def no_signature(patch: LintedPatch) -> Iterator[Violation]:
    lines = patch.lines
    rest = [n for n, line in enumerate(lines[:-1], 1) if line in (b"-- ", b"--") or line == b""]
    last = _last_line(patch)
    after = [n for n in rest if n > last]
    if after:
        yield Violation(after[0], "text stands after the last hunk")


def _last_line(patch: LintedPatch) -> int:
    """The last line of the last section, as far as it can be told: a binary one ends with an empty line of its own."""
    change = patch.source.patch.changes[-1]
    if change.hunks:
        hunk = change.hunks[-1]
        markers = sum(1 for line in patch.lines[hunk.line :] if line.startswith(b"\\ "))
        return hunk.line + len(hunk.marks) + markers
    if change.binary is not None:
        return len(patch.lines)
    at = change.line
    while patch.lines[at].startswith(_EXTENDED):
        at += 1
    return at


@patch_rule(
    "context-lines",
    f"a hunk has {CONTEXT} lines of context on each side, fewer at a file's ends only",
    "with less a hunk fits in wrong places, with more it touches what the change does not need",
)
def context_lines(patch: LintedPatch) -> Iterator[Violation]:
    for change, hunk in _hunks(patch):
        before, inside, after = context_runs(hunk)
        at_start = hunk.old_start <= 1 and before < CONTEXT
        at_end = hunk is change.hunks[-1] and after < CONTEXT
        if before != CONTEXT and not at_start:
            yield Violation(hunk.line, f"{before} lines of context before the change; {CONTEXT} were expected")
        if after != CONTEXT and not at_end:
            yield Violation(hunk.line, f"{after} lines of context after the change; {CONTEXT} were expected")
        if inside > 2 * CONTEXT:
            yield Violation(hunk.line, f"{inside} lines of context between two changes: git would write two hunks")


def context_runs(hunk: Hunk) -> tuple[int, int, int]:
    """How many context lines stand before the first change, at most between two, and after the last."""
    runs = [len(run) for run in re.split(rb"[-+]", hunk.marks)]
    return runs[0], max(runs[1:-1], default=0), runs[-1]


@patch_rule(
    "no-trailing-blanks", "no added line ends with a blank", "linters upstream refuse it, and editors take it away"
)
def no_trailing_blanks(patch: LintedPatch) -> Iterator[Violation]:
    for number, line in _added(patch):
        if line.rstrip(b"\r\n").endswith((b" ", b"\t")):
            yield Violation(number, "the added line ends with a blank")


@patch_rule(
    "no-carriage-return",
    "no added line ends with CR, where the file's other lines do not",
    "a tool has converted the patch",
)
def no_carriage_return(patch: LintedPatch) -> Iterator[Violation]:
    for change, hunk in _hunks(patch):
        if any(line.rstrip(b"\n").endswith(b"\r") for line in hunk.old):
            continue  # the file's own line ends
        for number, line in _added_of(hunk):
            if line.rstrip(b"\n").endswith(b"\r") and change.kind != "add":
                yield Violation(number, "the added line ends with CR")
            elif line.rstrip(b"\n").endswith(b"\r"):
                yield Violation(number, "a line of the new file ends with CR")
                break


def _hunks(patch: LintedPatch) -> Iterator[tuple[FileChange, Hunk]]:
    for change in patch.source.patch.changes:
        for hunk in change.hunks:
            yield change, hunk


def _added(patch: LintedPatch) -> Iterator[tuple[int, bytes]]:
    for _, hunk in _hunks(patch):
        yield from _added_of(hunk)


def _added_of(hunk: Hunk) -> Iterator[tuple[int, bytes]]:
    """The added lines of a hunk with their line in the patch file.

    A `\\ No newline` line shifts those after it by one: it follows a side's last line, and only the other side's comes after.
    """
    at, line = 0, hunk.line
    shifted = False
    removed = 0
    for mark in hunk.marks:
        line += 1
        if mark == ord("+"):
            if not shifted and removed == len(hunk.old) and hunk.old and not hunk.old[-1].endswith(b"\n"):
                line, shifted = line + 1, True
            yield line, hunk.new[at]
        else:
            removed += 1
        if mark != ord("-"):
            at += 1


def check_counts(patch: StackPatch, upstream: str) -> Iterator[Finding]:
    """Compare the added and removed lines of each file with unidiff's count, a parser by others. It does not know binary patches."""
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
