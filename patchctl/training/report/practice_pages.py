"""The pages of docs/practice made from data: what became of each item of the documents (coverage), and verl's keys (parameters).

Like recipes, neither of the two files is part of `ManifestContent`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from patchctl.catalog.pages import code_span, table_row
from patchctl.check.series import Series, manifest_findings
from patchctl.doc import Doc
from patchctl.findings import Report
from patchctl.manifest.diagnostics import InvalidManifest, Problem
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.types import FormatVersion, Pattern, ReleaseName, Text, Value

COVERAGE, PARAMETERS = Path("manifests/coverage.yaml"), Path("manifests/parameters.yaml")
_FOLDER = Path("docs/practice")
Place = Annotated[
    str,
    Pattern(
        r"(recipe|rule|patch|page|file|verb) \S[^\n]*",
        "a recipe, rule, patch, page, file or verb with its name, such as recipe qwen3-235b/grpo",
    ),
]


@dataclass(frozen=True)
class CoveredItem:
    """What a section of a document names, and where it is here."""

    names: Annotated[Text, Doc("What the section names.")]
    here: Annotated[
        list[Place], Doc("Where it is here: kind and name; a page may have #ANCHOR, a patch @UPSTREAM.")
    ] = field(default_factory=list)
    nothing: Annotated[Text | None, Doc("Why nothing, or nothing else, was made of it.")] = None


@dataclass(frozen=True)
class CoveredDocument:
    """A document."""

    title: Annotated[Text, Doc("Title and date, as on the page.")]
    sections: Annotated[dict[Text, list[CoveredItem]], Doc("Its sections, with what each names.")]


@dataclass(frozen=True)
class Coverage:
    """manifests/coverage.yaml: what the practice documents name, item by item, and where it is here."""

    schema: FormatVersion
    release: Annotated[ReleaseName, Doc("The release whose recipes and patches are meant.")]
    documents: Annotated[dict[Text, CoveredDocument], Doc("The documents, by number.")]


@dataclass(frozen=True)
class VerlKey:
    """A key of verl's configuration."""

    does: Annotated[Text, Doc("What it does.")]
    default: Annotated[Value, Doc("Its default; null for none, ??? where a value is required.")] = "null"
    dapo: Annotated[Value | None, Doc("Its default in dapo_trainer, if that is another one.")] = None
    of_dapo: Annotated[Value | None, Doc("Its default in dapo_trainer, if that alone has the key.")] = None


@dataclass(frozen=True)
class Parameters:
    """manifests/parameters.yaml: keys of verl's configuration that the practice documents explain or set."""

    schema: FormatVersion
    sections: Annotated[dict[Text, dict[Text, VerlKey]], Doc("Keys by section of the page.")]


SCHEMAS: dict[str, type] = {"coverage": Coverage, "parameters": Parameters}


def pages(dist: Distribution) -> dict[str, str]:
    """Return the pages that a distribution keeps, with their tables renewed; nothing for a file with faults, which `verify` reports."""
    found = {}
    for file, lines in _MADE_OF.items():
        page = _FOLDER / f"{file.stem}.md"
        if (dist.root / page).is_file() and (dist.root / file).is_file():
            try:
                found[page.as_posix()] = _filled(dist.root / page, file.stem, lines(dist))
            except InvalidManifest:
                continue
    return found


def _filled(page: Path, name: str, lines: Iterable[str]) -> str:
    """A page's text with these lines between its marks <!-- NAME:begin --> and <!-- NAME:end -->; as it is where it has none."""
    body = "".join(f"{line}\n" for line in lines)
    marks = re.compile(rf"(?s)(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)")
    return marks.sub(lambda found: found[1] + body + found[2], page.read_text(encoding="utf-8", errors="replace"))


def check_practice(dist: Distribution, series: Series, report: Report) -> None:
    """Add the faults of both files: keys, and places of the coverage that are not there."""
    for file, lines in _MADE_OF.items():
        if (dist.root / file).is_file():
            try:
                list(lines(dist))
            except InvalidManifest as error:
                report.add(manifest_findings(dist.root, error))


def _coverage(dist: Distribution) -> Iterator[str]:
    loaded = read(dist.root / COVERAGE, Coverage)
    targets = _targets(dist, loaded)
    for number, document in loaded.value.documents.items():
        yield from (f"## {number}", "", document.title, "", "| section | it names | here |", "|---|---|---|")
        for section, items in document.sections.items():
            for index, item in enumerate(items):
                places = [_shown(place, targets[place]) for place in item.here]
                if item.nothing:
                    places.append(f"nothing: {item.nothing}")
                yield table_row(section if index == 0 else "", item.names, "; ".join(places))
        yield ""


def _targets(dist: Distribution, loaded: Loaded[Coverage]) -> dict[str, str]:
    """Return the file of each place below the root, "" for a verb. Raises InvalidManifest for what is not there.

    A wheel and a bundle have no pages of patches, and not every file of a clone: a patch is looked for in patches/, a file not at all.
    """
    release = dist.releases.get(loaded.value.release)
    stacks = release.stacks if release else {}

    def target_of(kind: str, name: str) -> str | None:
        if kind in ("file", "verb"):
            return name if kind == "file" else ""
        page, (feature, _, of) = name.partition("#")[0], name.partition("@")
        places = {
            "recipe": [f"manifests/recipes/{loaded.value.release}/{name}.yaml", f"manifests/recipes/{name}.yaml"],
            "rule": ["manifests/rules.yaml"],
            "patch": [f"patches/{u}/{stack}/{feature}" for u, stack in stacks.items() if of in ("", u)],
            "page": [f"{_FOLDER.as_posix()}/{page}.md", f"docs/{page}.md"],
        }
        first = next((path for path in places[kind] if (dist.root / path).exists()), None)
        return f"docs/{first}.md" if first and kind == "patch" else first

    found: dict[str, str] = {}
    problems: list[Problem] = []
    for number, document in loaded.value.documents.items():
        for section, items in document.sections.items():
            for index, item in enumerate(items):
                for at, place in enumerate(item.here):
                    kind, _, name = place.partition(" ")
                    if (target := target_of(kind, name)) is not None:
                        found[place] = target
                    else:
                        path = ("documents", number, "sections", section, index, "here", at)
                        problems.append(loaded.positions.problem(path, f"there is no {place}"))
    if problems:
        raise InvalidManifest(problems)
    return found


def _shown(place: str, target: str) -> str:
    kind, _, name = place.partition(" ")
    if kind == "verb":
        return code_span(f"patchctl {name}")
    title, _, anchor = name.partition("#")
    link = f"{os.path.relpath(target, _FOLDER)}{f'#{anchor}' if anchor else ''}"
    text = f"{title}, {anchor}" if anchor else name
    return f"{'' if kind == 'file' else f'{kind} '}[{text}]({link})"


def _parameters(dist: Distribution) -> Iterator[str]:
    for title, keys in read(dist.root / PARAMETERS, Parameters).value.sections.items():
        yield from (f"## {title}", "", "| key | default | what it does |", "|---|---|---|")
        for name, key in keys.items():
            default = _default(key.default)
            if key.of_dapo is not None:
                default = f"{_default(key.of_dapo)} (`dapo_trainer` alone has it)"
            other = f"; {_default(key.dapo)} in `dapo_trainer`" if key.dapo is not None else ""
            yield table_row(f"`{name}`", f"{default}{other}", key.does)
        yield ""


_MADE_OF = {COVERAGE: _coverage, PARAMETERS: _parameters}


def _default(value: str) -> str:
    return {"null": "none", "???": "none: give one"}.get(value, f"`{value}`")
