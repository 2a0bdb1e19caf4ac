"""Compares the signatures of upstream names that patches use, between two trees: a patch can apply and still break.

Works on syntax trees; nothing is imported. A use is followed through imports and re-exports to the upstream file that
defines it: functions, classes with their constructor, methods through base classes, fields, constants. Variables are
followed only if their class is evident (`config: RolloutConfig`, `x = Thing()`, `self`). Annotations are ignored;
names, order, kinds and defaults of parameters count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeGuard

from patchctl.doc import Doc
from patchctl.drift.api_index import Found, Module, Modules, Reader, module_name
from patchctl.patch.parse import Hunk

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
        if called is not None:
            for one in node.targets:
                if isinstance(one, ast.Name):
                    self._scopes[-1][one.id] = called
        value = self._known(node.value.id) if isinstance(node.value, ast.Name) else called
        for one in node.targets:
            if _is_of_self(one) and value is not None:
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


def _is_of_self(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
