"""Expressions of recipes and rules: + - * / // % min max over names and numbers, exactly. Nothing is executed.

Names may have dots, since rules speak of keys of a configuration. Numbers are fractions, so that 5632.5 devices or tokens
are an error instead of a rounded number.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction

from patchctl.language import message

MAX_LENGTH = 400

Lookup = Callable[[str], Fraction]


class BadExpression(ValueError):
    """The expression cannot be read or computed; says why."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what


_OPERATORS: Mapping[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
    ast.Mod: operator.mod,
}
_COMPARISONS: Mapping[type[ast.cmpop], Callable[[Fraction, Fraction], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_FUNCTIONS: Mapping[str, Callable[[list[Fraction]], Fraction]] = {"min": min, "max": max}


def number(text: str) -> Fraction | None:
    """The number that a text is, or None."""
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def evaluate(text: str, lookup: Lookup) -> Fraction:
    """The value of an expression. `lookup` gives the number of a name, or raises BadExpression."""
    return _value(_parsed(text), lookup)


def whole(text: str, lookup: Lookup) -> int:
    """As `evaluate`; what is no whole number is an error, never rounded."""
    value = evaluate(text, lookup)
    if value.denominator != 1:
        raise BadExpression(f"{text.strip()} is {float(value):g}, and a whole number is needed")
    return value.numerator


def holds(text: str, lookup: Lookup) -> bool:
    """Whether a comparison of two expressions holds."""
    node = _comparison(text)
    left, right = _value(node.left, lookup), _value(node.comparators[0], lookup)
    return _COMPARISONS[type(node.ops[0])](left, right)


def sides(text: str, lookup: Lookup) -> tuple[Fraction, Fraction]:
    """The two values that a comparison compares, for a message."""
    node = _comparison(text)
    return _value(node.left, lookup), _value(node.comparators[0], lookup)


def compared(text: str) -> list[str]:
    """The names in a comparison, each once, in order. Raises BadExpression where it is none."""
    found: dict[str, None] = {}
    _collect(_comparison(text), found)
    return list(found)


def _parsed(text: str) -> ast.expr:
    if len(text) > MAX_LENGTH:
        raise BadExpression(f"an expression of more than {MAX_LENGTH} characters")
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise BadExpression(f"{text.strip()!r} is no expression") from None


def _comparison(text: str) -> ast.Compare:
    node = _parsed(text)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or type(node.ops[0]) not in _COMPARISONS:
        raise BadExpression(f"{text.strip()!r} is no comparison of two expressions (==, !=, <, <=, >, >=)")
    return node


def _value(node: ast.expr, lookup: Lookup) -> Fraction:
    name = _name(node)
    if name is not None:
        return lookup(name)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return Fraction(str(node.value))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, lookup)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, lookup), _value(node.right, lookup)
        try:
            return _OPERATORS[type(node.op)](left, right)
        except ZeroDivisionError:
            raise BadExpression(message("a division by zero")) from None
    if isinstance(node, ast.Call):
        return _call(node, lookup)
    raise BadExpression(f"{ast.unparse(node)!r}: only names, numbers, + - * / // %, min and max are allowed")


def _call(node: ast.Call, lookup: Lookup) -> Fraction:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _FUNCTIONS or node.keywords or not node.args:
        raise BadExpression(f"{ast.unparse(node)!r}: the functions are min(...) and max(...)")
    return _FUNCTIONS[name]([_value(argument, lookup) for argument in node.args])


def _name(node: ast.expr) -> str | None:
    """A name, or names joined by dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _collect(node: ast.AST, found: dict[str, None]) -> None:
    if isinstance(node, ast.expr) and (name := _name(node)) is not None:
        found[name] = None
        return
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for child in children:
        _collect(child, found)
