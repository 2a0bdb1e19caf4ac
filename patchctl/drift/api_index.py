"""Resolves dotted names in one upstream tree, by its syntax trees, to a definition and its signature."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

Reader = Callable[[str], "bytes | None"]
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEPEST = 12
_MOST_PARSED = 4096


@dataclass(frozen=True)
class Found:
    """What a name leads to: its full name where it is defined, its file, and its signature."""

    name: str
    file: str
    signature: str


def module_name(path: str) -> str:
    """The dotted name of a file as an interpreter in the tree's top folder imports it."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Module:
    """The top level of one file: what it defines, and where what it imports comes from."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        self.name, self.path = name, path
        self.defined: dict[str, ast.stmt] = {}
        self.imports: dict[str, tuple[str, ...]] = {}
        self.stars: list[tuple[str, ...]] = []
        for node in _statements(tree.body):
            self._take(node)

    def absolute(self, node: ast.ImportFrom) -> tuple[str, ...]:
        """The module that `from ... import` names."""
        own = self.name.split(".")
        above = own if self.path.endswith("/__init__.py") else own[:-1]
        base = above[: len(above) - node.level + 1] if node.level else []
        return (*base, *(node.module.split(".") if node.module else ()))

    def _take(self, node: ast.stmt) -> None:
        if isinstance(node, (*_Function, ast.ClassDef)):
            self.defined[node.name] = node
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self.defined.setdefault(target.id, node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            self.defined.setdefault(node.target.id, node)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                parts = tuple(alias.name.split("."))
                self.imports[alias.asname or parts[0]] = parts if alias.asname else parts[:1]
        elif isinstance(node, ast.ImportFrom):
            base = self.absolute(node)
            for alias in node.names:
                if alias.name == "*":
                    self.stars.append(base)
                else:
                    self.imports[alias.asname or alias.name] = (*base, alias.name)


def _statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run at the top of a module, those in `if`, `try` and `with` among them."""
    for node in body:
        if isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _statements(node.body)
            yield from _statements(getattr(node, "orelse", ()))
            for handler in getattr(node, "handlers", ()):
                yield from _statements(handler.body)
        else:
            yield node


@lru_cache(maxsize=_MOST_PARSED)
def _parsed(path: str, data: bytes) -> Module | None:
    try:
        return Module(module_name(path), path, ast.parse(data))
    except (SyntaxError, ValueError, RecursionError):
        return None


class Modules:
    """A tree, read file by file as names lead there."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._known: dict[str, Module | None] = {}
        self._found: dict[tuple[str, ...], Found | None] = {}

    def find(self, target: tuple[str, ...]) -> Found | None:
        """What a dotted name leads to; of `module.Class.attribute.more` as much as can be followed, but no module by itself.
        None where it leads nowhere in this tree."""
        if target not in self._found:
            self._found[target] = self._follow(target, 0)
        return self._found[target]

    def _follow(self, target: tuple[str, ...], depth: int) -> Found | None:
        if depth > _DEEPEST:
            return None
        for cut in range(len(target) - 1, 0, -1):
            module = self._module(".".join(target[:cut]))
            if module is not None:
                return self._in_module(module, target[cut:], depth)
        return None

    def _in_module(self, module: Module, names: tuple[str, ...], depth: int) -> Found | None:
        first, rest = names[0], names[1:]
        if first in module.defined:
            return self._defined(module, first, rest, depth)
        if first in module.imports:
            target = (*module.imports[first], *rest)
            return None if target == (*module.name.split("."), *names) else self._follow(target, depth + 1)
        found = (self._follow((*base, *names), depth + 1) for base in module.stars)
        return next((one for one in found if one is not None), None)

    def _defined(self, module: Module, name: str, rest: tuple[str, ...], depth: int) -> Found | None:
        node = module.defined[name]
        full = f"{module.name}.{name}"
        if isinstance(node, ast.ClassDef):
            if rest:
                return self._member(module, node, rest[0], depth)
            return Found(full, module.path, f"class {name}({self._made_with(module, node, depth)})")
        if isinstance(node, _Function):
            return Found(full, module.path, _signature(node))
        return Found(full, module.path, name)

    def _member(self, module: Module, node: ast.ClassDef, name: str, depth: int) -> Found | None:
        """A method, a field or an attribute, in the class or in one above it."""
        full = f"{module.name}.{node.name}.{name}"
        for one in _statements(node.body):
            if isinstance(one, _Function) and one.name == name:
                return Found(full, module.path, _signature(one))
            if name in _targets(one):
                return Found(full, module.path, name)
        if name in _set_on_self(node):
            return Found(full, module.path, f"self.{name}")
        if depth < _DEEPEST:
            for base in node.bases:
                target = self._named(module, base)
                found = self._follow((*target, name), depth + 1) if target else None
                if found is not None and found.name.rpartition(".")[2] == name:
                    return found
        return None

    def _made_with(self, module: Module, node: ast.ClassDef, depth: int) -> str:
        """What it takes to make one: the parameters of __init__, of the class or one above, else the annotated fields."""
        made = self._member(module, node, "__init__", depth)
        if made is not None:
            return made.signature.partition("(")[2].removesuffix(")")
        fields = [f for f in node.body if isinstance(f, ast.AnnAssign) and isinstance(f.target, ast.Name)]
        return ", ".join(
            f"{f.target.id}=..." if f.value else f.target.id for f in fields if isinstance(f.target, ast.Name)
        )

    def _named(self, module: Module, node: ast.expr) -> tuple[str, ...] | None:
        """The full name of an expression like `Base` or `package.Base`."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = module.imports.get(node.id) or (
            (*module.name.split("."), node.id) if node.id in module.defined else None
        )
        return None if root is None else (*root, *reversed(parts))

    def _module(self, name: str) -> Module | None:
        if name not in self._known:
            stem = name.replace(".", "/")
            paths = (f"{stem}.py", f"{stem}/__init__.py")
            found = ((path, data) for path in paths if (data := self._read(path)) is not None)
            path, data = next(found, ("", b""))
            self._known[name] = _parsed(path, data) if path else None
        return self._known[name]


def _signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """`def name(a, b=1, *, c)`: no annotations; the decorators that change how it is called."""
    kinds = [d.id for d in node.decorator_list if isinstance(d, ast.Name) and d.id in _CALLED_OTHERWISE]
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    return f"{''.join(f'@{kind} ' for kind in kinds)}{word} {node.name}({_parameters(node.args)})"


_CALLED_OTHERWISE = {"property", "staticmethod", "classmethod", "contextmanager"}


def _parameters(args: ast.arguments) -> str:
    plain = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(plain) - len(args.defaults)) + list(args.defaults)
    shown = [_parameter(a.arg, d) for a, d in zip(plain, defaults, strict=True)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    if args.vararg:
        shown.append(f"*{args.vararg.arg}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [_parameter(a.arg, d) for a, d in zip(args.kwonlyargs, args.kw_defaults, strict=True)]
    return ", ".join([*shown, *([f"**{args.kwarg.arg}"] if args.kwarg else [])])


def _parameter(name: str, default: ast.expr | None) -> str:
    return name if default is None else f"{name}={ast.unparse(default)}"


def _targets(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [t.id for t in targets if isinstance(t, ast.Name)]


@lru_cache(maxsize=_MOST_PARSED)
def _set_on_self(node: ast.ClassDef) -> frozenset[str]:
    """The attributes that methods of a class set on `self`."""
    return frozenset(
        one.attr
        for one in ast.walk(node)
        if isinstance(one, ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    )
