"""What verbs print with `--json`: dataclasses whose fields and properties say by `Doc` what they mean."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

from patchctl.doc import Doc, Spread
from patchctl.manifest.typeinfo import Shape, fields_of, shape_of
from patchctl.terminal.text import visible_line


@dataclass(frozen=True)
class Key:
    """A key of an object: the attribute that has its value (of a spread record, after a dot), and what it holds."""

    name: str
    attribute: str
    shape: Shape
    doc: Doc


@functools.cache
def keys_of(record: type) -> tuple[Key, ...]:
    """The keys of a dataclass, in order: its fields, then its properties."""
    shapes = {name: field.shape for name, field in fields_of(record).items()}
    for name, value in vars(record).items():
        if isinstance(value, property):
            shapes[name] = shape_of(get_type_hints(value.fget, include_extras=True)["return"])
    found: list[Key] = []
    for name, shape in shapes.items():
        if shape.mark(Spread):
            found += [replace(key, attribute=f"{name}.{key.attribute}") for key in keys_of(shape.base)]
        elif doc := shape.mark(Doc):
            found.append(Key(doc.key or name, name, shape, doc))
    return tuple(found)


def to_json(record: Any) -> dict[str, Any]:
    """A dataclass as plain data for `json`."""
    kind: type = type(record)
    values = ((key, attrgetter(key.attribute)(record)) for key in keys_of(kind))
    return {key.name: _plain(value, key.doc) for key, value in values if not (key.doc.optional and value is None)}


def _plain(value: Any, doc: Doc) -> Any:
    if isinstance(value, str):
        return visible_line(value) if doc.line else value
    if isinstance(value, Mapping):
        return {name: _plain(item, doc) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, doc) for item in value]
    if is_dataclass(value):
        row = to_json(value)
        return list(row.values()) if doc.pairs else row
    return str(value) if isinstance(value, Path) else value
