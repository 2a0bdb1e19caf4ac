"""Rules about one patch file: what a rule is, and those of its diff and of its header."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from patchctl.findings import Finding
from patchctl.git.objects import COMMITTER
from patchctl.manifest.diagnostics import did_you_mean
from patchctl.manifest.series import TO_FILL_IN
from patchctl.patch.parse import FileChange, Hunk
from patchctl.stack.patches import LintedPatch, StackPatch

Scope = Literal["patch", "distribution", "source", "workspace"]
CONTEXT = 3
_EXTENDED = re.compile(rb"(old mode|new mode|deleted file|new file|copy|rename|similarity|index) ")
_HUNK = re.compile(rb"@@ -\d+(,\d+)? \+\d+(,\d+)? @@")
SUBJECT_LENGTH = 72
BODY_WIDTH = 120
REQUIRED = ("Feature", "Switch", "Upstream-Status", "Drop-When")
_LISTS = ("Requires", "Carries", "Fixes", "Link", "Signed-off-by", "Co-authored-by", "Reviewed-by", "Tested-by")
KNOWN = (*REQUIRED, *_LISTS, "Imported")
_SUBJECT = re.compile(r"[A-Za-z0-9_.,/{}*@-]+(?: [A-Za-z0-9_.,/{}*@-]+){0,2}: (?P<verb>[A-Za-z][A-Za-z'-]*)\b.*")
_SWITCH = re.compile(
    r"none|env [A-Z][A-Z0-9_]*=\S+|config [+A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*=\S.*|option --[a-z][\w-]*(=\S+)?"
)
SWITCH_FORMS = "none, env NAME=VALUE, config dotted.key=VALUE or option --NAME[=VALUE]"
_STATUS = re.compile(r"Pending|(Submitted|Backport) https://\S+( \(.+\))?|Inappropriate \S.*")
_FEATURE = re.compile(r"[a-z0-9][a-z0-9_]*")
_REQUIREMENT = re.compile(r"[a-z0-9][a-z0-9_]*(@[a-z0-9][a-z0-9._-]*)?")
# Verbs that end like a past tense, a gerund or a third person and are none.
_IMPERATIVES = {
    "alias", "bias", "bring", "embed", "exceed", "feed", "need", "ping", "proceed", "ring", "seed", "shed", "speed", "string",
}  # fmt: skip


@dataclass(frozen=True)
class LintRule:
    """`holds` is what must be so, `why` what goes wrong otherwise."""

    id: str
    scope: Scope
    holds: str
    why: str


@dataclass(frozen=True)
class Violation:
    """One place of a patch file where a rule does not hold. `line` counts from 1."""

    line: int
    message: str


PatchCheck = Callable[[LintedPatch], Iterator[Violation]]
PATCH_CHECKS: dict[str, PatchCheck] = {}
PATCH_RULES: dict[str, LintRule] = {}


def patch_rule(name: str, holds: str, why: str) -> Callable[[PatchCheck], PatchCheck]:
    """Makes a function the check of a rule about one patch file."""

    def register(check: PatchCheck) -> PatchCheck:
        PATCH_CHECKS[name] = check
        PATCH_RULES[name] = LintRule(name, "patch", holds, why)
        return check

    return register


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
            following = enumerate(patch.lines[change.line - 1 : change.line + 7], change.line)
            at = next((n for n, line in following if line.startswith(b"index ")), change.line)
            yield Violation(at, f"the ids have {len(change.old_id)} and {len(change.new_id)} digits; 40 were expected")


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
    last = _last_line(patch)
    for number, line in enumerate(patch.lines[last:-1], last + 1):
        if line in (b"-- ", b"--", b""):
            yield Violation(number, "text stands after the last hunk")
            return


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
    while _EXTENDED.match(patch.lines[at]):
        at += 1
    return at


@patch_rule(
    "context-lines",
    f"a hunk has {CONTEXT} lines of context on each side, fewer at a file's ends only",
    "with less a hunk fits in wrong places, with more it touches what the change does not need",
)
def context_lines(patch: LintedPatch) -> Iterator[Violation]:
    for change, hunk in _hunks(patch):
        runs = [len(run) for run in re.split(rb"[-+]", hunk.marks)]
        before, inside, after = runs[0], max(runs[1:-1], default=0), runs[-1]
        at_start = hunk.old_start <= 1 and before < CONTEXT
        at_end = hunk is change.hunks[-1] and after < CONTEXT
        if before != CONTEXT and not at_start:
            yield Violation(hunk.line, f"{before} lines of context before the change; {CONTEXT} were expected")
        if after != CONTEXT and not at_end:
            yield Violation(hunk.line, f"{after} lines of context after the change; {CONTEXT} were expected")
        if inside > 2 * CONTEXT:
            yield Violation(hunk.line, f"{inside} lines of context between two changes: git would write two hunks")


@patch_rule(
    "no-trailing-blanks", "no added line ends with a blank", "linters upstream refuse it, and editors take it away"
)
def no_trailing_blanks(patch: LintedPatch) -> Iterator[Violation]:
    for _, hunk in _hunks(patch):
        for number, line in added_lines(hunk):
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
        for number, line in added_lines(hunk):
            if line.rstrip(b"\n").endswith(b"\r") and change.kind != "add":
                yield Violation(number, "the added line ends with CR")
            elif line.rstrip(b"\n").endswith(b"\r"):
                yield Violation(number, "a line of the new file ends with CR")
                break


def _hunks(patch: LintedPatch) -> Iterator[tuple[FileChange, Hunk]]:
    for change in patch.source.patch.changes:
        for hunk in change.hunks:
            yield change, hunk


def added_lines(hunk: Hunk) -> Iterator[tuple[int, bytes]]:
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
    ours = [c.counts for c in patch.patch.changes if c.hunks]
    first = patch.patch.changes[0].line - 1
    # One character a byte, and lines split at \n alone, as git does: U+2028 or a form feed ends no line.
    lines = [line.decode("latin-1") + "\n" for line in patch.data.removesuffix(b"\n").split(b"\n")[first:]]
    try:
        theirs = [(f.added, f.removed) for f in PatchSet(lines) if len(f)]
        if theirs == ours:
            return
        message = f"unidiff counts (added, removed) lines as {theirs}, patchctl as {ours}"
    except UnidiffParseError as error:
        message = f"unidiff cannot read it: {error}"
    yield Finding("unidiff-counts", message, patch.shown, first + 1, "error", upstream, patch.feature)


@patch_rule(
    "name-kind",
    "the file's name says bugfix exactly when `Switch:` is none",
    "a reader of the list must see what is always on",
)
def name_kind(patch: LintedPatch) -> Iterator[Violation]:
    switch = patch.source.header.trailer("Switch")
    if switch is not None and (switch == "none") != (patch.kind == "bugfix"):
        what = "a fix has `Switch: none`" if patch.kind == "bugfix" else "a feature has a switch that turns it on"
        yield Violation(
            patch.trailer_line("Switch"), f"the file's name says {patch.kind}, and `Switch:` is {switch}: {what}"
        )


@patch_rule("name-feature", "the file's name ends with the feature's name", "people look for the file by the feature")
def name_feature(patch: LintedPatch) -> Iterator[Violation]:
    feature = patch.source.header.trailer("Feature")
    if feature is not None and feature != patch.name:
        yield Violation(patch.trailer_line("Feature"), f"the file's name says {patch.name}, `Feature:` says {feature}")


@patch_rule(
    "author",
    f"the author is the distribution's, {COMMITTER[0]} <{COMMITTER[1]}>, unless `Imported:` says from which mail"
    " the patch came",
    "a person who happened to commit would be published, and who answers for the patch would be unclear",
)
def author(patch: LintedPatch) -> Iterator[Violation]:
    header = patch.source.header
    if "Imported" not in header.trailers and (header.name, header.email) != COMMITTER:
        hint = f"expected {COMMITTER[0]} <{COMMITTER[1]}>, as `patchctl edit` sets it"
        yield Violation(patch.line_of(b"From:"), f"the author is {header.name} <{header.email}>; {hint}")


@patch_rule(
    "filled-in",
    f"nothing in the header is TODO, and no test or mutation holds {TO_FILL_IN}: `patchctl import` and `patchctl new` write"
    " that where words are wanted",
    "a patch without need, risk and switch is one that no one has looked at",
)
def filled_in(patch: LintedPatch) -> Iterator[Violation]:
    for number, line in enumerate(patch.lines[: patch.header_end], 1):
        if re.search(rb"(^|: )TODO\b|TODO\(", line):
            key = line.partition(b":")[0].decode("utf-8", "replace")
            what = "the paragraph on what changes" if key.startswith("TODO") else f"`{key}:`"
            yield Violation(number, f"{what} waits to be filled in")


@patch_rule(
    "subject-form",
    "the subject reads `area: do something`, without a full stop",
    "the list of commits is read as a list of changes",
)
def subject_form(patch: LintedPatch) -> Iterator[Violation]:
    subject, line = patch.source.header.subject, patch.line_of(b"Subject:")
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        yield Violation(line, f"{subject!r} does not read `area: do something`")
        return
    if subject.endswith("."):
        yield Violation(line, "the subject ends with a full stop")
    verb = match["verb"]
    if verb != verb.lower() and verb[1:] == verb[1:].lower():
        yield Violation(line, f"{verb!r} begins with a capital letter")
    low = verb.lower()
    third_person = low.endswith("s") and not low.endswith(("ss", "us"))
    if low not in _IMPERATIVES and (third_person or low.endswith(("ing", "ed"))):
        yield Violation(line, f"{verb!r} is not imperative: say what the patch does as a command")


@patch_rule("subject-length", f"the subject has at most {SUBJECT_LENGTH} characters", "git log cuts it")
def subject_length(patch: LintedPatch) -> Iterator[Violation]:
    length = len(patch.source.header.subject)
    if length > SUBJECT_LENGTH:
        yield Violation(patch.line_of(b"Subject:"), f"the subject has {length} characters; at most {SUBJECT_LENGTH}")


@patch_rule(
    "body-need-and-change",
    "the body says what is needed and what changes, a paragraph each at least",
    "nobody can judge later whether the patch may go",
)
def body_need_and_change(patch: LintedPatch) -> Iterator[Violation]:
    before = [p for p in patch.paragraphs if not p.startswith("Risk:")]
    if len(before) < 2:
        found = "no paragraph" if not before else "one paragraph"
        yield Violation(patch.line_of(b"Subject:"), f"expected a need and a change before `Risk:`, found {found}")


@patch_rule(
    "body-risk",
    "one paragraph begins with `Risk:`, and it comes after need and change",
    "a user must know what to look for",
)
def body_risk(patch: LintedPatch) -> Iterator[Violation]:
    paragraphs = patch.paragraphs
    risks = [n for n, p in enumerate(paragraphs) if p.startswith("Risk:")]
    line = patch.line_of(b"Risk:") if risks else patch.line_of(b"Subject:")
    if len(risks) != 1:
        yield Violation(line, f"expected one paragraph that begins with `Risk:`, found {len(risks)}")
    elif risks[0] == 0 and len(paragraphs) > 2:
        yield Violation(line, "`Risk:` comes before need and change")


@patch_rule("body-width", f"lines of the header have at most {BODY_WIDTH} characters", "git log indents them")
def body_width(patch: LintedPatch) -> Iterator[Violation]:
    for number, line in enumerate(patch.lines[: patch.header_end], 1):
        length = len(line.decode("utf-8", "replace"))
        # An address cannot be wrapped.
        if length > BODY_WIDTH and b"://" not in line:
            yield Violation(number, f"the line has {length} characters; at most {BODY_WIDTH}")


@patch_rule("header-blanks", "no line of the header ends with a blank", "`git am` drops it: two forms of one patch")
def header_blanks(patch: LintedPatch) -> Iterator[Violation]:
    for number, line in enumerate(patch.lines[: patch.header_end], 1):
        if line.endswith((b" ", b"\t")):
            yield Violation(number, "the line ends with a blank")


@patch_rule(
    "trailers",
    "Feature, Switch, Upstream-Status and Drop-When stand once, in the last paragraph",
    "the tool and its pages read them",
)
def trailers(patch: LintedPatch) -> Iterator[Violation]:
    found = patch.source.header.trailers
    for key in REQUIRED:
        if key not in found:
            yield Violation(patch.trailer_line(key), f"`{key}:` is missing from the last paragraph")
    for key, values in found.items():
        if key not in KNOWN:
            yield Violation(values[0].line, f"`{key}:` is no trailer that we know{did_you_mean(key, KNOWN)}")
        elif key not in _LISTS and len(values) > 1:
            yield Violation(values[1].line, f"`{key}:` a second time")


def _form(patch: LintedPatch, key: str, form: re.Pattern[str], expected: str) -> Iterator[Violation]:
    for trailer in patch.source.header.trailers.get(key, []):
        if form.fullmatch(trailer.value) is None:
            yield Violation(trailer.line, f"`{key}: {trailer.value}`; expected {expected}")


@patch_rule(
    "feature-form", "`Feature:` is a name of lower-case letters, digits and '_'", "users type it after --without"
)
def feature_form(patch: LintedPatch) -> Iterator[Violation]:
    yield from _form(patch, "Feature", _FEATURE, "lower-case letters, digits and '_'")


@patch_rule("switch-form", f"`Switch:` is {SWITCH_FORMS}", "people copy it")
def switch_form(patch: LintedPatch) -> Iterator[Violation]:
    yield from _form(patch, "Switch", _SWITCH, SWITCH_FORMS)


@patch_rule(
    "status-form",
    "`Upstream-Status:` is Pending, Submitted URL, Backport URL or Inappropriate REASON",
    "a patch whose way upstream nobody knows stays for ever",
)
def status_form(patch: LintedPatch) -> Iterator[Violation]:
    expected = "Pending, Submitted https://... (remark), Backport https://... (remark) or Inappropriate REASON"
    yield from _form(patch, "Upstream-Status", _STATUS, expected)


@patch_rule(
    "requires-form",
    "`Requires:` lists features as NAME or NAME@upstream, separated by commas",
    "a requirement that is not understood is not kept",
)
def requires_form(patch: LintedPatch) -> Iterator[Violation]:
    for name in patch.source.header.listed("Requires"):
        if _REQUIREMENT.fullmatch(name) is None:
            yield Violation(patch.trailer_line("Requires"), f"{name!r} is no FEATURE or FEATURE@upstream")
