"""Rules about a patch's name, subject, body and trailers."""

from __future__ import annotations

import re
from collections.abc import Iterator

from patchctl.check.rule import Violation, patch_rule
from patchctl.manifest.diagnostics import did_you_mean
from patchctl.prove.new import MARKER as NEW
from patchctl.stack.build import COMMITTER
from patchctl.stack.patches import LintedPatch

SUBJECT_LENGTH = 72
BODY_WIDTH = 120
REQUIRED = ("Feature", "Switch", "Upstream-Status", "Drop-When")
KNOWN = (
    *REQUIRED,
    "Requires",
    "Carries",
    "Fixes",
    "Link",
    "Signed-off-by",
    "Co-authored-by",
    "Reviewed-by",
    "Tested-by",
    "Imported",
)
_LISTS = ("Requires", "Carries", "Fixes", "Link", "Signed-off-by", "Co-authored-by", "Reviewed-by", "Tested-by")
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
    f"nothing in the header is TODO, and no test or mutation holds {NEW}: `patchctl import` and `patchctl new` write"
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
    if not _imperative(verb.lower()):
        yield Violation(line, f"{verb!r} is not imperative: say what the patch does as a command")


def _imperative(verb: str) -> bool:
    return verb in _IMPERATIVES or not (
        verb.endswith(("ing", "ed")) or (verb.endswith("s") and not verb.endswith(("ss", "us")))
    )


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
    paragraphs = patch.paragraphs
    before = [p for p in paragraphs if not p.startswith("Risk:")]
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
