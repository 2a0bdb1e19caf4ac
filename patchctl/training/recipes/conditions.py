"""What rules ask of a recipe: a few forms of conditions over named facts, each of which says what it found; and of which versions of
upstreams something is true: conditions on the pins of a profile's stacks, never a release's name.

A fact is a key of the framework's configuration (or the default it has there), `env.NAME`, a size, or one of RECIPE_FACTS.

A pin has its source distribution's version, else the one that its tag names. A commit between releases has none, and nothing that
names versions of that upstream is true of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from fractions import Fraction

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from patchctl.language import joined, message
from patchctl.manifest.diagnostics import Problem, did_you_mean, quoted
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded
from patchctl.manifest.types import Profile, Stack
from patchctl.training.recipes.arithmetic import BadExpression, compared, holds, number, sides
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
    return all(_within(versions.get(upstream), limits) for upstream, limits in conditions.items())


def is_of(stack: Stack, limits: str) -> bool:
    """Whether a stack's pin is of such a version; one without a version is of none."""
    return _within(version_of(stack), limits)


def _within(version: str | None, limits: str) -> bool:
    return version is not None and SpecifierSet(limits).contains(version, prereleases=True)


def table_of(name: str) -> tuple[str, dict[str, str]]:
    """The name of a table and its condition: all@verl>=0.9."""
    table, _, condition = name.partition("@")
    return table, condition_of(condition) if condition else {}


def condition_of(text: str) -> dict[str, str]:
    """The condition that verl>=0.9 is."""
    required = Requirement(text)
    return {required.name: str(required.specifier)}


RECIPE_FACTS = ("recipe.needs", "recipe.module", "recipe.config", "recipe.folder", "recipe.data_sources")
SIZES = ("nodes", "devices_per_node", "devices", "engine_devices")
ALL = "all"
_NULL = ("null", "None", "~")


class Facts:
    """What is known of a recipe, by name. `defaults` stand behind what the recipe sets itself; `versions` are those of its stacks,
    and `renamed` has the names that keys have there."""

    def __init__(
        self,
        values: Mapping[str, str],
        defaults: Mapping[str, str],
        versions: Mapping[str, str] | None = None,
        renamed: Mapping[str, str] | None = None,
    ) -> None:
        self._values = values
        self._defaults = defaults
        self._renamed = renamed or {}
        self.versions: Mapping[str, str] = versions or {}

    def text(self, name: str) -> str | None:
        """The value, or None where there is none or null."""
        said = self._values.get(name, self._values.get(self._renamed.get(name, name)))
        value = self._defaults.get(name) if said is None else said
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
    return next((found for check in _CHECKS for found in check(condition, facts)), None)


def names_in(condition: Condition) -> list[str]:
    """Every name that a condition reads. Raises BadExpression."""
    tables = (condition.equals, condition.differs, condition.contains, condition.lacks, condition.among)
    found = [name for table in tables for name in table]
    found += [*condition.given, *condition.absent]
    return found + [name for text in condition.holds for name in compared(text)]


def faults(loaded: Loaded[Rules], upstreams: Collection[str]) -> Iterator[Problem]:
    """Names that no rule can mean, since nothing gives them a value: a misspelt key would make a rule that never breaks."""
    yield from _upstream_faults(loaded, upstreams)
    known = {*RECIPE_FACTS, *SIZES, *(key for table in loaded.value.defaults.values() for key in table)}
    known |= {name for names in loaded.value.renamed.values() for name in names.values()}
    for rule_name, rule in loaded.value.rules.items():
        for part, condition in (("when", rule.when), ("must", rule.must)):
            path = ("rules", rule_name, part)
            try:
                unknown = [n for n in names_in(condition or Condition()) if n not in known and not n.startswith("env.")]
            except BadExpression as error:
                yield loaded.positions.problem(path, str(error))
                continue
            for name in unknown:
                yield loaded.positions.problem(path, f"no fact {quoted(name)}{did_you_mean(name, known)}")
        yield from _sample_faults(loaded, rule_name, rule, known)


