"""Value classes as the standard library's dataclasses make them, without its import and without compiling code for each.

`dataclasses` loads inspect, ast and dis, and compiles five functions a class: half a millisecond for each of the hundred classes
that a run declares, most of which it never makes one of. Here one `__init__` serves all. A class becomes a dataclass of the
standard library, in its place, as soon as anybody asks for `__dataclass_fields__`: `dataclasses.asdict`, pydantic.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import asdict as asdict
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, kw_only: bool = False
    ) -> Any:
        """`dataclasses.dataclass`. `slots` saves memory there, and nothing here."""
        if cls is None:
            return lambda one: _made(one, frozen, kw_only)
        return _made(cls, frozen, kw_only)

    def field(*, default_factory: Callable[[], Any]) -> Any:
        """`dataclasses.field`, of which only this is used."""
        return _Factory(default_factory)

    def replace(value: Any, /, **changes: Any) -> Any:
        """`dataclasses.replace`."""
        cls = type(value)
        if not isinstance(cls.__dict__.get("__dataclass_fields__"), _Fields):
            import dataclasses

            return dataclasses.replace(value, **changes)
        return cls(**{name: getattr(value, name) for name in cls.__value_names__} | changes)

    def asdict(value: Any) -> Any:
        """`dataclasses.asdict` of what JSON can hold: leaves are not copied."""
        return {name: _plain(getattr(value, name)) for name in field_names(type(value))}


def field_names(cls: type) -> tuple[str, ...]:
    """The names of a value class's fields, in order."""
    names: tuple[str, ...] | None = cls.__dict__.get("__value_names__")
    if names is None:
        import dataclasses

        return tuple(f.name for f in dataclasses.fields(cls))
    return names


def defaults_of(cls: type) -> tuple[frozenset[str], dict[str, Any]]:
    """The fields that need not be given, and the values of those that have one and do not make it anew each time."""
    found: dict[str, Any] | None = cls.__dict__.get("__value_defaults__")
    if found is not None:
        return frozenset(found), {n: v for n, v in found.items() if not isinstance(v, _Factory)}
    import dataclasses

    fields = dataclasses.fields(cls)
    plain = {f.name: f.default for f in fields if f.default is not dataclasses.MISSING}
    return frozenset(plain) | {f.name for f in fields if f.default_factory is not dataclasses.MISSING}, plain


def is_value_class(kind: Any) -> bool:
    """Whether it is one of these classes, or a dataclass of the standard library."""
    return isinstance(kind, type) and ("__value_names__" in kind.__dict__ or hasattr(kind, "__dataclass_fields__"))


class _Factory:
    """Stands in a class for a field whose default is made anew each time."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


class _Fields:
    """`__dataclass_fields__` of a class that is none of the standard library's yet."""

    def __init__(self, frozen: bool, kw_only: bool) -> None:
        self.settings = {"frozen": frozen, "kw_only": kw_only}

    def __get__(self, value: Any, cls: type) -> Any:
        import dataclasses

        owner = next(c for c in cls.__mro__ if c.__dict__.get("__dataclass_fields__") is self)
        for name in ("__dataclass_fields__", *owner.__value_methods__):  # type: ignore[attr-defined]
            delattr(owner, name)
        for name, default in list(vars(owner).items()):
            if isinstance(default, _Factory):
                setattr(owner, name, dataclasses.field(default_factory=default.make))
        dataclasses.dataclass(**self.settings)(owner)
        return cls.__dataclass_fields__  # type: ignore[attr-defined]


def _made(cls: type, frozen: bool, kw_only: bool) -> type:
    names: list[str] = []
    defaults: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        for name, annotation in base.__dict__.get("__annotations__", {}).items():  # noqa: RUF063 - inspect is what shall not load
            if "ClassVar" in str(annotation):
                continue
            if name not in names:
                names.append(name)
            if name in base.__dict__:
                defaults[name] = base.__dict__[name]
    methods: dict[str, Any] = {"__init__": _init(tuple(names), defaults, kw_only), "__repr__": _repr, "__eq__": _eq}
    if frozen:
        methods |= {"__hash__": _hash, "__setattr__": _no_set, "__delattr__": _no_delete}
    elif "__hash__" not in cls.__dict__:
        methods["__hash__"] = None
    own = [name for name in methods if name not in cls.__dict__]
    for name in own:
        setattr(cls, name, methods[name])
    cls.__value_defaults__ = defaults  # type: ignore[attr-defined]
    cls.__value_names__ = tuple(names)  # type: ignore[attr-defined]
    cls.__value_methods__ = tuple(own)  # type: ignore[attr-defined]
    cls.__dataclass_fields__ = _Fields(frozen, kw_only)  # type: ignore[attr-defined]
    return cls


def _init(names: tuple[str, ...], defaults: dict[str, Any], kw_only: bool) -> Callable[..., None]:
    plain = {name: value for name, value in defaults.items() if not isinstance(value, _Factory)}
    factories = {name: value.make for name, value in defaults.items() if isinstance(value, _Factory)}
    known, count = frozenset(names), len(names)

    def __init__(self: Any, /, *args: Any, **given: Any) -> None:  # noqa: N807
        values = self.__dict__
        if args:
            if kw_only or len(args) > count:
                raise TypeError(f"{type(self).__name__}() takes {0 if kw_only else count} positional arguments")
            values.update(zip(names, args, strict=False))
            if len(args) == count and not given:
                return
        for name in given:
            if name in values or name not in known:
                raise TypeError(f"{type(self).__name__}() got {name!r} twice, or has no such argument")
        values.update(given)
        if len(values) < count:
            for name in names:
                if name not in values:
                    if name in factories:
                        values[name] = factories[name]()
                    elif name in plain:
                        values[name] = plain[name]
                    else:
                        raise TypeError(f"{type(self).__name__}() lacks the argument {name!r}")

    return __init__


def _repr(self: Any) -> str:
    values = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(type(self)))
    return f"{type(self).__qualname__}({values})"


def _values(value: Any) -> tuple[Any, ...]:
    return tuple(getattr(value, name) for name in field_names(type(value)))


def _eq(self: Any, other: object) -> Any:
    return _values(self) == _values(other) if other.__class__ is self.__class__ else NotImplemented


def _hash(self: Any) -> int:
    return hash(_values(self))


def _no_set(self: Any, name: str, value: Any) -> None:
    raise _frozen(f"cannot assign to field {name!r}")


def _no_delete(self: Any, name: str) -> None:
    raise _frozen(f"cannot delete field {name!r}")


def _frozen(what: str) -> AttributeError:
    from dataclasses import FrozenInstanceError

    return FrozenInstanceError(what)


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bytes, type(None))):
        return value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(_plain, value))
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return asdict(value) if hasattr(type(value), "__value_names__") or _is_dataclass(value) else value


def _is_dataclass(value: Any) -> bool:
    return "dataclasses" in sys.modules and hasattr(type(value), "__dataclass_fields__")
