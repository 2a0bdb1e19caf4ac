"""The report's page: one HTML file that needs nothing else, and that nothing in it can make do anything else; and its drift matrix, a
grid a stack, patches by releases, from what `drift --json` printed.

Text from manifests, patches, locks and records becomes text (`markup`); the policy lets a browser run and apply what is ours by
its digest, and load nothing. Without scripts all is there but the filter. The same distribution gives the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING
from urllib.parse import quote

from patchctl import __version__
from patchctl.catalog.overview import Overview
from patchctl.drift.types import ARRIVES, CONFLICT, EXACT, GONE, MOVED, THREE_WAY, UNKNOWN, UPSTREAM, PatchDrift
from patchctl.manifest.typeinfo import to_json
from patchctl.report import page_parts
from patchctl.report.markup import Markup, Row, cell, code, embedded, grid, join, keys, section, table, tag, text
from patchctl.report.page_parts import Names
from patchctl.terminal.text import counted

if TYPE_CHECKING:
    from patchctl.drift.api_diff import ApiChange
    from patchctl.drift.saved import SavedDrift
    from patchctl.drift.types import ReleaseDrift, StackDrift


# As the text of `drift` has them, with the word that a reader hears.
_STATES = {
    EXACT: ("=", "exact"),
    MOVED: ("~", "moved"),
    THREE_WAY: ("3", "three-way merge"),
    UPSTREAM: ("u", "upstream has it"),
    UNKNOWN: ("?", "this source lacks the file"),
    CONFLICT: ("×", "conflict"),
    GONE: ("×", "file gone"),
}
_MANY = 40
_HOW = "patchctl drift --matrix --json >drift.json; patchctl report --drift drift.json"


def drift(names: Names, saved: SavedDrift | None) -> Markup:
    """A grid for every stack of the page that the run looked at; else why there is none."""
    if saved is None:
        return _none("This report was made without a run of drift. To have one in it: ", code(_HOW))
    if saved.problem is not None:
        return _none("The run of drift that was given had come to nothing: ", saved.problem)
    shown = {(s.row.upstream, s.row.stack) for s in names.seen.stacks}
    stacks = [s for s in saved.stacks if (s.upstream, s.stack) in shown and s.releases]
    if not stacks:
        return _none("The run of drift that was given looked at no other release of a stack here.")
    seen = {(s.upstream, s.stack) for s in stacks}
    missing = [f"{u} {s}" for u, s in sorted(shown - seen)]
    signs = [tag("li", cell(_kind(state), _STATES[state][0]), " ", _word(state)) for state in _STATES if state != GONE]
    legend = tag("ul", *signs, tag("li", cell("", "!"), " a name it calls changed"), class_="legend")
    lacking = (
        tag("p", f"Not looked at, or without another release: {', '.join(missing)}.", class_="quiet") if missing else ""
    )
    hint = "How the patches of each stack fare on other releases of their upstream, in the order in which these were walked."
    if any(r.callers for s in stacks for r in s.releases):
        hint += " Rows with @ are patches of other upstreams that call into this one."
    return section(
        "drift", "Drift", tag("p", hint, class_="quiet"), legend, *(_stack(names, s) for s in stacks), lacking
    )


def _none(*words: str) -> Markup:
    return section("drift", "Drift", tag("p", *words, class_="notice"))


def _kind(state: str) -> str:
    return f"is-{state}" if state in _STATES else "is-unknown"


def _stack(names: Names, stack: StackDrift) -> Markup:
    numbers = names.of_stack(stack.upstream, stack.stack)
    by_feature = {names.seen.patches[n].row.feature: [n] for n in numbers}
    features = list(dict.fromkeys(p.feature for r in stack.releases for p in r.patches))
    columns = _columns(stack.releases)
    rows = [_row(names, columns, f"{feature}@{stack.upstream}/{stack.stack}") for feature in features]
    callers = list(dict.fromkeys(c.name for r in stack.releases for c in r.callers))
    rows += [_caller(names, columns, name, names.beside(name, stack.upstream, stack.stack)) for name in callers]
    counts = [str(sum(p.state in ARRIVES for p in column[0].patches)) for column in columns]
    heads = ((_head(c), f"{c[-1].commit[:12]} ({c[-1].form})") for c in columns)
    title = f"{stack.upstream} {stack.stack} on {counted(len(stack.releases), 'release')}"
    shown = grid(title, "Feature", heads, rows, (f"arrive, of {len(features)}", *counts))
    other = sorted({*features} ^ by_feature.keys())
    changed = (
        tag("p", f"The run was of another state of the stack: {', '.join(other)}.", class_="quiet") if other else ""
    )
    return tag("article", shown, changed, _newest(names, stack, by_feature), data_p=keys(numbers))


def _columns(releases: Sequence[ReleaseDrift]) -> list[list[ReleaseDrift]]:
    """Each release; where there are many, those in a row on which all patches fare alike are one."""
    if len(releases) <= _MANY:
        return [[release] for release in releases]
    alike = itertools.groupby(
        releases,
        key=lambda r: [*((p.feature, p.state, bool(p.names)) for p in r.patches), *(c.name for c in r.callers)],
    )
    return [list(found) for _, found in alike]


def _head(column: Sequence[ReleaseDrift]) -> str:
    first, last = column[0].release, column[-1].release
    return first if len(column) == 1 else f"{first} – {last} ({len(column)})"


def _row(names: Names, columns: Sequence[Sequence[ReleaseDrift]], name: str) -> Row:
    feature = name.partition("@")[0]
    cells = []
    for column in columns:
        patch = next((p for p in column[0].patches if p.feature == feature), None)
        cells.append(_verdict(patch, _head(column)) if patch else cell("", "", "not looked at"))
    about = names.named(name)
    return Row((tag("a", feature, href=f"#{names.place(name)}") if about else feature, *cells), about)


def _caller(names: Names, columns: Sequence[Sequence[ReleaseDrift]], name: str, about: Sequence[int]) -> Row:
    """A patch of another upstream, which is neither lost nor moved here."""
    cells = []
    for column in columns:
        changed = any(c.name == name for c in column[0].callers)
        said = "calls what has changed" if changed else "what it calls is as it was"
        kind, sign = (_kind(UNKNOWN), "!") if changed else (_kind(EXACT), _STATES[EXACT][0])
        cells.append(cell(kind, sign, said, f"{name} on {_head(column)}: {said}"))
    return Row((tag("a", name, href=f"#{names.place(names.names[about[0]])}") if about else name, *cells), about)


def _verdict(patch: PatchDrift, release: str) -> Markup:
    sign, words = _STATES.get(patch.state, ("?", patch.state))
    said = f"{words}, and a name it calls changed" if patch.names else words
    return cell(_kind(patch.state), sign + ("!" if patch.names else ""), said, f"{patch.feature} on {release}: {said}")


def _newest(names: Names, stack: StackDrift, by_feature: Mapping[str, Sequence[int]]) -> Markup:
    """What has to be done on the last release that was walked."""
    last = stack.releases[-1]
    stale = [p for p in last.patches if p.stale]
    if not stale and not last.callers:
        return tag("p", f"On {last.release} nothing is stale.")
    rows = []
    for patch in stale:
        link = names.link(f"{patch.feature}@{stack.upstream}/{stack.stack}", patch.feature)
        rows.append(Row((link, _word(patch.state), _why(patch)), by_feature.get(patch.feature, ())))
    for one in last.callers:
        lines = [*map(_name, one.names), text(f"unproven there: {one.proof}" if one.proof else "settled there")]
        why = tag("ul", *(tag("li", line) for line in lines), class_="plain")
        about = names.beside(one.name, stack.upstream, stack.stack)
        rows.append(Row((names.needed(one.name, stack.upstream, stack.stack), "calls what has changed", why), about))
    work = sum(not p.clean for p in stale) + sum(c.proof is not None for c in last.callers)
    called = f" and {len(last.callers)} of other upstreams" if last.callers else ""
    title = f"On {last.release}: {len(stale)} of {len(last.patches)}{called} are stale, {work} need someone"
    listed = table(title, ("Feature", "State", "Why"), rows, "why fixed")
    return tag("details", tag("summary", title), listed, class_="more")


def _why(patch: PatchDrift) -> Markup:
    lines = []
    for file in (f for f in patch.files if f.state != EXACT):
        moved = f", moved to {file.target}" if file.target else ""
        lines.append(join([code(file.path), f": {_word(file.state)}{moved}"]))
    lines += map(_name, patch.names)
    if patch.taken:
        lines.append(text(f"upstream had it in {patch.taken}, and has changed it since"))
    if patch.state in ARRIVES and patch.state != UPSTREAM:
        lines.append(text("proven there" if patch.proof is None else f"unproven there: {patch.proof}"))
    return tag("ul", *(tag("li", line) for line in lines), class_="plain")


def _name(one: ApiChange) -> Markup:
    now = [": is gone"] if one.now is None else [": was ", code(one.was), ", is ", code(one.now)]
    return join([code(one.name), *now])


def _word(state: str) -> str:
    return _STATES.get(state, ("?", state))[1]


_FOLDER = Path(__file__).with_name("templates")


def is_page(data: bytes) -> bool:
    """Whether these bytes begin a page that this module wrote."""
    return data.startswith(b"<!DOCTYPE html>\n") and b'<meta name="generator" content="patchctl report ' in data[:2048]


def page(seen: Overview, saved: SavedDrift | None, materials: str | None = None) -> bytes:
    """The whole file. The patches are embedded as JSON, for the filter. `materials`: a bill of materials beside it, to be linked."""
    template, style, script = (
        (_FOLDER / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")
    )
    policy = f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; base-uri 'none'; form-action 'none'"
    names = page_parts.Names(seen)
    parts = (
        page_parts.profiles(names),
        page_parts.stacks(names),
        page_parts.features(names),
        page_parts.files(names),
        page_parts.dependencies(names),
        drift(names, saved),
        page_parts.recipes(names),
    )
    heading, summary = "All profiles", "Every stack of this distribution, with its patches."
    if seen.profile:
        heading, summary = seen.profile, seen.profiles[0].summary
    releases = {profile.release for profile in seen.profiles}
    release = releases.pop() if len(releases) == 1 else None
    link = tag("p", tag("a", "Bill of materials", href=quote(materials), download=materials)) if materials else ""
    data = json.dumps([to_json(one) for one in seen.patches], sort_keys=True)
    # An indented line of the template goes on where the one above it ends.
    whole = Template(re.sub(r"\n +", "", template)).substitute(
        policy=text(policy),
        title=text(seen.profile or "all profiles"),
        style=style,
        release=text(f", release {release}" if release else ""),
        heading=text(heading),
        summary=text(summary),
        materials=link,
        counts=join(tag("div", tag("dt", name), tag("dd", number)) for name, number in page_parts.numbers(seen)),
        upstreams=join(tag("option", u, value=u) for u in dict.fromkeys(s.row.upstream for s in seen.stacks)),
        parts=join(join([part, "\n"]) for part in parts),
        version=text(__version__),
        data=embedded(data),
        script=script,
    )
    return whole.encode()


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
