"""Expands short forms of a manifest before validation, so that no type needs a union.

Short forms: a record written as one of its values, a list written as its only item, and values kept as written
because another parser reads them. Positions stay those of the file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from patchctl.manifest.shape import Shape, fields_of, shape_of
from patchctl.manifest.types import OneOrMore, Written
from patchctl.manifest.yamltree import MappingEntry, YamlNode


def written_out(root: YamlNode, model: Any) -> YamlNode:
    """Return the tree with every short form expanded."""
    return _expanded(root, shape_of(model))


def _expanded(node: YamlNode, shape: Shape) -> YamlNode:
    if shape.is_record:
        return _record(node, shape)
    if shape.origin is list:
        return _list(node, shape)
    if shape.origin is dict and node.kind == "mapping":
        inner = shape_of(shape.args[1])
        return _with_entries(node, {k: _expanded(e.value, inner) for k, e in node.entries.items()})
    return _as_written(node) if shape.mark(Written) else node


def _record(node: YamlNode, shape: Shape) -> YamlNode:
    short = getattr(shape.base, "__shorthand__", None)
    fields = fields_of(shape.base)
    if node.kind != "mapping":
        if short is None or node.kind == "refused":
            return node
        value = _expanded(node, fields[short].shape)
        return YamlNode("mapping", node.line, node.column, entries={short: MappingEntry(node.line, node.column, value)})
    known = {k: _expanded(e.value, fields[k].shape) if k in fields else e.value for k, e in node.entries.items()}
    return _with_entries(node, known)


def _list(node: YamlNode, shape: Shape) -> YamlNode:
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
