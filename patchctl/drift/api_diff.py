"""Compares the signatures of upstream names that patches use, between two trees: a patch can apply and still break.

Works on syntax trees; nothing is imported. A use is followed through imports and re-exports to the upstream file that
defines it: functions, classes with their constructor, methods through base classes, fields, constants. Variables are
followed only if their class is evident (`config: RolloutConfig`, `x = Thing()`, `self`). Annotations are ignored;
names, order, kinds and defaults of parameters count.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeGuard

from patchctl.doc import Doc
from patchctl.patch.parse import Hunk

Reader = Callable[[str], "bytes | None"]
_Function = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEPEST = 12
_MOST_PARSED = 4096


@dataclass(frozen=True)
class Found:
    """What a name leads to: its full name where it is defined, and its signature."""

    name: str
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
        for name in _targets(node):
            self.defined.setdefault(name, node)


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
            return Found(full, f"class {name}({self._made_with(module, node, depth)})")
        if isinstance(node, _Function):
            return Found(full, _signature(node))
        return Found(full, name)

    def _member(self, module: Module, node: ast.ClassDef, name: str, depth: int) -> Found | None:
        """A method, a field or an attribute, in the class or in one above it."""
        full = f"{module.name}.{node.name}.{name}"
        for one in _statements(node.body):
            if isinstance(one, _Function) and one.name == name:
                return Found(full, _signature(one))
            if name in _targets(one):
                return Found(full, name)
        if name in _set_on_self(node):
            return Found(full, f"self.{name}")
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
        fields = (f for f in node.body if isinstance(f, ast.AnnAssign))
        return ", ".join(f"{name}=..." if f.value else name for f in fields for name in _targets(f))

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
    return frozenset(one.attr for one in ast.walk(node) if _is_of_self(one) and isinstance(one.ctx, ast.Store))


_SUPER = "super()"
_Scope = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class PatchedSource:
    """A Python file written by a patch: its path in the tree, its patched content, and the patch's lines (from 1; None
    for all, as in a carried file).
    """

    path: str
    data: bytes
    lines: frozenset[int] | None = None


@dataclass(frozen=True)
class ApiChange:
    """An upstream name that changed."""

    name: Annotated[str, Doc("fully qualified name, such as `package.module.Class.method`")]
    was: Annotated[str, Doc("signature on the stack's own base")]
    now: Annotated[str | None, Doc("signature on the release; null if the name is gone")]
    file: Annotated[str, Doc("patched or carried file that uses the name")]
    line: Annotated[int, Doc("first line of that file that uses it")]


def written_lines(hunks: Sequence[Hunk]) -> frozenset[int]:
    """Return the lines of the new file that these hunks write."""
    found: set[int] = set()
    for hunk in hunks:
        line = hunk.new_start
        for mark in hunk.marks:
            if mark == ord("+"):
                found.add(line)
            line += mark != ord("-")
    return frozenset(found)


def changed_names(
    sources: Sequence[PatchedSource], old: Reader, new: Reader, tops: frozenset[str] | None = None
) -> list[ApiChange]:
    """Return the names used by these sources that the old tree has and that are removed or changed in the new one.

    With `tops`, only names that begin with one of them. A reader returns the content of a path of its tree, or None.
    """
    before, after = Modules(old), Modules(new)
    found: dict[str, ApiChange] = {}
    for source in sources:
        for use in uses(source):
            was = before.find(use.target) if tops is None or use.target[0] in tops else None
            if was is None or was.name in found:
                continue
            now = after.find(use.target)
            said = None if now is None else _counts(now, use)
            if said != _counts(was, use):
                found[was.name] = ApiChange(was.name, _counts(was, use), said, source.path, use.line)
    return sorted(found.values(), key=lambda c: (c.file, c.line, c.name))


@dataclass(frozen=True)
class Use:
    """A dotted name that may be defined elsewhere, as a full chain (`pkg`, `module`, `Class`, `method`). `called`: it is called."""

    target: tuple[str, ...]
    line: int
    called: bool = False


def _counts(found: Found, use: Use) -> str:
    """Return the part of a signature that matters to a use: only the name of a class that is not instantiated."""
    return (
        found.signature if use.called or not found.signature.startswith("class ") else found.signature.partition("(")[0]
    )


def uses(source: PatchedSource) -> Iterator[Use]:
    """Yield every name used in these lines of a source, called names first; none if the file is not Python."""
    for use in _uses(source.path, source.data):
        if source.lines is None or use.line in source.lines:
            yield use


@lru_cache(maxsize=1024)
def _uses(path: str, data: bytes) -> tuple[Use, ...]:
    try:
        tree = ast.parse(data)
    except (SyntaxError, ValueError, RecursionError):
        return ()
    walk = _Uses(Module(module_name(path), path, tree))
    walk.visit(tree)
    return tuple(sorted(walk.found, key=lambda use: not use.called))


class _Uses(ast.NodeVisitor):
    """Walks a file, tracking what each name refers to in its scope."""

    def __init__(self, module: Module) -> None:
        self.found: list[Use] = []
        own = tuple(module.name.split("."))
        self._scopes: list[_Scope] = [{name: (*own, name) for name in module.defined}]
        self._scopes[0] |= {name: tuple(t) for name, t in module.imports.items()}
        self._own: list[_Scope] = [self._scopes[0]]  # of the enclosing classes: the known types of `self.name`
        self._bases: dict[tuple[str, ...], tuple[set[str], list[tuple[str, ...]]]] = {}
        self._module = module

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        base = self._module.absolute(node)
        for alias in node.names:
            target = (*base, alias.name)
            self._scopes[-1][alias.asname or alias.name] = target
            self.found.append(Use(target, node.lineno))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            parts = tuple(alias.name.split("."))
            self._scopes[-1][alias.asname or parts[0]] = parts if alias.asname else parts[:1]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for one in (*node.bases, *node.decorator_list, *(k.value for k in node.keywords)):
            self.visit(one)
        own = (*self._module.name.split("."), node.name)
        bases = [b for b in map(self._chain, node.bases) if b is not None]
        methods = [one for one in node.body if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))]
        self._bases[own] = ({one.name for one in methods}, bases)
        # an overriding method is called like the one it overrides
        overriding = [one for one in methods if not one.name.startswith("__")]
        self.found += [Use((*base, one.name), one.lineno) for one in overriding for base in bases]
        scope = {"self": own, "cls": own, _SUPER: (*own, _SUPER)}
        self._scopes.append(scope)
        self._own.append(scope)
        for inner in node.body:
            self.visit(inner)
        self._own.pop()
        self._scopes.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for one in (*node.decorator_list, node.args):
            self.visit(one)
        scope: _Scope = {}
        for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if arg.annotation is not None and (target := self._annotated(arg.annotation)) is not None:
                scope[arg.arg] = target
        self._scopes.append(scope)
        for one in node.body:
            self.visit(one)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        called = self._chain(node.value.func) if isinstance(node.value, ast.Call) else None
        if called is not None and not called[-1][:1].isupper():
            called = None
        value = self._known(node.value.id) if isinstance(node.value, ast.Name) else called
        for one in node.targets:
            if isinstance(one, ast.Name) and called is not None:
                self._scopes[-1][one.id] = called
            elif _is_of_self(one) and value is not None:
                self._own[-1][f"self.{one.attr}"] = value

    def visit_Call(self, node: ast.Call) -> None:
        chain = self._chain(node.func)
        if chain is not None:
            self._note(chain, node.func.lineno, called=True)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        chain = self._chain(node)
        if chain is None:
            self.generic_visit(node)
        else:
            self._note(chain, node.lineno)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and (chain := self._chain(node)) is not None:
            self._note(chain, node.lineno)

    def _note(self, chain: tuple[str, ...], line: int, *, called: bool = False) -> None:
        """Record a use; for an inherited member, also of the base class."""
        self.found.append(Use(chain, line, called))
        for cut in range(len(chain) - 1, 0, -1):
            if chain[:cut] in self._bases:
                members, bases = self._bases[chain[:cut]]
                rest = chain[cut:]
                above = rest[1:] if rest[0] == _SUPER else rest if rest[0] not in members else ()
                self.found += [Use((*base, *above), line, called) for base in bases if above]
                return

    def _annotated(self, node: ast.expr) -> tuple[str, ...] | None:
        if isinstance(node, ast.BinOp):  # Thing | None
            return self._annotated(node.left)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id == "Optional":
            return self._annotated(node.slice)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            return self._known(node.value)
        return self._chain(node)

    def _chain(self, node: ast.expr) -> tuple[str, ...] | None:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super":
            root = self._known(_SUPER)
        else:
            root = self._known(node.id) if isinstance(node, ast.Name) else None
            is_self = isinstance(node, ast.Name) and node.id == "self"
            if is_self and parts and (typed := self._known(f"self.{parts[-1]}")):
                root = typed
                parts.pop()
        return None if root is None else (*root, *reversed(parts))

    def _known(self, name: str) -> tuple[str, ...] | None:
        return next((scope[name] for scope in reversed(self._scopes) if name in scope), None)


def _is_of_self(node: ast.AST) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
