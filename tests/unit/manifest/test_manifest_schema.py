"""The checked-in schemas are in step, and they say what the loader says wherever one file can tell."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
from json_schema import faults

from patchctl.manifest import schema as made
from patchctl.manifest.typeinfo import build
from patchctl.manifest.yamltree import Unreadable, parse

REPOSITORY = Path(__file__).parents[3]
CORPUS = REPOSITORY / "tests" / "hostile" / "manifest"
# To a JSON Schema, 1.0 is the constant 1, and a key without a value has the value null.
EQUAL_IN_JSON = ("stack-schema_fraction", "recipe-value_missing")


def fits(schema: dict[str, Any], value: Any) -> bool:
    return not any(faults(schema, value))


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


@pytest.mark.parametrize("other", [1.0, True, "1"])
def test_a_value_that_equals_one_of_another_type_is_none(other: object) -> None:
    """JSON's 33188.0 is no file mode."""
    assert build(Literal[1, 2], 1) == 1
    with pytest.raises(ValueError, match="is not"):
        build(Literal[1, 2], other)
