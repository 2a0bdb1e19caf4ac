"""What the documents of the practice name, item by item, and the parameters that they explain, as plain data.

Like recipes they are no part of `Content`: apply, verify of a workspace and revert do without them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from patchctl.manifest.types import (
    FORBID_UNKNOWN,
    Doc,
    Feature,
    FormatVersion,
    Name,
    OneOrMore,
    Pattern,
    RelativePath,
    Text,
    Value,
)
from patchctl.training.recipes.types import Key

Page = Annotated[
    str, Pattern(r"(?!.*\.\./)[A-Za-z0-9_][A-Za-z0-9_./-]*\.md(#[^\s#]+)?", "the path of a page, with #HEADING at will")
]
Run = Annotated[str, Pattern(r"[a-z0-9][a-z0-9._-]*/[a-z0-9][a-z0-9._-]*", "a recipe as PROFILE/RECIPE")]


@dataclass(frozen=True)
class Item:
    """Something that a section of a document names, and where it is here."""

    what: Annotated[Text, Doc("What the document names: a value, a step, an advice, a figure.")]
    recipes: Annotated[list[Run], OneOrMore(), Doc("Recipes that have it; shared/NAME for their common parts.")] = (
        field(default_factory=list)
    )
    rules: Annotated[list[Name], OneOrMore(), Doc("Rules of rules.yaml that hold it.")] = field(default_factory=list)
    features: Annotated[list[Feature], OneOrMore(), Doc("Features that do it.")] = field(default_factory=list)
    verbs: Annotated[list[Name], OneOrMore(), Doc("Verbs of the tool that do or find it.")] = field(
        default_factory=list
    )
    files: Annotated[list[RelativePath], OneOrMore(), Doc("Scripts and other files, below the root.")] = field(
        default_factory=list
    )
    pages: Annotated[list[Page], OneOrMore(), Doc("Pages, below the root, with #HEADING at will.")] = field(
        default_factory=list
    )
    nothing: Annotated[Text | None, Doc("Why nothing is done with it here, or not what the document says.")] = None
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Document:
    """A document of the practice: its sections in their order, each with what it names."""

    title: Annotated[Text, Doc("Its title.")]
    sections: Annotated[dict[Text, list[Item]], Doc("A section: what it names; one item at least.")]
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Coverage:
    """manifests/coverage.yaml: everything that the practice's documents name, and what became of it."""

    schema: FormatVersion
    documents: Annotated[dict[Text, Document], Doc("A document's number, or 'linked from NUMBER'.")]
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class ReadSection:
    """A section of a document, by which names and numbers stand in it."""

    begins: Annotated[str, Doc("The text that it begins with; it ends where the next one begins.")]
    words: Annotated[Text, Doc("Names, numbers and NAME=VALUE that stand in it, a blank between them.")]
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Read:
    """A document that was read, section by section in its order."""

    sha256: Annotated[Text, Doc("Of the text that the words were taken from.")]
    sections: Annotated[dict[Text, ReadSection], Doc("A section, by the name that coverage.yaml has for it.")]
    note: Annotated[Text | None, Doc("What to know of the text.")] = None
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Facts:
    """manifests/facts.yaml: what stands where in the practice's documents, to hold `source:` against."""

    schema: FormatVersion
    documents: Annotated[dict[Text, Read], Doc("A document's number, or 'linked from NUMBER'.")]
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Parameter:
    """A key of the framework's configuration, in our words, with the default that it has at the pin."""

    means: Annotated[Text, Doc("What it does.")]
    default: Annotated[Value, Doc("Its default; null for none, ??? where one has to be given.")]
    dapo: Annotated[Value | None, Doc("Its default in DAPO's configuration, where that is another one.")] = None
    only: Annotated[
        Literal["dapo_trainer"] | None, Doc("The one configuration that has the key; without it both have it.")
    ] = None
    note: Annotated[Text | None, Doc("What a document says otherwise, or what to know at the pin.")] = None
    __pydantic_config__ = FORBID_UNKNOWN


@dataclass(frozen=True)
class Parameters:
    """manifests/parameters.yaml: the parameters that a document explains, by group."""

    schema: FormatVersion
    upstream: Annotated[Name, Doc("Whose configuration it is.")]
    stack: Annotated[Name, Doc("The stack whose pin has these defaults.")]
    groups: Annotated[dict[Text, dict[Key, Parameter]], Doc("A group's title: its keys.")]
    __pydantic_config__ = FORBID_UNKNOWN
