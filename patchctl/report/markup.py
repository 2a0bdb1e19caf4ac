"""HTML and SVG from text that anybody wrote: what is not `Markup` is escaped, wherever it is put."""

from __future__ import annotations

import html
from collections.abc import Iterable

from patchctl.terminal.text import visible

_EMPTY = frozenset({"meta", "input"})


class Markup(str):
    """Text that is HTML already. What is added to it is plain text again, and so escaped when it is put somewhere."""


def text(value: str) -> Markup:
    """The text as itself: characters that HTML acts on as entities, those that turn or hide what is read as escapes."""
    return value if isinstance(value, Markup) else Markup(html.escape(visible(value)))


def tag(name: str, /, *children: str, **attributes: str | int | bool | None) -> Markup:
    """An element. Attributes that are None or False are left out, one that is True has no value; class_ is class, data_x is
    data-x."""
    given = ((key, value) for key, value in attributes.items() if value is not None and value is not False)
    written = "".join(_attribute(key, value) for key, value in given)
    inner = "".join(map(text, children))
    return Markup(f"<{name}{written}>" if name in _EMPTY else f"<{name}{written}>{inner}</{name}>")


def _attribute(key: str, value: str | int | bool | None) -> str:
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{text(str(value))}"'


def join(parts: Iterable[str], between: str = "") -> Markup:
    """All of them, escaped where they have to be."""
    return Markup(text(between).join(map(text, parts)))


def raw(name: str, content: str, **attributes: str) -> Markup:
    """<style> or <script>, whose content HTML does not unescape; ours alone, or JSON that `embedded` wrote."""
    opened = tag(name, **attributes).removesuffix(f"</{name}>")
    return Markup(f"{opened}{content}</{name}>")


def embedded(json_text: str) -> str:
    """JSON as it may stand in a <script>: neither an end tag nor a comment can be in it."""
    return json_text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
