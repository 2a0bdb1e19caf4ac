"""Reads one manifest: bytes, a tree with positions, then a dataclass that pydantic has checked.

pydantic finds what is wrong and at which key; what was expected, what was found and the nearest known name are said
from our own definitions, so that messages do not change with its version.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from patchctl.manifest import shorthand, yamltree
from patchctl.manifest.files import file_bytes
from patchctl.manifest.problems import InvalidManifest, Problem, cleaned, did_you_mean, nearest, shown
from patchctl.manifest.shape import Shape, expects, fields_of, shape_of
from patchctl.manifest.types import DIGESTS, FORMAT, Pattern
from patchctl.manifest.yamltree import KeyPath, Node

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

MISSING = "missing"
UNKNOWN = "unexpected_keyword_argument"  # pydantic's word for an unknown key of a dataclass


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A manifest's value, and where each of its keys and values stands."""

    value: T
    positions: Positions


@dataclass(frozen=True)
class Positions:
    """Where the keys and values of one file are."""

    file: str
    root: Node

    def problem(self, path: KeyPath, what: str, *, at: Literal["key", "value"] = "value") -> Problem:
        """A fault at the key or the value of `path`; where there is no such key, at the nearest that encloses it."""
        line, column = self.place(path, at=at)
        return Problem(self.file, line, column, written(path), what)

    def place(self, path: KeyPath, *, at: Literal["key", "value"] = "value") -> tuple[int, int]:
        """Line and column, from 1."""
        node, place = self.root, (self.root.line, self.root.column)
        for part in path:
            if isinstance(part, int) and node.kind == "list" and part < len(node.items):
                node = node.items[part]
                place = (node.line, node.column)
            elif isinstance(part, str) and part in node.entries:
                entry = node.entries[part]
                node = entry.value
                # A value that is a block, or missing, begins in a later line; a person looks for its key.
                use_key = at == "key" or node.kind in ("mapping", "list", "null")
                place = (entry.line, entry.column) if use_key else (node.line, node.column)
            else:
                break
        return place


def written(path: KeyPath) -> str:
    """A path of keys as people write it: upstreams.verl.git[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cleaned(part)}"
    return text.removeprefix(".")


def read(path: Path, model: type[T]) -> Loaded[T]:
    """The manifest in a file. Raises InvalidManifest with every fault that it has."""
    return loads(file_bytes(path), model, shown(path))


def loads(data: bytes, model: type[T], file: str) -> Loaded[T]:
    """As `read`, from bytes; `file` is the name that messages use."""
    positions, faults = tree(data, file)
    positions = Positions(file, shorthand.written_out(positions.root, model))
    value, refusals = _validated(positions, model)
    # A key whose value was refused for its form is not missing as well.
    told = {fault.key for fault in faults}
    problems = [*faults, *(r for r in refusals if not (r.key in told and r.what.startswith(MISSING)))]
    if problems or value is None:
        raise InvalidManifest(problems)
    return Loaded(value, positions)


def tree(data: bytes, file: str) -> tuple[Positions, list[Problem]]:
    """Positions alone, without pydantic. Raises InvalidManifest where the file is not YAML that we take."""
    try:
        root, faults = yamltree.parse(data)
    except yamltree.Unreadable as error:
        raise InvalidManifest([Problem(file, error.line, error.column, "", error.what)]) from None
    return Positions(file, root), [Problem(file, f.line, f.column, written(f.path), f.what) for f in faults]


def positions_of(path: Path) -> Positions:
    """Where the keys of a file are, whatever they hold. Raises InvalidManifest where it is not YAML that we take."""
    return tree(file_bytes(path), shown(path))[0]


@functools.cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    """Made once for each kind of manifest: that takes longer than a validation."""
    from pydantic import TypeAdapter

    return TypeAdapter(model)


def _validated(positions: Positions, model: type[T]) -> tuple[T | None, list[Problem]]:
    from pydantic import ValidationError

    kind: Any = model
    # As JSON, because in strict mode pydantic takes a mapping for a dataclass from JSON only.
    try:
        value: T = _adapter(kind).validate_json(json.dumps(positions.root.plain()))
        return value, []
    except ValidationError as error:
        spots = [_Spot.find(positions.root, model, e["loc"], e["type"]) for e in error.errors(include_url=False)]
    problems = [
        positions.problem(spot.path, spot.what(), at="key" if spot.at_key else "value")
        for spot in spots
        if spot.node.kind != "refused"
    ]
    return None, problems


@dataclass(frozen=True)
class _Spot:
    """The place of one of pydantic's errors in our terms. `shape` is the type there, None for an unknown key."""

    path: KeyPath
    node: Node
    parent: Shape | None
    shape: Shape | None
    fault: str
    at_key: bool

    @classmethod
    def find(cls, root: Node, model: Any, loc: Iterable[str | int], fault: str) -> _Spot:
        """Follows pydantic's location, which ends in '[key]' when a mapping's key is meant."""
        node = root
        parent: Shape | None = None
        shape: Shape | None = shape_of(model)
        at_key = fault == UNKNOWN
        path: list[str | int] = []
        for part in loc:
            # A key may have that name too.
            if part == "[key]" and not at_key and parent is not None and parent.origin is dict:
                return cls(tuple(path), node, parent, shape_of(parent.args[0]), fault, True)
            parent, shape = shape, _inside(shape, part)
            path.append(part)
            node = _child(node, part)
        return cls(tuple(path), node, parent, shape, fault, at_key)

    def what(self) -> str:
        name = str(self.path[-1]) if self.path else ""
        if self.fault == UNKNOWN and self.parent is not None:
            return "unknown key" + did_you_mean(name, fields_of(self.parent.base))
        if self.shape is None:
            return f"unexpected: found {self.node.found()}"
        if self.fault == "missing":
            return f"{MISSING}; expected {expects(self.shape)}"
        if self.at_key:
            return f"the key is not right: expected {expects(self.shape)}"
        return f"expected {expects(self.shape)}; found {self.node.found()}{self._advice(name)}"

    def _advice(self, name: str) -> str:
        from patchctl.terminal.text import redact_text

        assert self.shape is not None
        node = self.node
        pattern = self.shape.mark(Pattern)
        if node.kind in ("number", "boolean") and self.shape.base is str:
            fits = pattern is None or re.fullmatch(pattern.regex, node.text)
            return f'; quote it: "{node.text}"' if fits else ""
        if name == "schema" and node.kind == "number":
            return f"; this patchctl reads format {FORMAT}"
        if self.shape.origin is Literal and node.kind == "text":
            near = nearest(node.text, self.shape.args)
            return f"; did you mean '{near}'?" if near else ""
        if self.shape.base is str and node.kind == "text" and redact_text(node.text) != node.text:
            return " (its credentials are not shown)"
        # Of an id that is cut off or has a blank at its end, people see the length before they see the fault.
        is_id = pattern in DIGESTS
        return f" ({len(node.text)} characters)" if is_id and node.kind == "text" else ""


def _inside(shape: Shape | None, part: str | int) -> Shape | None:
    """The type of a key or an item of a value of this type; None where there is none."""
    if shape is None:
        return None
    if shape.is_record:
        field = fields_of(shape.base).get(str(part))
        return field.shape if field else None
    if shape.origin is list:
        return shape_of(shape.args[0])
    return shape_of(shape.args[1]) if shape.origin is dict else None


def _child(node: Node, part: str | int) -> Node:
    if isinstance(part, int):
        return node.items[part] if part < len(node.items) else node
    return node.entries[part].value if part in node.entries else node
