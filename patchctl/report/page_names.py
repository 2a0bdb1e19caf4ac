"""What all parts of the report's page say in the same way: links to features, badges, tables, paragraphs of a header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from patchctl.catalog.features import go_together
from patchctl.catalog.overview import Overview, OverviewPatch
from patchctl.report.markup import Markup, join, tag

_CODE = re.compile(r"`([^`]+)`")
_CHANGE = re.compile(r"https://[\w.-]+/[\w.-]+/([\w.-]+)/(?:commit/([0-9a-f]{12})[0-9a-f]*|(?:pull|issues)/(\d+))")


class Names:
    """The page's patches by their numbers in `Overview.patches`: elements name those that they are about in data-p, and the
    filter shows an element when one of its patches is found.

    `names` are the patches' own: FEATURE@UPSTREAM, or FEATURE@UPSTREAM/STACK where several stacks here have it."""

    def __init__(self, seen: Overview) -> None:
        self.seen = seen
        self.features: dict[str, list[int]] = {}
        for number, patch in enumerate(seen.patches):
            self.features.setdefault(patch.row.feature, []).append(number)
        self.names = [p.name if len(self.named(p.name)) == 1 else f"{p.name}/{p.row.stack}" for p in seen.patches]
        self.several_releases = len({profile.release for profile in seen.profiles}) > 1

    def patches(self, numbers: Iterable[int]) -> list[OverviewPatch]:
        return [self.seen.patches[n] for n in numbers]

    def named(self, name: str) -> list[int]:
        """The patches of FEATURE, of FEATURE@UPSTREAM, or of FEATURE@UPSTREAM/STACK."""
        feature, _, place = name.partition("@")
        upstream, _, stack = place.partition("/")
        found = ((n, self.seen.patches[n].row) for n in self.features.get(feature, ()))
        return [n for n, row in found if upstream in ("", row.upstream) and stack in ("", row.stack)]

    def beside(self, name: str, upstream: str, stack: str) -> list[int]:
        """Of the patches of a name those that are applied with this stack."""
        found = ((n, self.seen.patches[n].row) for n in self.named(name))
        return [n for n, row in found if go_together(self.seen.profiles, (upstream, stack), (row.upstream, row.stack))]

    def on(self, name: str, profile: str, release: str | None) -> list[int]:
        """Of the patches of a name those that a profile applies on a release."""
        stacks = {
            pair for p in self.seen.profiles if (p.name, p.release) == (profile, release) for pair in p.stacks.items()
        }
        found = ((n, self.seen.patches[n].row) for n in self.named(name))
        return [n for n, row in found if (row.upstream, row.stack) in stacks]

    def of_stack(self, upstream: str, stack: str) -> list[int]:
        found = enumerate(self.seen.patches)
        return [n for n, p in found if (p.row.upstream, p.row.stack) == (upstream, stack)]

    def link(self, name: str, shown: str = "") -> Markup:
        """A feature, or a patch by its name, as a link where the page has it."""
        shown = code(shown or name)
        return tag("a", shown, href=f"#{self.place(name)}") if self.named(name) else shown

    def place(self, name: str) -> str:
        """The id of a feature's card; where it has several patches, and one is meant, that of this one's part."""
        feature, _, place = name.partition("@")
        several = len(self.features.get(feature, ())) > 1
        if not place or not several:
            return anchor(feature)
        return f"{anchor(feature)}@{anchor(self.names[self.named(name)[0]].partition('@')[2])}"

    def needed(self, name: str, upstream: str, stack: str) -> Markup:
        """What a patch of this stack requires, as it writes it, with a link to what that is there."""
        found = self.beside(name, upstream, stack)
        return self.link(self.names[found[0]], name) if found else code(name)

    def links(self, names: Iterable[str]) -> Markup:
        return join(map(self.link, names), ", ")


def keys(numbers: Iterable[int]) -> str:
    """The value of data-p."""
    return " ".join(map(str, numbers))


def anchor(name: str) -> str:
    """The id of a feature's place: its name, as patchctl takes one. No part of the page has such an id."""
    return re.sub(r"[^A-Za-z0-9_]", "-", name)


def code(value: str) -> Markup:
    return tag("code", value)


def badge(kind: str, sign: str, words: str) -> Markup:
    """A state: never by its colour alone."""
    drawn = (tag("span", sign, aria_hidden="true"), " ") if sign else ()
    return tag("span", *drawn, words, class_=f"badge {kind}")


