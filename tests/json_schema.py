"""Values against JSON Schemas. The keywords that ours use are known, and any other fails, so that tests need no further package.

Patterns are searched as ECMAScript does: `$` is the very end. A key that a record's schema does not have is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "null": type(None),
    "integer": int,
    "number": (int, float),
    "boolean": bool,
}
SILENT = {"$schema", "$defs", "title", "description", "patternErrorMessage"}


def faults(schema: dict[str, Any], value: Any, where: str = "", root: dict[str, Any] | None = None) -> Iterator[str]:
    """Why a value is not of a schema; `root` is the schema whose `$defs` are referred to."""
    for name, rule in schema.items():
        if name not in SILENT:
            yield from _keyword(schema, name, rule, value, where, root or schema)


def _keyword(
    schema: dict[str, Any], name: str, rule: Any, value: Any, where: str, root: dict[str, Any]
) -> Iterator[str]:
    if name == "$ref":
        yield from faults(root["$defs"][rule.removeprefix("#/$defs/")], value, where, root)
    elif name == "type":
        kinds = [rule] if isinstance(rule, str) else rule
        if not any(isinstance(value, TYPES[k]) and (k == "boolean" or not isinstance(value, bool)) for k in kinds):
            yield f"{where} is {value!r}, and {' or '.join(kinds)} is documented"
    elif name in ("const", "enum"):
        if isinstance(value, bool) or value not in (rule if name == "enum" else [rule]):
            yield f"{where} is {value!r}, not {rule}"
    elif name == "anyOf":
        if all(any(faults(option, value, where, root)) for option in rule):
            yield f"{where} is {value!r}, which is none of {rule}"
    elif name == "pattern":
        assert rule.endswith("$")
        if isinstance(value, str) and re.search(rule[:-1] + r"\Z", value) is None:
            yield f"{where} is {value!r}, not {rule}"
    elif isinstance(value, list) and name == "items":
        for number, item in enumerate(value):
            yield from faults(rule, item, f"{where}[{number}]", root)
    elif isinstance(value, list) and name in ("minItems", "maxItems"):
        if (len(value) < rule) if name == "minItems" else (len(value) > rule):
            yield f"{where} has {len(value)} items"
    elif isinstance(value, dict) and name == "required":
        yield from (f"{where} lacks {key}" for key in rule if key not in value)
    elif isinstance(value, dict) and name == "propertyNames":
        for key in value:
            yield from faults(rule, key, f"{where}, the name {key}", root)
    elif isinstance(value, dict) and name in ("properties", "additionalProperties"):
        known = schema.get("properties", {})
        if name == "properties" and "additionalProperties" in schema:
            return  # looked at with those
        rest = schema.get("additionalProperties") or False
        for key, item in value.items():
            if (inner := known.get(key, rest)) is False:
                yield f"{where}.{key} is not documented"
            else:
                yield from faults(inner, item, f"{where}.{key}", root)
    else:
        known_names = {
            "items",
            "minItems",
            "maxItems",
            "required",
            "propertyNames",
            "properties",
            "additionalProperties",
        }
        assert name in known_names, f"this validator does not know {name!r}"
