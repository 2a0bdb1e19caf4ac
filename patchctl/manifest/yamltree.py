"""Parses YAML into a tree that knows line and column of every key and value.

Built from parser events, not composed nodes: an alias is refused before it expands, and depth is counted before
anything recurses. Refuses what manifests have no use for: tags, anchors, aliases, merge keys, duplicate keys,
non-string keys, several documents. Parsing continues where possible, so that one run reports all errors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from patchctl.manifest.diagnostics import cleaned, quoted

MAX_DEPTH = 16

KeyPath = tuple[str | int, ...]
Kind = Literal["text", "number", "boolean", "null", "mapping", "list", "refused"]

# YAML 1.1 as PyYAML reads it, plus the numbers of YAML 1.2, which editors and other tools use: an unquoted id of
# digits, or of digits around one `e`, must not be a string here and a number there.
MAX_BYTES = 1 << 18
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOLEAN = re.compile(r"yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF")
_NUMBER = re.compile(
    r"[-+]?(0b[01_]+|0o[0-7]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*(:[0-5]?[0-9])*(\.[0-9_]*)?([eE][-+]?[0-9]+)?"
    r"|\.[0-9][0-9_]*([eE][-+]?[0-9]+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)"
)
_SMALL = re.compile(r"[-+]?(0|[1-9][0-9]{0,8})")
# Characters that YAML does not allow; line ends of YAML 1.1 that editors do not count, which would shift line
# numbers; and marks that reorder displayed text (https://trojansource.codes).
_REFUSED = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
    "|[\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)


class Unreadable(Exception):
    """The text cannot be parsed past this place (line and column count from 1)."""

    def __init__(self, line: int, column: int, what: str) -> None:
        super().__init__(what)
        self.line, self.column, self.what = line, column, what


@dataclass
class YamlNode:
    """A value. `text` is a scalar as written; `entries` has a mapping's children, `items` a list's."""

    kind: Kind
    line: int
    column: int
    text: str = ""
    quoted: bool = False
    entries: dict[str, MappingEntry] = field(default_factory=dict)
    items: list[YamlNode] = field(default_factory=list)

    def plain(self) -> Any:
        """Return the value as str, int, bool, None, dict and list; 0.5 for a number that is not a small integer."""
        if self.kind == "mapping":
            return {key: entry.value.plain() for key, entry in self.entries.items()}
        if self.kind == "list":
            return [item.plain() for item in self.items]
        if self.kind == "text":
            return self.text
        if self.kind == "number":
            return int(self.text) if _SMALL.fullmatch(self.text) else 0.5  # manifests have no other numbers
        return self.text.lower() in ("yes", "true", "on") if self.kind == "boolean" else None

    def found(self) -> str:
        """Describe the value, as the object of "found ..."."""
        if self.kind == "mapping":
            return "a mapping"
        if self.kind == "list":
            return "a list"
        if self.kind == "null":
            return "null" if self.text else "nothing"
        article = {"number": "the number", "boolean": "the boolean"}.get(self.kind, "")
        return f"{article} {quoted(self.text)}".strip()


@dataclass
class MappingEntry:
    """A key of a mapping: its place and its value."""

    line: int
    column: int
    value: YamlNode


@dataclass(frozen=True)
class YamlFault:
    """Something refused, at a place, while parsing continues."""

    line: int
    column: int
    path: KeyPath
    what: str


def parse(data: bytes) -> tuple[YamlNode, list[YamlFault]]:
    """Return the tree of one YAML document and its syntax errors. Raises Unreadable if parsing cannot continue."""
    import yaml

    text = _decode(data)
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Tree(yaml.parse(text, Loader=loader)).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise Unreadable(line, column, f"not YAML: {_explained(error)}") from None


def _explained(error: Any) -> str:
    problem = cleaned(str(error.problem))
    if "'\\t'" in problem or "tab character" in problem:
        problem += " (a tab; YAML is indented with spaces)"
    return f"{cleaned(str(error.context))}, {problem}" if error.context else problem


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        raise Unreadable(1, 1, f"the file is larger than {MAX_BYTES} bytes")
    if data.startswith(b"\xef\xbb\xbf"):
        raise Unreadable(1, 1, "the file begins with a byte order mark; save it as UTF-8 without one")
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Unreadable(1, 1, "the file is UTF-16 (it begins with that byte order mark); save it as UTF-8 without one")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line, column = _place(data[: error.start].decode("utf-8"))
        raise Unreadable(line, column, f"not UTF-8: byte 0x{data[error.start]:02x}") from None
    strange = _REFUSED.search(text)
    if strange:
        line, column = _place(text[: strange.start()])
        raise Unreadable(
            line, column, f"the character U+{ord(strange.group()):04X}, which must be written as an escape"
        )
    return text


def _place(before: str) -> tuple[int, int]:
    line = before.count("\n") + 1
    return line, len(before) - (before.rfind("\n") + 1) + 1


class _Tree:
    """Builds nodes from the events of one document."""

    def __init__(self, events: Iterator[Any]) -> None:
        self._events = events
        self._faults: list[YamlFault] = []

    def document(self) -> tuple[YamlNode, list[YamlFault]]:
        next(self._events)  # StreamStart
        if self._name(next(self._events)) != "DocumentStart":
            raise Unreadable(1, 1, "the file is empty")
        root = self._node(next(self._events), (), 1)
        next(self._events)  # DocumentEnd
        after = next(self._events)
        if self._name(after) != "StreamEnd":
            raise Unreadable(*self._at(after), "a second document starts here; a manifest is one document")
        return root, self._faults

    @staticmethod
    def _name(event: Any) -> str:
        return type(event).__name__.removesuffix("Event")

    @staticmethod
    def _at(event: Any) -> tuple[int, int]:
        return event.start_mark.line + 1, event.start_mark.column + 1

    def _fault(self, event: Any, path: KeyPath, what: str) -> None:
        self._faults.append(YamlFault(*self._at(event), path, what))

    def _node(self, event: Any, path: KeyPath, depth: int) -> YamlNode:
        line, column = self._at(event)
        name = self._name(event)
        if name == "Alias":
            self._fault(event, path, f"alias {quoted('*' + event.anchor)}: manifests must spell out every value")
            return YamlNode("refused", line, column)
        if depth > MAX_DEPTH:
            raise Unreadable(line, column, f"nested more than {MAX_DEPTH} deep")
        build: Callable[[Any, KeyPath, int], YamlNode] = {
            "Scalar": self._scalar,
            "MappingStart": self._mapping,
            "SequenceStart": self._list,
        }[name]
        node = build(event, path, depth)
        if event.anchor is not None:
            self._fault(event, path, f"anchor {quoted('&' + event.anchor)}: manifests must spell out every value")
        if event.tag is not None:
            self._fault(event, path, f"tag {quoted(event.tag)}: not allowed in manifests")
            return YamlNode("refused", line, column)
        return node

    def _scalar(self, event: Any, path: KeyPath, depth: int) -> YamlNode:
        line, column = self._at(event)
        is_quoted = bool(event.style)  # libyaml gives "" for a plain scalar, the Python parser None
        if any("\ud800" <= c <= "\udfff" for c in event.value):
            self._fault(event, path, "a lone surrogate, which is not a character")
            return YamlNode("refused", line, column)
        return YamlNode(_kind(event.value, is_quoted), line, column, event.value, is_quoted)

    def _list(self, event: Any, path: KeyPath, depth: int) -> YamlNode:
        node = YamlNode("list", *self._at(event))
        for child in self._events:
            if self._name(child) == "SequenceEnd":
                break
            node.items.append(self._node(child, (*path, len(node.items)), depth + 1))
        return node

    def _mapping(self, event: Any, path: KeyPath, depth: int) -> YamlNode:
        node = YamlNode("mapping", *self._at(event))
        for child in self._events:
            if self._name(child) == "MappingEnd":
                break
            key = self._key(child, path, depth)
            value = self._node(next(self._events), path if key is None else (*path, key), depth + 1)
            if key is None:
                continue
            if key in node.entries:
                first = node.entries[key].line
                self._fault(child, (*path, key), f"duplicate key {quoted(key)}; the first is on line {first}")
                continue
            node.entries[key] = MappingEntry(*self._at(child), value)
        return node

    def _key(self, event: Any, path: KeyPath, depth: int) -> str | None:
        """Return the key's text, or None if it is refused."""
        node = self._node(event, path, depth + 1)
        if node.kind == "text":
            if node.text == "<<" and not node.quoted:
                self._fault(event, path, "merge key '<<': manifests must spell out every value")
                return None
            return node.text
        if node.kind in ("mapping", "list"):
            self._fault(event, path, f"{node.found()} as a key; expected a string")
        elif node.kind != "refused":
            self._fault(event, path, f"{node.found()} as a key; expected a string: quote it")
        return None


def plain(name: str) -> str:
    """A name as a key or a value of a manifest: quoted where it would be something else, as the tag 1.0."""
    is_text = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._+/@-]*", name) and _kind(name, False) == "text"
    return name if is_text else json.dumps(name)


def _kind(text: str, is_quoted: bool) -> Kind:
    if is_quoted:
        return "text"
    if _NULL.fullmatch(text):
        return "null"
    if _BOOLEAN.fullmatch(text):
        return "boolean"
    return "number" if _NUMBER.fullmatch(text) else "text"
