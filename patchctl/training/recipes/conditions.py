"""What rules ask of a recipe: a few forms of conditions over named facts, each of which says what it found; and of which versions of
upstreams something is true: conditions on the pins of a profile's stacks, never a release's name.

A fact is a key of the framework's configuration (or the default it has there), `env.NAME`, a size, or one of RECIPE_FACTS.

A pin has its source distribution's version, else the one that its tag names. A commit between releases has none, and nothing that
names versions of that upstream is true of it.

Expressions are + - * / // % min max over names and numbers, exactly; nothing is executed. Names may have dots, since rules
speak of keys of a configuration. Numbers are fractions, so that 5632.5 devices or tokens are an error instead of a rounded number.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from fractions import Fraction

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from patchctl.errors import PatchctlError
from patchctl.language import joined, message
from patchctl.manifest.diagnostics import Problem, did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded
from patchctl.manifest.types import Profile, Stack
from patchctl.training.recipes.grammar import items
from patchctl.training.recipes.types import Condition, RecipeRule, Rules

FACT = "stack."  # what begins so is the version of an upstream


def version_of(stack: Stack) -> str | None:
    """The version of a stack's pin."""
    if stack.pin.sdist is not None:
        return stack.pin.sdist.version
    found = re.search(r"[0-9].*", stack.pin.tag or "")
    return found[0] if found else None


def versions_of(dist: Distribution, profile: Profile) -> dict[str, str]:
    """The versions of a profile's stacks, by upstream, where they have one."""
    found = {upstream: version_of(stack) for upstream, stack in dist.stacks_of(profile).items()}
    return {upstream: version for upstream, version in found.items() if version is not None}


def true_of(conditions: Mapping[str, str], versions: Mapping[str, str]) -> bool:
    """Whether all upstreams that conditions name are of such versions."""
    return all(within(versions.get(upstream), limits) for upstream, limits in conditions.items())


def within(version: str | None, limits: str) -> bool:
    """Whether a version is such a one; none is not."""
    return version is not None and SpecifierSet(limits).contains(version, prereleases=True)


def table_of(name: str) -> tuple[str, dict[str, str]]:
    """The name of a table and its condition: all@verl>=0.9."""
    table, _, condition = name.partition("@")
    return table, condition_of(condition) if condition else {}


def condition_of(text: str) -> dict[str, str]:
    """The condition that verl>=0.9 is."""
    required = Requirement(text)
    return {required.name: str(required.specifier)}


RECIPE_FACTS = tuple(f"recipe.{name}" for name in ("needs", "module", "config", "folder", "data_sources", "reference"))
SIZES = ("nodes", "devices_per_node", "devices", "engine_devices", "engine_devices_per_node", "padded_batch")
ALL = "all"
_NULL = ("null", "None", "~")


