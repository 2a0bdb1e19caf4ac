"""The types of recipes and their rules; `patchctl.manifest.types` explains the annotations.

They are not part of `ManifestContent`: apply, revert and verify of a workspace do not need recipes and must not fail
because of one that is being written. `patchctl.training.recipes.read` reads them on demand.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from patchctl.doc import Doc
from patchctl.manifest.types import (
    LIMIT,
    Address,
    Feature,
    FormatVersion,
    Name,
    OneOrMore,
    PackageRequirement,
    Pattern,
    RelativePath,
    Text,
    Value,
    Word,
)

Values = Annotated[list[Value], OneOrMore()]
Size = Annotated[str, Pattern(r"[a-z][a-z0-9_]*", "a name of lower-case letters, digits and '_'")]
Variable = Annotated[str, Pattern(r"[A-Z][A-Z0-9_]*", "the name of an environment variable, in capitals")]
Key = Annotated[
    str,
    Pattern(
        r"\+{0,2}[A-Za-z_][A-Za-z0-9_./@-]*",
        "a key of the framework's configuration, with + where it is new, or a group of its defaults (model@actor_rollout_ref.model)",
    ),
]
RecipeName = Annotated[
    str, Pattern(r"[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)?", "the name of a recipe, or PROFILE/RECIPE")
]
Module = Annotated[
    str, Pattern(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", "the dotted name of a Python module")
]


_LIMITS = rf"{LIMIT}(, ?{LIMIT})*"
Versions = Annotated[str, Pattern(_LIMITS, "limits of a version: '<0.9', '>=0.6,<0.9'")]
Requirement = Annotated[
    str, Pattern(rf"[a-z0-9][a-z0-9._-]*{_LIMITS}", "an upstream and limits of its version: verl>=0.9")
]
Table = Annotated[
    str,
    Pattern(
        rf"[A-Za-z_][A-Za-z0-9_]*(@[a-z0-9][a-z0-9._-]*{_LIMITS})?",
        "`all` or a configuration's name, with the versions that it is true of: all@verl>=0.9",
    ),
]


@dataclass(frozen=True)
class Setting:
    """A value and its source. A value without a reason of its own may be written alone."""

    value: Annotated[Value, Doc("The value; '= ...' computes it from sizes, '@NAME' is a path that the user provides.")]
    source: Annotated[Text | None, Doc("The source of the value: a practice document and its section.")] = None
    why: Annotated[Text | None, Doc("What it is for, or what goes wrong without it.")] = None
    ours: Annotated[Text | None, Doc("Why we chose the value, if no document gives it.")] = None
    __shorthand__ = "value"


@dataclass(frozen=True)
class PathParameter:
    """A file or folder that the user provides."""

    what: Annotated[Text, Doc("The contents.")]
    variable: Annotated[Variable, Doc("The environment variable with the path, if the path is not given.")]
    default: Annotated[Text | None, Doc("The default path.")] = None
    needs_packages: Annotated[
        list[PackageRequirement], Doc("Packages that the file imports and nothing else installs.")
    ] = field(default_factory=list)


@dataclass(frozen=True)
class DataSet:
    """A data set for training or validation."""

    name: Annotated[Text, Doc("The data set's published name.")]
    data_source: Annotated[Values, Doc("The values of its column data_source, which select the reward.")]
    note: Annotated[Text | None, Doc("Its origin, or anything to know about it.")] = None


@dataclass(frozen=True)
class EntryModule:
    """The framework's own entry module. None of our code runs in a training process."""

    module: Annotated[Module, Doc("The module that `python -m` runs.")]
    config: Annotated[Word, Doc("The configuration that the overrides apply to (--config-name).")]
    upstream: Annotated[Name, Doc("The upstream whose tree contains it.")]
    folder: Annotated[RelativePath | None, Doc("The working directory in that tree; null for the top.")] = None
    why: Annotated[Text | None, Doc("Why it must start there.")] = None


