"""What the dataclasses of `types` look like from outside: fields, what each expects, building them from plain data.

One reading of the annotations for the loader's messages, the validated cache and the JSON Schema.
"""

from __future__ import annotations

import functools
import re
import types as python_types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from patchctl.doc import Doc
from patchctl.manifest.types import Only, Pattern

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A type without its wrapping: `base` is the bare type, `marks` the markers of every Annotated around it."""

    base: Any
    marks: tuple[Any, ...] = ()
    nullable: bool = False

    def mark(self, kind: type[T]) -> T | None:
        """The outermost marker of a kind, or None."""
        return next((m for m in self.marks if isinstance(m, kind)), None)

    @property
    def origin(self) -> Any:
        return get_origin(self.base) or self.base

    @property
    def args(self) -> tuple[Any, ...]:
        return get_args(self.base)

    @property
    def is_record(self) -> bool:
        return isinstance(self.base, type) and is_dataclass(self.base)

    def takes_text(self, text: str) -> bool:
        """Whether the text matches the pattern, where the type has one."""
        pattern = self.mark(Pattern)
        return pattern is None or re.fullmatch(pattern.regex, text) is not None


@dataclass(frozen=True)
class Field:
    """A key of a manifest: what it holds, and whether it has to be there."""

    name: str
    shape: Shape
    required: bool
    default: Any


@functools.cache
def shape_of(annotation: Any) -> Shape:
    """Takes Annotated and `| None` off a type, however they are nested."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner = shape_of(get_args(annotation)[0])
        # The outermost comes last in an Annotated: read it first.
        return Shape(inner.base, (*reversed(annotation.__metadata__), *inner.marks), inner.nullable)
    if origin in (Union, python_types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) != 1:
            raise TypeError(f"manifests have no unions but with null: {annotation}")
        inner = shape_of(members[0])
        return Shape(inner.base, inner.marks, True)
    return Shape(annotation)


@functools.cache
def fields_of(record: type) -> Mapping[str, Field]:
    """The fields of one of our dataclasses, in order."""
    hints = get_type_hints(record, include_extras=True)
    found = {}
    for field in fields(record):
        default = None if field.default is MISSING else field.default
        required = field.default is MISSING and field.default_factory is MISSING
        found[field.name] = Field(field.name, shape_of(hints[field.name]), required, default)
    return found


def expects(shape: Shape) -> str:
    """What a person has to write for this type, as the object of "expected ..."."""
    text = _expects_bare(shape)
    return f"{text}, or null" if shape.nullable else text


def _expects_bare(shape: Shape) -> str:
    pattern, only = shape.mark(Pattern), shape.mark(Only)
    if pattern is not None:
        return pattern.says
    if only is not None:
        return str(only.value)
    if shape.is_record:
        return f"a mapping with {', '.join(fields_of(shape.base))}"
    if shape.origin is list:
        return "a list"
    if shape.origin is dict:
        return "a mapping"
    if shape.origin is Literal:
        return " or ".join(f"'{a}'" for a in shape.args)
    return "a whole number" if shape.origin is int else "a text"


def build(annotation: Any, data: Any) -> Any:
    """The dataclasses of plain data that was validated before. Raises TypeError, KeyError where it was not."""
    return _build(shape_of(annotation), data)


def _build(shape: Shape, data: Any) -> Any:
    if data is None and shape.nullable:
        return None
    if shape.is_record:
        fields = fields_of(shape.base)
        return shape.base(**{key: _build(fields[key].shape, value) for key, value in data.items()})
    if shape.origin is list:
        item = shape_of(shape.args[0])
        return [_build(item, value) for value in _a(list, data)]
    if shape.origin is dict:
        item = shape_of(shape.args[1])
        return {_a(str, key): _build(item, value) for key, value in _a(dict, data).items()}
    if shape.origin is Literal:
        return data
    return _a(shape.base, data)


def _a(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind):
        raise TypeError(f"expected {kind}, found {type(data)}")
    return data


def doc(shape: Shape) -> str | None:
    """What the key is for, where the definition says it."""
    found = shape.mark(Doc)
    return found.text if found else None