@dataclass(frozen=True)
class Facts:
    """What is known of a recipe, by name. `defaults` stand behind what the recipe sets itself; `versions` are those of its stacks,
    and `renamed` has the names that keys have there."""

    values: Mapping[str, str]
    defaults: Mapping[str, str]
    versions: Mapping[str, str] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The value, or None where there is none or null."""
        said = self.values.get(name, self.values.get(self.renamed.get(name, name)))
        value = self.defaults.get(name) if said is None else said
        if said is None and value is not None and value.startswith("="):
            return self.text(value[1:].strip())
        return None if value is None or value in _NULL else value

    def on(self, name: str) -> bool:
        """Whether it is true."""
        return (self.text(name) or "").lower() == "true"

    def number(self, name: str) -> Fraction:
        """The number; a list of numbers stands for its largest. Raises BadExpression where it is neither."""
        text = self.text(name)
        found = [one for item in self.items(name) if (one := number(item.strip())) is not None]
        if not found or len(found) < len(self.items(name)):
            if text is None:
                raise BadExpression(message("{name} is not set, and a number is needed", name=name))
            raise BadExpression(message("{name} is {value}, and a number is needed", name=name, value=quoted(text)))
        return max(found)

    def items(self, name: str) -> list[str]:
        """The items of a value that is a list."""
        return [item for item in items(self.text(name) or "") if item]


def defaults_for(rules: Rules, config: str, versions: Mapping[str, str]) -> dict[str, str]:
    """What the framework of these versions does by itself under one of its configurations. A table of versions comes after those
    that are true of all, and one of a configuration after that of all configurations."""
    tables = [(table_of(name), values) for name, values in rules.defaults.items()]
    found: dict[str, str] = {}
    for versioned in (False, True):
        for wanted in (ALL, config):
            for (name, condition), values in tables:
                if name == wanted and bool(condition) == versioned and true_of(condition, versions):
                    found |= values
    return found


def renamed_in(rules: Rules, versions: Mapping[str, str]) -> dict[str, str]:
    """The keys that these versions have under another name."""
    found: dict[str, str] = {}
    for condition, names in rules.renamed.items():
        if true_of(condition_of(condition), versions):
            found |= names
    return found


def same(one: str, other: str) -> bool:
    """Whether a framework would read two texts as the same value."""
    left, right = number(one), number(other)
    if left is not None and right is not None:
        return left == right
    return one.lower() == other.lower() if one.lower() in ("true", "false") else one == other


def misses(condition: Condition, facts: Facts) -> str | None:
    """What is not so, as "X is Y, ..."; None where all of the condition holds. Raises BadExpression."""
    return next(_missed(condition, facts), None)


def names_of(rule: RecipeRule) -> list[str]:
    """Every name that a rule reads. Raises BadExpression."""
    return [*names_in(rule.must), *names_in(rule.when or Condition())]


def names_in(condition: Condition) -> list[str]:
    """Every name that a condition reads. Raises BadExpression."""
    tables = (condition.equals, condition.differs, condition.contains, condition.lacks, condition.among)
    found = [name for table in tables for name in table]
    found += [*condition.given, *condition.absent]
    return found + [name for text in condition.holds for name in compared(text)]


def faults(loaded: Loaded[Rules], upstreams: Collection[str]) -> Iterator[Problem]:
    """Names that no rule can mean, since nothing gives them a value: a misspelt key would make a rule that never breaks. And
    conditions on an upstream that there is not: such a rule would never be asked."""
    named: list[tuple[tuple[str, ...], str]] = [
        (("rules", name, "of", one), one) for name, rule in loaded.value.rules.items() for one in rule.of
    ]
    named += [(("defaults", name), one) for name in loaded.value.defaults for one in table_of(name)[1]]
    named += [(("renamed", name), one) for name in loaded.value.renamed for one in condition_of(name)]
    for path, one in named:
        if one not in upstreams:
            yield loaded.positions.problem(path, f"no upstream {quoted(one)}{did_you_mean(one, upstreams)}", at="key")
    known = {*RECIPE_FACTS, *SIZES, *(key for table in loaded.value.defaults.values() for key in table)}
    known |= {name for names in loaded.value.renamed.values() for name in names.values()}
    for rule_name, rule in loaded.value.rules.items():
        for part, condition in (("when", rule.when), ("must", rule.must)):
            path = ("rules", rule_name, part)
            try:
                names = names_in(condition or Condition())
            except BadExpression as error:
                yield loaded.positions.problem(path, str(error))
                continue
            for name in names:
                if name not in known and not name.startswith("env."):
                    yield loaded.positions.problem(path, f"no fact {quoted(name)}{did_you_mean(name, known)}")
        for part, samples in (("good", rule.good), ("bad", rule.bad)):
            path = ("rules", rule_name, part)
            if not samples:
                yield loaded.positions.problem(path, "expected one sample at least", at="key")
            for index, name in ((index, name) for index, sample in enumerate(samples) for name in sample):
                if name not in known and not name.startswith(("env.", FACT)):
                    what = f"no fact {quoted(name)}{did_you_mean(name, known)}"
                    yield loaded.positions.problem((*path, index, name), what, at="key")


def _missed(condition: Condition, facts: Facts) -> Iterator[str]:
    for table, wanted in ((condition.equals, True), (condition.differs, False)):
        for name, values in table.items():
            found = facts.text(name)
            if any(value in _NULL if found is None else same(found, value) for value in values) != wanted:
                said = _is(name, found)
                yield message("{found}, not {values}", found=said, values=joined(values, " or ")) if wanted else said
    yield from (message("{name} is not set", name=name) for name in condition.given if facts.text(name) is None)
    yield from (_is(name, found) for name in condition.absent if (found := facts.text(name)) is not None)
    for text in condition.holds:
        if not holds(text, facts.number):
            left, right = map(_shown, sides(text, facts.number))
            said = " ".join(text.split())
            yield message("{condition} does not hold: {left} and {right}", condition=said, left=left, right=right)
    for name, parts in condition.contains.items():
        found = facts.text(name)
        if not any(part in (found or "") for part in parts):
            yield message("{found}, without {parts}", found=_is(name, found), parts=joined(parts, " or "))
    for name, parts in condition.lacks.items():
        found = facts.text(name)
        said = _is(name, found)
        yield from (message("{found}, with {part}", found=said, part=part) for part in parts if part in (found or ""))
    for name, patterns in condition.among.items():
        for item in facts.items(name):
            if not any(fnmatchcase(item, pattern) for pattern in patterns):
                shown, allowed = quoted(item), joined(patterns)
                yield message("{name} has {item}, which is none of {patterns}", name=name, item=shown, patterns=allowed)


def _is(name: str, found: str | None) -> str:
    shown = name.removeprefix("env.")
    if found is None:
        return message("{name} is not set", name=shown)
    return message("{name} is {value}", name=shown, value=found)


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"


MAX_LENGTH = 400

_Lookup = Callable[[str], Fraction]


class BadExpression(PatchctlError):
    """The expression cannot be read or computed; says why."""


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
    """The number that a text is, or None; of one with an exponent of four digits Fraction would make as many zeros."""
    if re.search(r"[eE][+-]?[0-9_]{4}", text):
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


def evaluate(text: str, lookup: _Lookup) -> Fraction:
    """The value of an expression. `lookup` gives the number of a name, or raises BadExpression."""
    return _value(_parsed(text), lookup)


def whole(text: str, lookup: _Lookup) -> int:
    """As `evaluate`; what is no whole number is an error, never rounded."""
    value = evaluate(text, lookup)
    if value.denominator != 1:
        raise BadExpression(f"{text.strip()} is {float(value):g}, and a whole number is needed")
    return value.numerator


def holds(text: str, lookup: _Lookup) -> bool:
    """Whether a comparison of two expressions holds."""
    return _COMPARISONS[type(_comparison(text).ops[0])](*sides(text, lookup))


def sides(text: str, lookup: _Lookup) -> tuple[Fraction, Fraction]:
    """The two values that a comparison compares, for a message."""
    node = _comparison(text)
    return _value(node.left, lookup), _value(node.comparators[0], lookup)


def compared(text: str) -> list[str]:
    """The names in a comparison, each once, in order. Raises BadExpression where it is none."""
    return list(dict.fromkeys(_names(_comparison(text))))


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


def _value(node: ast.expr, lookup: _Lookup) -> Fraction:
    name = _name(node)
    if name is not None:
        return lookup(name)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        if (found := number(str(node.value))) is not None:
            return found
        raise BadExpression(f"{ast.unparse(node)}: no number of this size")
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand, lookup)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        left, right = _value(node.left, lookup), _value(node.right, lookup)
        try:
            return _OPERATORS[type(node.op)](left, right)
        except ZeroDivisionError:
            raise BadExpression(message("a division by zero")) from None
    if isinstance(node, ast.Call):
        function = _FUNCTIONS.get(_name(node.func) or "")
        if function is None or node.keywords or not node.args:
            raise BadExpression(f"{ast.unparse(node)!r}: the functions are min(...) and max(...)")
        return function([_value(argument, lookup) for argument in node.args])
    raise BadExpression(f"{ast.unparse(node)!r}: only names, numbers, + - * / // %, min and max are allowed")


def _name(node: ast.AST) -> str | None:
    """A name, or names joined by dots."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = _name(node.value)
        return None if owner is None else f"{owner}.{node.attr}"
    return None


def _names(node: ast.AST) -> Iterator[str]:
    if (name := _name(node)) is not None:
        yield name
        return
    for child in node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node):
        yield from _names(child)