@dataclass(frozen=True)
class Recipe:
    """manifests/recipes/PROFILE/NAME.yaml: a way to train.

    Values of the extended recipe come first; a key set again here replaces the inherited value."""

    schema: FormatVersion
    name: Annotated[Name, Doc("The recipe's name, equal to this file's name.")]
    summary: Annotated[Text, Doc("What it trains and how, in one line.")]
    extends: Annotated[
        RecipeName | None, Doc("The recipe to inherit values from: one of this folder, or FOLDER/RECIPE.")
    ] = None
    of: Annotated[
        dict[Name, Versions],
        Doc(
            "Upstreams, with the versions (of the stacks' pins) that the recipe, and what extends it, is for; if omitted,"
            " all versions."
        ),
    ] = field(default_factory=dict)
    without: Annotated[list[Text], Doc("Inherited keys, variables, sizes and needs to remove.")] = field(
        default_factory=list
    )
    source: Annotated[Text | None, Doc("The source of every value in this file that does not name its own.")] = None
    needs: Annotated[
        list[Feature], Doc("Features of the profile that the recipe's settings switch on, or that it requires.")
    ] = field(default_factory=list)
    needs_packages: Annotated[
        list[PackageRequirement], Doc("Packages that its settings make the framework import.")
    ] = field(default_factory=list)
    sizes: Annotated[
        dict[Size, Setting], Doc("Numbers for use in expressions; at least nodes and devices_per_node.")
    ] = field(default_factory=dict)
    environment: Annotated[dict[Variable, Setting], Doc("Environment variables, the same on every node.")] = field(
        default_factory=dict
    )
    of_each_node: Annotated[
        dict[Variable, Text], Doc("Variables that each node sets for itself, each with a description of the value.")
    ] = field(default_factory=dict)
    overrides: Annotated[dict[Key, Setting], Doc("Keys of the framework's configuration.")] = field(
        default_factory=dict
    )
    paths: Annotated[dict[Size, PathParameter], Doc("Files and folders that the user provides.")] = field(
        default_factory=dict
    )
    data: Annotated[dict[Name, DataSet], Doc("The data sets: train and, if used, validation.")] = field(
        default_factory=dict
    )
    entry: Annotated[EntryModule | None, Doc("What to start.")] = None
    limits: Annotated[
        list[Text], Doc("Known or suspected limitations at these pins; shown wherever the recipe is.")
    ] = field(default_factory=list)
    stops: Annotated[
        list[Text], Doc("Limitations that prevent any run until resolved: preflight fails until they are accepted.")
    ] = field(default_factory=list)
    note: Annotated[Text | None, Doc("Additional information for readers.")] = None


@dataclass(frozen=True)
class Condition:
    """A condition on a recipe: every part must be true. Names are keys, `env.NAME`, sizes and facts."""

    equals: Annotated[dict[Text, Values], Doc("Names, each with the values it may have.")] = field(default_factory=dict)
    differs: Annotated[dict[Text, Values], Doc("Names, each with the values it must not have.")] = field(
        default_factory=dict
    )
    given: Annotated[list[Text], Doc("Names that must have a value other than null.")] = field(default_factory=list)
    absent: Annotated[list[Text], Doc("Names that must be unset or null.")] = field(default_factory=list)
    holds: Annotated[
        list[Text],
        Doc("Comparisons of two expressions, such as a + b <= 2 * c; a list of numbers counts as its maximum."),
    ] = field(default_factory=list)
    contains: Annotated[
        dict[Text, Values], Doc("Names, each with strings of which its value contains at least one.")
    ] = field(default_factory=dict)
    lacks: Annotated[dict[Text, Values], Doc("Names, each with strings that its value must not contain.")] = field(
        default_factory=dict
    )
    among: Annotated[
        dict[Text, Values],
        Doc("Names of lists, each with patterns; every item must match one of them. * is a wildcard."),
    ] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeRule:
    """A rule for every recipe, with samples that keep and break it."""

    says: Annotated[Text, Doc("What must be true.")]
    why: Annotated[Text, Doc("What goes wrong otherwise.")]
    source: Annotated[Text, Doc("The source of the rule: a practice document, or a place in a framework's code.")]
    must: Annotated[Condition, Doc("The required condition.")]
    hint: Annotated[Text, Doc("What to set instead.")]
    good: Annotated[list[dict[Text, Value]], Doc("Samples that satisfy the rule; names not set have their default.")]
    bad: Annotated[list[dict[Text, Value]], Doc("Samples that break the rule.")]
    of: Annotated[
        dict[Name, Versions],
        Doc("Upstreams, with the versions (of the stacks' pins) that the rule applies to; if omitted, all versions."),
    ] = field(default_factory=dict)
    when: Annotated[Condition | None, Doc("When the rule applies; if omitted, always.")] = None


@dataclass(frozen=True)
class Documented:
    """A variable that no upstream reads itself."""

    reader: Annotated[Text, Doc("What reads it.")]
    address: Annotated[Address, Doc("URL of its documentation.")]


@dataclass(frozen=True)
class Rules:
    """manifests/rules.yaml: rules for all recipes, and the frameworks' defaults for unset keys."""

    schema: FormatVersion
    rules: Annotated[dict[Name, RecipeRule], Doc("The rules, by name.")]
    defaults: Annotated[
        dict[Table, dict[Text, Value]],
        Doc(
            "Defaults of keys that a recipe does not set: for all configurations, then for one by name, then those for"
            " given versions."
        ),
    ] = field(default_factory=dict)
    renamed: Annotated[
        dict[Requirement, dict[Text, Text]],
        Doc("For versions of an upstream: removed or deprecated keys, with their new names. Both names are read."),
    ] = field(default_factory=dict)
    composed_as: Annotated[
        dict[Text, Word],
        Doc(
            "Overrides KEY=VALUE that turn one configuration into another, with the name of that one, whose defaults"
            " then apply."
        ),
    ] = field(default_factory=dict)
    switched_by: Annotated[
        dict[Feature, list[Text]], Doc("Keys that a feature acts on besides its patch's `Switch`.")
    ] = field(default_factory=dict)
    variables: Annotated[
        dict[Variable, Documented], Doc("Variables of recipes that no upstream reads, with their documentation.")
    ] = field(default_factory=dict)


SCHEMAS: dict[str, type] = {"recipe": Recipe, "rules": Rules}
