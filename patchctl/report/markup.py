"""HTML from text that anybody wrote: what is not `Markup` is escaped, wherever it is put. And what the page is built of: tables,
grids of signs, badges, paragraphs."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from patchctl.terminal.text import visible

_CODE = re.compile(r"`([^`]+)`")


class Markup(str):
    """Text that is HTML already. What is added to it is plain text again, and so escaped when it is put somewhere."""


def text(value: str) -> Markup:
    """The text as itself: characters that HTML acts on as entities, those that turn or hide what is read as escapes."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(value)))


def tag(name: str, /, *children: str, **attributes: str | None) -> Markup:
    """An element. Attributes that are None are left out; class_ is class, data_x is data-x."""
    given = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items() if value is not None}
    written = "".join(f' {key}="{text(value)}"' for key, value in given.items())
    return Markup(f"<{name}{written}>{join(children)}</{name}>")


def join(parts: Iterable[str], between: str = "") -> Markup:
    """All of them, escaped where they have to be."""
    return Markup(text(between).join(map(text, parts)))


def embedded(json_text: str) -> str:
    """JSON as it may stand in a <script>: neither an end tag nor a comment can be in it."""
    return json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def keys(numbers: Iterable[int]) -> str:
    """The value of data-p."""
    return " ".join(map(str, numbers))


def code(value: str) -> Markup:
    return tag("code", value)


def badge(kind: str, sign: str, words: str) -> Markup:
    """A state: never by its colour alone."""
    drawn = (tag("span", sign, aria_hidden="true"), " ") if sign else ()
    return tag("span", *drawn, words, class_=f"badge {kind}")


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
    # Wider than a small screen, so in a box that scrolls by the keyboard too.
    return tag("div", whole, class_="scroll matrix", role="region", aria_label=title, tabindex="0")


def cell(kind: str, sign: str, words: str = "", more: str | None = None) -> Markup:
    """One sign of a grid, with the words that are heard, and what the pointer shows besides."""
    heard = tag("span", words, class_="heard") if words else ""
    return tag("span", tag("span", sign, aria_hidden="true"), heard, class_=f"cell {kind}", title=more)


def section(name: str, title: str, *children: str) -> Markup:
    """A part of the page, a landmark with its heading's name."""
    heading = tag("h2", title, id=f"part-{name}-title")
    return tag("section", heading, *children, id=f"part-{name}", aria_labelledby=f"part-{name}-title")
