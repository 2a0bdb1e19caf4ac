"""JSON Schemas of the manifests, for editors, generated from the loader's dataclasses and committed.

Draft 7, which the YAML language server supports best, without references, so that every key keeps its own
description. They cover single files; only the tool can check that files fit each other.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from patchctl import extension
from patchctl.manifest.requirement_types import RequirementSet
from patchctl.manifest.typeinfo import Shape, doc, fields_of, shape_of
from patchctl.manifest.types import OneOrMore, Only, Pattern, Practice, Profile, Release, Stack, Upstreams, Written

FOLDER = Path("manifests") / "schema"
_OWN: dict[str, type] = {
    "upstreams": Upstreams,
    "stack": Stack,
    "profile": Profile,
    "release": Release,
    "practice": Practice,
    "requirements": RequirementSet,
}


def models() -> dict[str, type]:
    """Return the class of each kind of manifest, including those of extensions."""
    found = dict(_OWN)
    for name in (name for other in extension.registered() for name in other.schemas):
        found |= extension.load(name)
    return found


def schema(model: type) -> dict[str, Any]:
    """Return the schema of one kind of manifest."""
    title = f"patchctl: {model.__name__.lower()}"
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_schema(shape_of(model))}


def texts() -> dict[Path, str]:
    """Return the schema files by path below a distribution's root. The same bytes everywhere."""
    return {
        FOLDER / f"{name}.schema.json": json.dumps(schema(model), indent=2, ensure_ascii=False) + "\n"
        for name, model in models().items()
    }


def _schema(shape: Shape) -> dict[str, Any]:
    bare = _bare(shape)
    if shape.nullable:
        bare = {"anyOf": [bare, {"type": "null"}]}
    description = doc(shape)
    return {"description": description, **bare} if description else bare


def _bare(shape: Shape) -> dict[str, Any]:
    pattern, only = shape.mark(Pattern), shape.mark(Only)
    if shape.mark(Written) and pattern is not None:
        return _written(pattern)
    if pattern is not None:
        # The YAML language server shows `patternErrorMessage`; other readers ignore it.
        says = f"expected {pattern.says}"
        return {"type": "string", "pattern": f"^(?:{pattern.regex})$", "patternErrorMessage": says}
    if only is not None:
        return {"const": only.value}
    if shape.is_record:
        return _record(shape.base)
    if shape.origin is list:
        items = {"type": "array", "items": _schema(shape_of(shape.args[0]))}
        return {"anyOf": [items, items["items"]]} if shape.mark(OneOrMore) else items
    if shape.origin is dict:
        key, value = (shape_of(a) for a in shape.args)
        return {"type": "object", "propertyNames": _schema(key), "additionalProperties": _schema(value)}
    if shape.origin is Literal:
        return {"enum": list(shape.args)}
    return {"type": "string"}


def _written(pattern: Pattern) -> dict[str, Any]:
    """Return the schema of a value kept as written: what `load` accepts for it."""
    plain = [{"type": "string", "pattern": f"^(?:{pattern.regex})$"}, {"type": "number"}, {"type": "boolean"}]
    return {"anyOf": [*plain, {"type": "null"}, {"type": "array", "items": {"anyOf": plain}}]}


def _record(record: type) -> dict[str, Any]:
    fields = fields_of(record)
    found: dict[str, Any] = {"type": "object", "properties": {name: _schema(f.shape) for name, f in fields.items()}}
    required = [name for name, f in fields.items() if f.required]
    if required:
        found["required"] = required
    found["additionalProperties"] = False
    short = getattr(record, "__shorthand__", None)
    return {"anyOf": [_schema(fields[short].shape), found]} if short else found
