"""What recipes and the rules over them hold, as plain data; `types` says how such dataclasses are read.

They are no part of `ManifestContent`: apply, verify of a workspace and revert need no recipe, and must not be stopped by one that
somebody is writing. `patchctl.training.recipes.read` reads them when they are asked for.
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
    """A value and where it comes from. One without a reason of its own may be written as the value alone."""

    value: Annotated[Value, Doc("The value; '= ...' computes it from sizes, '@NAME' is a path that the user gives.")]
    source: Annotated[Text | None, Doc("Who gives the value: a document of the practice and its section.")] = None
    why: Annotated[Text | None, Doc("What it is for, or what goes wrong without it.")] = None
    ours: Annotated[Text | None, Doc("No document gives the value: why we chose this one.")] = None
    __shorthand__ = "value"


@dataclass(frozen=True)
class PathParameter:
    """A file or folder that only the user knows."""

    what: Annotated[Text, Doc("What lies there.")]
    variable: Annotated[Variable, Doc("The variable that the command reads it from when it is not given.")]
    default: Annotated[Text | None, Doc("Where it lies unless the user says otherwise.")] = None
    needs_packages: Annotated[list[PackageRequirement], Doc("What the file imports and nothing else brings.")] = field(
        default_factory=list
    )


@dataclass(frozen=True)
class DataSet:
    """What is trained or validated on."""

    name: Annotated[Text, Doc("The data set, as its publisher calls it.")]
    data_source: Annotated[Values, Doc("The values of its column data_source, which select the reward.")]
    note: Annotated[Text | None, Doc("Where it comes from, or what to know about it.")] = None


@dataclass(frozen=True)
class EntryModule:
    """The framework's own entry module. Nothing of ours runs in a training process."""

    module: Annotated[Module, Doc("What `python -m` runs.")]
    config: Annotated[Word, Doc("The configuration that the overrides are for (--config-name).")]
    upstream: Annotated[Name, Doc("The upstream whose tree it lies in.")]
    folder: Annotated[RelativePath | None, Doc("Where in that tree it has to be started; null for its top.")] = None
    why: Annotated[Text | None, Doc("Why there.")] = None


@dataclass(frozen=True)
class Recipe:
    """One way to train. What it extends comes first; a key that it sets again replaces the inherited value."""

    schema: FormatVersion
    name: Annotated[Name, Doc("The recipe's name, as this file's name.")]
    summary: Annotated[Text, Doc("What it trains and how, in a line.")]
    extends: Annotated[
        RecipeName | None, Doc("A recipe of this folder, or FOLDER/RECIPE, whose values come first.")
    ] = None
    without: Annotated[list[Text], Doc("Inherited keys, variables, sizes and needs that this one does not have.")] = (
        field(default_factory=list)
    )
    source: Annotated[Text | None, Doc("Who gives the values of this file that name nobody themselves.")] = None
    needs: Annotated[
        list[Feature], Doc("Features of the profile whose switches it sets, or that it cannot run without.")
    ] = field(default_factory=list)
    needs_packages: Annotated[
        list[PackageRequirement], Doc("Packages that its settings make the framework import.")
    ] = field(default_factory=list)
    sizes: Annotated[
        dict[Size, Setting], Doc("Numbers that expressions may use; nodes and devices_per_node at least.")
    ] = field(default_factory=dict)
    environment: Annotated[dict[Variable, Setting], Doc("Environment variables, the same on every node.")] = field(
        default_factory=dict
    )
    of_each_node: Annotated[dict[Variable, Text], Doc("Variables that each node sets for itself, and to what.")] = (
        field(default_factory=dict)
    )
    overrides: Annotated[dict[Key, Setting], Doc("Keys of the framework's configuration.")] = field(
        default_factory=dict
    )
    paths: Annotated[dict[Size, PathParameter], Doc("Files and folders that the user gives.")] = field(
        default_factory=dict
    )
    data: Annotated[dict[Name, DataSet], Doc("The data sets: train, and validation where there is one.")] = field(
        default_factory=dict
    )
    entry: Annotated[EntryModule | None, Doc("What is started.")] = None
    limits: Annotated[
        list[Text], Doc("What does not work, or was not seen to, at these pins: shown wherever the recipe is.")
    ] = field(default_factory=list)
    stops: Annotated[
        list[Text],
        Doc("A limit without whose cure no run works: preflight stops at it until it is accepted."),
    ] = field(default_factory=list)
    note: Annotated[Text | None, Doc("Anything a reader should know.")] = None