def proof_badge(unproven: Sequence[str | None]) -> Markup:
    """Of one patch, or of all that a feature has."""
    if any(unproven):
        return badge("open", "○", "unproven")
    return badge("good", "✓", "proven")


def switch(value: str | None) -> Markup:
    """Where it is set, and the key; a long key is parted behind a dot, where it has to be."""
    if value in (None, "none"):
        return tag("span", "always on", class_="quiet")
    where, _, key = (value or "").partition(" ")
    parts = join(re.split(r"(?<=[.=])(?=.)", key or where), Markup("<wbr>"))
    return join([tag("span", where, " ", class_="quiet") if key else "", tag("code", parts)])


def short(value: str) -> str:
    """A status with each address of a commit or a pull request as REPOSITORY@ID or REPOSITORY#NUMBER: for a narrow column."""
    return _CHANGE.sub(lambda found: f"{found[1]}@{found[2]}" if found[2] else f"{found[1]}#{found[3]}", value)


def prose(value: str) -> Markup:
    """Paragraphs wrapped anew; one that holds a list keeps its lines. `Code` as code."""
    found = []
    for paragraph in value.split("\n\n"):
        kept = any(line.lstrip().startswith(("- ", "* ")) for line in paragraph.split("\n"))
        parts = (code(part) if n % 2 else part for n, part in enumerate(_CODE.split(paragraph)))
        found.append(tag("p", *parts, class_="lines" if kept else None))
    return join(found)


def facts(rows: Iterable[tuple[str, str | None]]) -> Markup:
    """Names and what they are, without those that are nothing."""
    found = [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows if value]
    return tag("dl", *found, class_="facts") if found else Markup("")


@dataclass(frozen=True)
class Row:
    """A row of a table: its first cell is its head. `about` are the patches, `own` the text that is sought in it besides."""

    cells: Sequence[str]
    about: Sequence[int]
    own: str | None = None


def table(caption: str, heads: Sequence[str], rows: Iterable[Row], class_: str = "") -> Markup:
    """A table that becomes a list of cards where there is no room. The roles say that it is a table still: a browser forgets
    it with `display: block`."""
    head = [tag("th", h, scope="col", role="columnheader") for h in heads]
    body = []
    for row in rows:
        first, *rest = zip(heads, row.cells, strict=True)
        cells = [tag("th", first[1], scope="row", role="rowheader")]
        cells += [tag("td", cell, role="cell", data_label=label) for label, cell in rest]
        body.append(tag("tr", *cells, role="row", data_p=keys(row.about), data_own=row.own))
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", *head, role="row"), role="rowgroup"),
        tag("tbody", *body, role="rowgroup"),
        role="table",
        class_=f"flow {class_}".strip(),
    )


def grid(
    title: str, corner: str, heads: Iterable[tuple[str, str | None]], rows: Iterable[Row], foot: Sequence[str] = ()
) -> Markup:
    """A table of signs, drawn as a picture: narrow columns, whose heads (and what is said of them) stand upright."""
    columns = (tag("th", tag("span", head), scope="col", title=more) for head, more in heads)
    body = [
        tag("tr", tag("th", row.cells[0], scope="row"), *(tag("td", c) for c in row.cells[1:]), data_p=keys(row.about))
        for row in rows
    ]
    last = [tag("tfoot", tag("tr", tag("th", foot[0], scope="row"), *(tag("td", c) for c in foot[1:])))] if foot else []
    top = tag("thead", tag("tr", tag("th", corner, scope="col"), *columns))
    whole = tag("table", tag("caption", title), top, tag("tbody", *body), *last, class_="grid")
    return scrolling(title, whole, "matrix")


def cell(kind: str, sign: str, words: str = "", more: str | None = None) -> Markup:
    """One sign of a grid, with the words that are heard, and what the pointer is told besides."""
    heard = tag("span", words, class_="heard") if words else ""
    return tag("span", tag("span", sign, aria_hidden="true"), heard, class_=f"cell {kind}", title=more)


def section(name: str, title: str, *children: str) -> Markup:
    """A part of the page, a landmark with its heading's name."""
    heading = tag("h2", title, id=f"part-{name}-title")
    return tag("section", heading, *children, id=f"part-{name}", aria_labelledby=f"part-{name}-title")


def scrolling(label: str, content: str, class_: str) -> Markup:
    """What is wider than a small screen, in a box that scrolls by the keyboard too."""
    return tag("div", content, class_=f"scroll {class_}", role="region", aria_label=label, tabindex="0")
