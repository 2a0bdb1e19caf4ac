"""The checked-in schemas are in step, and they say what the loader says wherever one file can tell.

The validator below knows just the keywords that the schemas use, and fails on any other, so that the tests need no
further package. Patterns are searched as ECMAScript does: `$` is the very end.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from patchctl.manifest import schema as made
from patchctl.manifest.yamltree import Unreadable, parse

REPOSITORY = Path(__file__).parents[3]
CORPUS = REPOSITORY / "tests" / "hostile" / "manifest"
# To a JSON Schema, 1.0 is the constant 1, and a key without a value has the value null.
EQUAL_IN_JSON = ("stack-schema_fraction", "recipe-value_missing")
TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "null": type(None),
    "number": (int, float),
    "boolean": bool,
}
SILENT = {"$schema", "title", "description", "patternErrorMessage", "properties"}


def fits(schema: dict[str, Any], value: Any) -> bool:
    return all(_keyword(schema, name, rule, value) for name, rule in schema.items() if name not in SILENT)


def _keyword(schema: dict[str, Any], name: str, rule: Any, value: Any) -> bool:
    if name == "type":
        return isinstance(value, TYPES[rule]) and (rule == "boolean" or not isinstance(value, bool))
    if name == "const":
        return not isinstance(value, bool) and value == rule
    if name == "enum":
        return value in rule
    if name == "anyOf":
        return any(fits(option, value) for option in rule)
    if name == "pattern":
        assert rule.endswith("$")
        return not isinstance(value, str) or re.search(rule[:-1] + r"\Z", value) is not None
    if name == "items":
        return not isinstance(value, list) or all(fits(rule, item) for item in value)
    if name == "required":
        return not isinstance(value, dict) or all(key in value for key in rule)
    if name == "propertyNames":
        return not isinstance(value, dict) or all(fits(rule, key) for key in value)
    assert name == "additionalProperties", f"the validator of this test does not know {name!r}"
    known = schema.get("properties", {})
    if not isinstance(value, dict):
        return True
    rest = {k: v for k, v in value.items() if k not in known}
    return all(fits(known[k], v) for k, v in value.items() if k in known) and (
        not rest if rule is False else all(fits(rule, v) for v in rest.values())
    )


def model_of(path: Path) -> dict[str, Any]:
    return made.schema(made.models()[path.name.partition("-")[0]])


def values(folder: str) -> dict[Path, Any]:
    """The values of the corpus, less the files with a fault of form (an alias, a duplicate key), which no schema sees."""
    found = {}
    for path in sorted((CORPUS / folder).glob("*.yaml")):
        try:
            root, faults = parse(path.read_bytes())
        except Unreadable:
            continue
        if not faults and path.stem not in EQUAL_IN_JSON:
            found[path] = root.plain()
    return found


@pytest.mark.parametrize(("path", "value"), values("bad").items(), ids=lambda p: getattr(p, "stem", ""))
def test_what_the_loader_refuses_the_schema_refuses(path: Path, value: Any) -> None:
    assert not fits(model_of(path), value)


@pytest.mark.parametrize(("path", "value"), values("good").items(), ids=lambda p: getattr(p, "stem", ""))
def test_what_the_loader_takes_the_schema_takes(path: Path, value: Any) -> None:
    assert fits(model_of(path), value)


def test_the_checked_in_schemas_are_those_of_the_tool() -> None:
    """That their text is in step, `verify` says."""
    assert sorted(p.name for p in (REPOSITORY / made.FOLDER).iterdir()) == sorted(p.name for p in made.texts())


def test_every_key_is_described() -> None:
    def undescribed(schema: dict[str, Any], path: str) -> list[str]:
        found = [f"{path}.{k}" for k, v in schema.get("properties", {}).items() if "description" not in v]
        for key, inner in [
            *schema.get("properties", {}).items(),
            ("*", schema.get("additionalProperties")),
            ("[]", schema.get("items")),
        ]:
            for option in [inner, *inner.get("anyOf", [])] if isinstance(inner, dict) else []:
                found += undescribed(option, f"{path}.{key}")
        return found

    for name, model in made.models().items():
        assert undescribed(made.schema(model), name) == []