def _upstream_faults(loaded: Loaded[Rules], upstreams: Collection[str]) -> Iterator[Problem]:
    """Conditions on an upstream that there is not: such a rule would never be asked."""
    named: list[tuple[tuple[str, ...], str]] = [
        (("rules", name, "of", one), one) for name, rule in loaded.value.rules.items() for one in rule.of
    ]
    named += [(("defaults", name), one) for name in loaded.value.defaults for one in table_of(name)[1]]
    named += [(("renamed", name), one) for name in loaded.value.renamed for one in condition_of(name)]
    for path, one in named:
        if one not in upstreams:
            yield loaded.positions.problem(path, f"no upstream {quoted(one)}{did_you_mean(one, upstreams)}", at="key")


def _sample_faults(loaded: Loaded[Rules], rule_name: str, rule: RecipeRule, known: set[str]) -> Iterator[Problem]:
    for part, samples in (("good", rule.good), ("bad", rule.bad)):
        if not samples:
            yield loaded.positions.problem(("rules", rule_name, part), "expected one sample at least", at="key")
        for index, sample in enumerate(samples):
            for name in sample:
                if name not in known and not name.startswith(("env.", FACT)):
                    what = f"no fact {quoted(name)}{did_you_mean(name, known)}"
                    yield loaded.positions.problem(("rules", rule_name, part, index, name), what, at="key")


def _equals(condition: Condition, facts: Facts) -> Iterator[str]:
    for name, values in condition.equals.items():
        found = facts.text(name)
        if not any(value in _NULL if found is None else same(found, value) for value in values):
            yield message("{found}, not {values}", found=_is(name, found), values=joined(values, " or "))


def _differs(condition: Condition, facts: Facts) -> Iterator[str]:
    for name, values in condition.differs.items():
        found = facts.text(name)
        if any(value in _NULL if found is None else same(found, value) for value in values):
            yield _is(name, found)


def _given(condition: Condition, facts: Facts) -> Iterator[str]:
    yield from (message("{name} is not set", name=name) for name in condition.given if facts.text(name) is None)


def _absent(condition: Condition, facts: Facts) -> Iterator[str]:
    yield from (_is(name, found) for name in condition.absent if (found := facts.text(name)) is not None)


def _holds(condition: Condition, facts: Facts) -> Iterator[str]:
    for text in condition.holds:
        if not holds(text, facts.number):
            left, right = sides(text, facts.number)
            yield message(
                "{condition} does not hold: {left} and {right}",
                condition=" ".join(text.split()),
                left=_shown(left),
                right=_shown(right),
            )


def _contains(condition: Condition, facts: Facts) -> Iterator[str]:
    for name, parts in condition.contains.items():
        found = facts.text(name)
        if not any(part in (found or "") for part in parts):
            yield message("{found}, without {parts}", found=_is(name, found), parts=joined(parts, " or "))


def _lacks(condition: Condition, facts: Facts) -> Iterator[str]:
    for name, parts in condition.lacks.items():
        found = facts.text(name)
        said = _is(name, found)
        yield from (message("{found}, with {part}", found=said, part=part) for part in parts if part in (found or ""))


def _among(condition: Condition, facts: Facts) -> Iterator[str]:
    for name, patterns in condition.among.items():
        for item in facts.items(name):
            if not any(fnmatchcase(item, pattern) for pattern in patterns):
                yield message(
                    "{name} has {item}, which is none of {patterns}",
                    name=name,
                    item=quoted(item),
                    patterns=joined(patterns),
                )


_CHECKS: tuple[Callable[[Condition, Facts], Iterator[str]], ...] = (
    _equals,
    _differs,
    _given,
    _absent,
    _holds,
    _contains,
    _lacks,
    _among,
)


def _is(name: str, found: str | None) -> str:
    shown = name.removeprefix("env.")
    if found is None:
        return message("{name} is not set", name=shown)
    return message("{name} is {value}", name=shown, value=found)


def _shown(value: Fraction) -> str:
    return str(value.numerator) if value.denominator == 1 else f"{float(value):g}"