@dataclass(frozen=True)
class Condition:
    """What is asked of a recipe: all that stands here has to be so. Names are keys, `env.NAME`, sizes and facts."""

    equals: Annotated[dict[Text, Values], Doc("A name: the values of which it has one.")] = field(default_factory=dict)
    differs: Annotated[dict[Text, Values], Doc("A name: the values of which it has none.")] = field(
        default_factory=dict
    )
    given: Annotated[list[Text], Doc("Names that have a value other than null.")] = field(default_factory=list)
    absent: Annotated[list[Text], Doc("Names that have none, or null.")] = field(default_factory=list)
    holds: Annotated[
        list[Text],
        Doc("Comparisons of two expressions, as in a + b <= 2 * c; a list of numbers stands for its largest."),
    ] = field(default_factory=list)
    contains: Annotated[dict[Text, Values], Doc("A name: texts of which its value holds one.")] = field(
        default_factory=dict
    )
    lacks: Annotated[dict[Text, Values], Doc("A name: texts of which its value holds none.")] = field(
        default_factory=dict
    )
    among: Annotated[dict[Text, Values], Doc("A name with a list: what each item has to be; * stands for any end.")] = (
        field(default_factory=dict)
    )


@dataclass(frozen=True)
class RecipeRule:
    """Something that must hold of every recipe, with the samples that show it."""

    says: Annotated[Text, Doc("What must hold.")]
    why: Annotated[Text, Doc("What goes wrong otherwise.")]
    source: Annotated[Text, Doc("Who says so: a document of the practice, or a place in a framework's code.")]
    must: Annotated[Condition, Doc("What is asked.")]
    hint: Annotated[Text, Doc("What to set instead.")]
    good: Annotated[list[dict[Text, Value]], Doc("Values that keep the rule; what is not named has its default.")]
    bad: Annotated[list[dict[Text, Value]], Doc("Values that break it.")]
    of: Annotated[
        dict[Name, Versions],
        Doc("Upstreams: the versions that it is true of, as the stacks' pins have them; of every version without."),
    ] = field(default_factory=dict)
    when: Annotated[Condition | None, Doc("Where it is asked; everywhere without.")] = None


@dataclass(frozen=True)
class Documented:
    """A variable that none of the upstreams reads itself."""

    reader: Annotated[Text, Doc("What reads it.")]
    address: Annotated[Address, Doc("Where it is documented.")]


@dataclass(frozen=True)
class Rules:
    """manifests/rules.yaml: what every recipe has to keep, and what the frameworks do where a recipe says nothing."""

    schema: FormatVersion
    rules: Annotated[dict[Name, RecipeRule], Doc("The rules by name.")]
    defaults: Annotated[
        dict[Table, dict[Text, Value]],
        Doc(
            "Values of keys that a recipe leaves alone: for all configurations, for one by its name, then those with versions."
        ),
    ] = field(default_factory=dict)
    renamed: Annotated[
        dict[Requirement, dict[Text, Text]],
        Doc(
            "For versions of an upstream: keys that are gone or deprecated, with the names that they have there. Both are read."
        ),
    ] = field(default_factory=dict)
    composed_as: Annotated[
        dict[Text, Word],
        Doc("An override KEY=VALUE that makes one configuration another: that one's name, whose defaults hold then."),
    ] = field(default_factory=dict)
    switched_by: Annotated[
        dict[Feature, list[Text]],
        Doc("Keys that a feature acts on besides the one that its patch names as its switch."),
    ] = field(default_factory=dict)
    variables: Annotated[
        dict[Variable, Documented],
        Doc("Variables of recipes that none of the upstreams reads, and where they are explained."),
    ] = field(default_factory=dict)
