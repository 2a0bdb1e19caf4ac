"""Loads one manifest: bytes to a tree with positions, checked against the annotations of a dataclass.

One run reports every error with its place, what was expected and found, and the nearest known name.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from patchctl.manifest import yamltree
from patchctl.manifest.diagnostics import InvalidManifest, Problem, cleaned, did_you_mean, nearest, shown
from patchctl.manifest.files import file_bytes
from patchctl.manifest.typeinfo import Shape, build, expects, fields_of, shape_of
from patchctl.manifest.types import DIGESTS, FORMAT, OneOrMore, Only, Pattern, Written
from patchctl.manifest.yamltree import KeyPath, MappingEntry, YamlNode

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
    """Load the manifest in a file. Raises InvalidManifest with every error in it.

    Releases share most files, and a run that looks at several reads each once.
    """
    kind: Any = model
    loaded: Loaded[T] = _loaded(file_bytes(path), kind, shown(path))
    return loaded


@functools.cache
def _loaded(data: bytes, model: type[Any], file: str) -> Loaded[Any]:
    return loads(data, model, file)


def loads(data: bytes, model: type[T], file: str) -> Loaded[T]:
    """Like `read`, from bytes; `file` is the name in messages."""
    positions, faults = tree(data, file)
    positions = Positions(file, _long_form(positions.root, model))
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


def _long_form(root: YamlNode, model: Any) -> YamlNode:
    """Return the tree with every short form expanded, so that no type needs a union. Positions stay those of the file.

    Short forms: a record written as one of its values, a list written as its only item, and values kept as written
    because another parser reads them.
    """
    return _expanded(root, shape_of(model))


def _expanded(node: YamlNode, shape: Shape) -> YamlNode:
    if shape.is_record:
        return _expanded_record(node, shape)
    if shape.origin is list:
        return _expanded_list(node, shape)
    if shape.origin is dict and node.kind == "mapping":
        inner = shape_of(shape.args[1])
        return _with_entries(node, {k: _expanded(e.value, inner) for k, e in node.entries.items()})
    return _as_written(node) if shape.mark(Written) else node


def _expanded_record(node: YamlNode, shape: Shape) -> YamlNode:
    short = getattr(shape.base, "__shorthand__", None)
    fields = fields_of(shape.base)
    if node.kind != "mapping":
        if short is None or node.kind == "refused":
            return node
        value = _expanded(node, fields[short].shape)
        return YamlNode("mapping", node.line, node.column, entries={short: MappingEntry(node.line, node.column, value)})
    known = {k: _expanded(e.value, fields[k].shape) if k in fields else e.value for k, e in node.entries.items()}
    return _with_entries(node, known)


def _expanded_list(node: YamlNode, shape: Shape) -> YamlNode:
    inner = shape_of(shape.args[0])
    if node.kind == "list":
        return replace(node, items=[_expanded(item, inner) for item in node.items])
    if shape.mark(OneOrMore) and node.kind not in ("mapping", "refused") and (node.kind != "null" or node.text):
        return YamlNode("list", node.line, node.column, items=[_expanded(node, inner)])
    return node


def _with_entries(node: YamlNode, values: dict[str, YamlNode]) -> YamlNode:
    return replace(node, entries={k: replace(e, value=values[k]) for k, e in node.entries.items()})


def _as_written(node: YamlNode) -> YamlNode:
    """Return a scalar's text verbatim, and a list of scalars as [a,b]. An empty value stays null."""
    if node.kind in ("number", "boolean") or (node.kind == "null" and node.text):
        return replace(node, kind="text")
    if node.kind == "list" and all(item.kind in ("text", "number", "boolean") for item in node.items):
        return YamlNode("text", node.line, node.column, f"[{','.join(item.text for item in node.items)}]")
    return node


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
    """Whether a scalar has this type; a mapping or list never is."""
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
    if node.kind == "null" and shape.origin is list:
        return "; write [] for none"
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
