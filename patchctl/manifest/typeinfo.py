"""Introspection of the dataclasses in `types`: their fields, what each expects, building them from plain data and from JSON files
of ours, and what verbs print of them with `--json`.

The loader's messages, the cache and the JSON Schema share this one reading of the annotations.
"""

from __future__ import annotations

import functools
import json
import re
import types as python_types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from patchctl.doc import Doc, Spread
from patchctl.manifest.types import Only, Pattern
from patchctl.terminal.text import visible_line

T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A type without Annotated and Optional: the bare type `base` and the markers of all Annotated around it."""

    base: Any
    marks: tuple[Any, ...] = ()
    nullable: bool = False

    def mark(self, kind: type[T]) -> T | None:
        """Return the outermost marker of a kind, or None."""
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
        """Whether the text matches the type's pattern, if it has one."""
        pattern = self.mark(Pattern)
        return pattern is None or re.fullmatch(pattern.regex, text) is not None


@dataclass(frozen=True)
class Field:
    """A key of a manifest: its type, and whether it is required."""

    name: str
    shape: Shape
    required: bool
    default: Any


@functools.cache
def shape_of(annotation: Any) -> Shape:
    """Strip Annotated and `| None` off a type, however nested."""
    origin = get_origin(annotation)
    if origin is Annotated:
        inner = shape_of(get_args(annotation)[0])
        # Annotated lists the outermost last.
        return Shape(inner.base, (*reversed(annotation.__metadata__), *inner.marks), inner.nullable)
    if origin in (Union, python_types.UnionType):
        members = [a for a in get_args(annotation) if a is not type(None)]
        if len(members) != 1:
            return Shape(annotation)
        inner = shape_of(members[0])
        return Shape(inner.base, inner.marks, True)
    return Shape(annotation)


@functools.cache
def fields_of(record: type) -> Mapping[str, Field]:
    """Return the fields of one of our dataclasses, in order."""
    hints = get_type_hints(record, include_extras=True)
    found = {}
    for field in fields(record):
        default = None if field.default is MISSING else field.default
        required = field.default is MISSING and field.default_factory is MISSING
        found[field.name] = Field(field.name, shape_of(hints[field.name]), required, default)
    return found


def expects(shape: Shape) -> str:
    """Describe what to write for this type, as the object of "expected ..."."""
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
    return "an integer" if shape.origin is int else "a string"


def build(annotation: Any, data: Any, *, others: bool = False) -> Any:
    """The dataclasses of plain data. Raises TypeError, KeyError, ValueError where it is not as they say; `others` keys may be there."""
    return _reader(shape_of(annotation), others)(data)


_Reader = Callable[[Any], Any]


@functools.cache
def _reader(shape: Shape, others: bool) -> _Reader:
    """What reads data of a type. Made once: to ask the type at each value took eight times as long, of every lock in every run."""
    read = _bare_reader(shape, others)
    return (lambda data: None if data is None else read(data)) if shape.nullable else read


def _bare_reader(shape: Shape, others: bool) -> _Reader:
    if shape.is_record:
        record, known = shape.base, {n: _reader(field.shape, others) for n, field in fields_of(shape.base).items()}
        if others:
            return lambda data: record(**{k: known[k](v) for k, v in _a(dict, data).items() if k in known})
        return lambda data: record(**{key: known[key](value) for key, value in _a(dict, data).items()})
    if shape.origin is Literal:
        return functools.partial(_one_of, shape)
    inner = [_reader(shape_of(a), others) for a in shape.args if a is not ...]
    if shape.origin in (Union, python_types.UnionType):  # a record or a text
        record, text = inner if shape_of(shape.args[0]).is_record else reversed(inner)
        return lambda data: (record if isinstance(data, dict) else text)(data)
    if shape.origin is dict:
        return lambda data: {inner[0](key): inner[1](value) for key, value in _a(dict, data).items()}
    if shape.origin in (list, tuple) and len(inner) == 1:
        return lambda data: shape.origin([inner[0](value) for value in _a(list, data)])
    if shape.origin is tuple:
        return lambda data: tuple([read(value) for read, value in zip(inner, _a(list, data), strict=True)])
    pattern = shape.mark(Pattern)
    return (
        functools.partial(_matching, shape, re.compile(pattern.regex)) if pattern else lambda data: _a(shape.base, data)
    )


def _matching(shape: Shape, pattern: re.Pattern[str], data: Any) -> Any:
    if pattern.fullmatch(_a(str, data)) is None:
        raise ValueError(f"{data!r} is not {_expects_bare(shape)}")
    return data


def _one_of(shape: Shape, data: Any) -> Any:
    if not any(type(data) is type(one) and data == one for one in shape.args):  # 1.0 and True are no 1
        raise ValueError(f"{data!r} is not {_expects_bare(shape)}")
    return data


def _a(kind: Any, data: Any) -> Any:
    if not isinstance(data, kind) or (isinstance(data, bool) and kind is not bool):
        raise TypeError(f"expected {kind}, found {type(data)}")
    return data


def doc(shape: Shape) -> str | None:
    """Return a key's description, if its definition has one."""
    found = shape.mark(Doc)
    return found.text if found else None


class BadRecord(ValueError):
    """Why a file is not what its class says. `version` is the one that it has, where that is another than is known here."""

    def __init__(self, why: str, version: object = None) -> None:
        super().__init__(why)
        self.version = version


def parse(kind: type[T], text: str | bytes, version: tuple[str, object] | None = None, *, others: bool = False) -> T:
    """A record of `kind`. `version`: the key that has the version, and the one that is known; it is no field. `others`: keys that
    the class does not have are passed over. Raises BadRecord."""
    try:
        data = json.loads(text)
        found = data.pop(version[0]) if version else None
        if version and (found != version[1] or isinstance(found, bool)):
            raise BadRecord(f"{version[0]} {version[1]!r} was expected and {found!r} found", found)
        record: T = build(kind, data, others=others)
    except BadRecord:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRecord(str(error) or "a value is missing") from error
    return record


# Fits a path with its digest, or a whole run of a proof.
_WIDTH = 160


def laid_out(value: Any, depth: int = 0, before: int = 0, *, ascii_only: bool = True, sort: bool = True) -> str:
    """JSON for readable diffs: an object on one line if it fits _WIDTH, else one line per member.

    `before` is how many characters precede it on its line.
    """
    line = json.dumps(value, ensure_ascii=ascii_only, sort_keys=sort)
    if not isinstance(value, dict) or before + len(line) <= _WIDTH:
        return line
    members = []
    for name in sorted(value) if sort else value:
        start = f"{' ' * (depth + 1)}{json.dumps(name)}: "
        members.append(start + laid_out(value[name], depth + 1, len(start), ascii_only=ascii_only, sort=sort))
    return "{\n" + ",\n".join(members) + f"\n{' ' * depth}}}"


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
