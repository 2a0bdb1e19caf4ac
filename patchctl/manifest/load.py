"""Loads one manifest: bytes to a tree with positions, checked against the annotations of a dataclass.

One run reports every error with its place, what was expected and found, and the nearest known name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from patchctl.manifest import shorthand, yamltree
from patchctl.manifest.files import file_bytes
from patchctl.manifest.problems import InvalidManifest, Problem, cleaned, did_you_mean, nearest, shown
from patchctl.manifest.shape import Shape, build, expects, fields_of, shape_of
from patchctl.manifest.types import DIGESTS, FORMAT, Only, Pattern
from patchctl.manifest.yamltree import KeyPath, YamlNode

T = TypeVar("T")

MISSING = "missing"


@dataclass(frozen=True)
class Loaded(Generic[T]):
    """A manifest's value and the positions of its keys and values."""

    value: T
    positions: Positions


@dataclass(frozen=True)
class Positions:
    """Where the keys and values of one file are."""

    file: str
    root: YamlNode

    def problem(self, path: KeyPath, what: str, *, at: Literal["key", "value"] = "value") -> Problem:
        """Build a Problem at the key or value of `path`, or at the nearest enclosing key that exists."""
        line, column = self.place(path, at=at)
        return Problem(self.file, line, column, written(path), what)

    def place(self, path: KeyPath, *, at: Literal["key", "value"] = "value") -> tuple[int, int]:
        """Return line and column, from 1."""
        node, place = self.root, (self.root.line, self.root.column)
        for part in path:
            if isinstance(part, int) and node.kind == "list" and part < len(node.items):
                node = node.items[part]
                place = (node.line, node.column)
            elif isinstance(part, str) and part in node.entries:
                entry = node.entries[part]
                node = entry.value
                # A block or a missing value starts on a later line; people look for its key.
                use_key = at == "key" or node.kind in ("mapping", "list", "null")
                place = (entry.line, entry.column) if use_key else (node.line, node.column)
            else:
                break
        return place


def written(path: KeyPath) -> str:
    """Format a key path as in upstreams.verl.git[0]."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{cleaned(part)}"
    return text.removeprefix(".")


def read(path: Path, model: type[T]) -> Loaded[T]:
    """Load the manifest in a file. Raises InvalidManifest with every error in it."""
    return loads(file_bytes(path), model, shown(path))


def loads(data: bytes, model: type[T], file: str) -> Loaded[T]:
    """Like `read`, from bytes; `file` is the name in messages."""
    positions, faults = tree(data, file)
    positions = Positions(file, shorthand.written_out(positions.root, model))
    kind: Any = model
    refused = _refusals(positions.root, shape_of(kind), ())
    refusals = [positions.problem(path, what, at=at) for path, what, at in refused]
    # A key whose value is malformed is not missing as well.
    told = {fault.key for fault in faults}
    problems = [*faults, *(r for r in refusals if not (r.key in told and r.what.startswith(MISSING)))]
    if problems:
        raise InvalidManifest(problems)
    value: T = build(model, positions.root.plain())
    return Loaded(value, positions)


def tree(data: bytes, file: str) -> tuple[Positions, list[Problem]]:
    """Return positions and syntax errors only. Raises InvalidManifest if the file is not YAML as we accept it."""
    try:
        root, faults = yamltree.parse(data)
    except yamltree.Unreadable as error:
        raise InvalidManifest([Problem(file, error.line, error.column, "", error.what)]) from None
    return Positions(file, root), [Problem(file, f.line, f.column, written(f.path), f.what) for f in faults]


def positions_of(path: Path) -> Positions:
    """Return the positions of a file's keys, whatever their values. Raises InvalidManifest."""
    return tree(file_bytes(path), shown(path))[0]


Refusal = tuple[KeyPath, str, Literal["key", "value"]]
"""A type error: its path, the message, and whether it is about the key or the value."""


def _refusals(node: YamlNode, shape: Shape, path: KeyPath) -> Iterator[Refusal]:
    """Yield every type error in a value, except what was refused for its syntax."""
    if node.kind == "refused" or (node.kind == "null" and shape.nullable):
        return
    if shape.is_record and node.kind == "mapping":
        yield from _in_record(node, shape, path)
    elif shape.origin is list and node.kind == "list":
        item = shape_of(shape.args[0])
        for index, child in enumerate(node.items):
            yield from _refusals(child, item, (*path, index))
    elif shape.origin is dict and node.kind == "mapping":
        key, value = (shape_of(a) for a in shape.args)
        for name, entry in node.entries.items():
            if not key.takes_text(name):
                yield (*path, name), f"invalid key; expected {expects(key)}", "key"
            yield from _refusals(entry.value, value, (*path, name))
    elif not _takes(shape, node):
        found = f"expected {expects(shape)}; found {node.found()}{_advice(path, node, shape)}"
        yield path, found, "value"


def _in_record(node: YamlNode, shape: Shape, path: KeyPath) -> Iterator[Refusal]:
    fields = fields_of(shape.base)
    for name, field in fields.items():
        if name in node.entries:
            yield from _refusals(node.entries[name].value, field.shape, (*path, name))
        elif field.required:
            yield (*path, name), f"{MISSING}; expected {expects(field.shape)}", "value"
    for name in node.entries:
        if name not in fields:
            yield (*path, name), f"unknown key{did_you_mean(name, fields)}", "key"


def _takes(shape: Shape, node: YamlNode) -> bool:
    """Whether a scalar is of this type; a mapping or list never is."""
    if shape.base is int:
        only, value = shape.mark(Only), node.plain()
        return type(value) is int and (only is None or value == only.value)
    if shape.origin is Literal:
        return node.kind == "text" and node.text in shape.args
    return shape.base is str and node.kind == "text" and shape.takes_text(node.text)


def _advice(path: KeyPath, node: YamlNode, shape: Shape) -> str:
    """Return a hint on fixing a value of the wrong type, or ""."""
    from patchctl.terminal.text import redact_text

    if node.kind in ("number", "boolean") and shape.base is str:
        return f'; quote it: "{node.text}"' if shape.takes_text(node.text) else ""
    if path[-1:] == ("schema",) and node.kind == "number":
        return f"; this patchctl reads format {FORMAT}"
    if shape.origin is Literal and node.kind == "text":
        near = nearest(node.text, shape.args)
        return f"; did you mean '{near}'?" if near else ""
    if shape.base is str and node.kind == "text" and redact_text(node.text) != node.text:
        return " (its credentials are not shown)"
    # With a truncated id or a trailing blank, the length is the first thing to look at.
    is_id = shape.mark(Pattern) in DIGESTS
    return f" ({len(node.text)} characters)" if is_id and node.kind == "text" else ""
