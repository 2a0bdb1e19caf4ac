"""Hydra's grammar of a list, a mapping and what they hold (hydra-core 1.3, grammar/OverrideLexer.g4), read without Hydra.

tests/behaviour/test_hydra_grammar.py asks Hydra's own parser the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_DEEPEST = 50
_CASTS = ("int", "float", "str", "bool", "json_str")
_TOKEN = re.compile(
    r"""(?P<quoted>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    |(?P<call>[A-Za-z_][A-Za-z0-9_-]*[ \t]*\([ \t]*)
    |(?P<comma>[ \t]*,[ \t]*)|(?P<colon>[ \t]*:[ \t]*)
    |(?P<open>[\[{][ \t]*)|(?P<close>[ \t]*[\]})])
    |(?P<plain>\$\{[^{}]+\}|\\[\\()\[\]{}:=, \t]|[A-Za-z0-9_/\-+.%*@?|]+|[\\$]|[ \t]+)
    |(?P<end>\Z)""",
    re.VERBOSE | re.DOTALL,
)

Element = str | list["Element"] | dict[str, "Element"]
"""What a text holds, its items as they are written."""


class BadElement(ValueError):
    """A text that Hydra would not parse; the message says where."""


def element(text: str) -> Element:
    """The list, mapping or single value that a text is in Hydra's grammar. Raises BadElement."""
    reader = _Reader(text)
    found = reader.element()
    reader.take("end")
    return found


def items(text: str) -> list[str]:
    """The items of a list, as they are written and without quotes; a text that is none is its only item, or parted at its commas."""
    try:
        found = element(text)
    except BadElement:
        return [item for item in text.strip("[]").split(",") if item]
    return [unquoted(item) for item in found if isinstance(item, str)] if isinstance(found, list) else [text]


def pairs(value: str) -> dict[str, Element]:
    """The keys of a mapping, and what they have; nothing for another value."""
    try:
        found = element(value)
    except BadElement:  # which the printed command refuses
        return {}
    return found if isinstance(found, dict) else {}


def as_written(one: Element) -> str:
    """An item as it may be written; of a list or a mapping what tells that it is one."""
    if isinstance(one, dict):
        pairs = ",".join(f"{key}:{as_written(value)}" for key, value in one.items())
        return f"{{{pairs}}}"
    return f"[{','.join(map(as_written, one))}]" if isinstance(one, list) else one


def unquoted(text: str) -> str:
    """A text without the quotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" else text


class _Reader:
    """Goes over the tokens of a text once."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._next = 0
        self._depth = 0

    def take(self, kind: str, text: str = "") -> re.Match[str]:
        """The next token, which has to be of a kind."""
        token = self._tokens[self._next]
        if not self._at(kind, text):
            found = repr(token[0].strip()) if token[0].strip() else "its end"
            raise BadElement(f"expected {text or _SHOWN[kind]} at character {token.start() + 1}, found {found}")
        self._next += 1
        return token

    def _at(self, kind: str, text: str = "") -> bool:
        token = self._tokens[self._next]
        return token.lastgroup == kind and text in ("", token[0].strip())

    def element(self) -> Element:
        """A list, a mapping, a cast or a single value."""
        if not self._at("open") and not self._at("call"):
            return self.take("quoted")[0] if self._at("quoted") else self._plain("plain", "colon")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadElement(f"more than {_DEEPEST} lists and mappings in each other")
        nested: Callable[[], Element] = self._items if self._at("open", "[") else self._pairs
        found = self._cast() if self._at("call") else nested()
        self._depth -= 1
        return found

    def _items(self) -> list[Element]:
        self.take("open", "[")
        found: list[Element] = []
        while not self._at("close", "]"):
            if found:
                self.take("comma")
            found.append(self.element())
        self.take("close", "]")
        return found

    def _pairs(self) -> dict[str, Element]:
        self.take("open", "{")
        found: dict[str, Element] = {}
        while not self._at("close", "}"):
            if found:
                self.take("comma")
            key = self._plain("plain")  # Hydra takes no quotes there
            self.take("colon")
            found[key] = self.element()
        self.take("close", "}")
        return found

    def _cast(self) -> Element:
        call = self.take("call")
        if call[0].rstrip().rstrip("(").rstrip() not in _CASTS:
            raise BadElement(f"expected one of {', '.join(_CASTS)} before ( at character {call.start() + 1}")
        found = self.element()
        self.take("close", ")")
        return found

    def _plain(self, *kinds: str) -> str:
        """What stands without quotes."""
        text = self.take("colon" if self._at("colon") and "colon" in kinds else "plain")[0]
        while self._tokens[self._next].lastgroup in kinds:
            text += self._tokens[self._next][0]
            self._next += 1
        return text.strip()


_SHOWN = {"plain": "a value without quotes", "colon": "':'", "comma": "','", "end": "the end"}


def _tokens(text: str) -> Iterator[re.Match[str]]:
    at, kind = 0, None
    while kind != "end":
        found = _TOKEN.match(text, at)
        if found is None:
            raise BadElement(f"{text[at]!r} at character {at + 1} has to be in quotes")
        yield found
        at, kind = found.end(), found.lastgroup
