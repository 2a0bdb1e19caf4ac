"""manifests/coverage.yaml and manifests/parameters.yaml: reads them, and checks that what items point at is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from patchctl.check.manifests import manifest_findings
from patchctl.check.series import Series
from patchctl.findings.report import Finding, Report
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.load import Loaded, read
from patchctl.manifest.problems import InvalidManifest, did_you_mean, quoted
from patchctl.terminal.markdown import anchors
from patchctl.training.practice.credits import Documents, check_credits, read_facts
from patchctl.training.practice.pointers import Places, untold
from patchctl.training.practice.types import Coverage, Facts, Item, Parameters
from patchctl.training.recipes.read import Recipes, read_recipes

COVERAGE = Path("manifests") / "coverage.yaml"
PARAMETERS = Path("manifests") / "parameters.yaml"
T = TypeVar("T")


def read_coverage(root: Path) -> Loaded[Coverage] | None:
    """None where a distribution keeps no such file. Raises InvalidManifest with every fault."""
    return _read(root / COVERAGE, Coverage)


def read_parameters(root: Path) -> Loaded[Parameters] | None:
    """None where a distribution keeps no such file. Raises InvalidManifest with every fault."""
    return _read(root / PARAMETERS, Parameters)


def _read(path: Path, model: type[T]) -> Loaded[T] | None:
    return read(path, model) if path.exists() else None


def check_coverage(dist: Distribution, series: Series, report: Report) -> None:
    """Adds what is wrong with the two files, and how many items there are."""
    try:
        read_parameters(dist.root)
        loaded = read_coverage(dist.root)
        facts, recipes = read_facts(dist.root), read_recipes(dist)
    except InvalidManifest as error:
        if {Path(problem.file).name for problem in error.problems} & {COVERAGE.name, PARAMETERS.name}:
            report.add(manifest_findings(dist.root, error).findings)
        return  # faults of recipes are told by the check of the recipes
    known = _Known.of(dist, series, recipes)
    if facts is not None:
        report.add(check_credits(dist, recipes, facts.value))
    if loaded is not None:
        documents = loaded.value.documents.values()
        report.counts["items of the practice"] = sum(len(i) for d in documents for i in d.sections.values())
        report.add(_findings(loaded, known))
        report.add(_untold(loaded, Places(dist.root, recipes, dist.practice), facts))


@dataclass(frozen=True)
class _Known:
    """What items can point at. `features` is None while a patch cannot be read."""

    root: Path
    recipes: Collection[str]
    rules: Collection[str]
    features: Collection[str] | None

    @classmethod
    def of(cls, dist: Distribution, series: Series, recipes: Recipes) -> _Known:
        patches = [(upstream, p.feature) for (upstream, _), found in series.stacks.items() for p in found]
        features = {name for upstream, feature in patches for name in (feature, f"{feature}@{upstream}")}
        rules = recipes.rules.value.rules if recipes.rules else {}
        return cls(dist.root, ["/".join(key) for key in recipes.files], rules, None if series.broken else features)


def _findings(loaded: Loaded[Coverage], known: _Known) -> Iterator[Finding]:
    for number, document in loaded.value.documents.items():
        for section, items in document.sections.items():
            path: tuple[str | int, ...] = ("documents", number, "sections", section)
            if not items:
                yield _finding(
                    loaded, path, f"{number}, {section}: has no item; say what it names, or why nothing is here"
                )
            for index, item in enumerate(items):
                for fault in _faults(item, known):
                    yield _finding(loaded, (*path, index), f"{number}, {section}: {fault}")


def _untold(loaded: Loaded[Coverage], places: Places, facts: Loaded[Facts] | None) -> Iterator[Finding]:
    documents = Documents.of(facts.value, places.root) if facts else Documents()
    for number, document in loaded.value.documents.items():
        for section, items in document.sections.items():
            documented = {f"{number}, {section}": documents.words_of(number, section)} if facts else {}
            for index, item in enumerate(items):
                for fault in untold(item, places, documented, f"{number}, {section}"):
                    path = ("documents", number, "sections", section, index)
                    place = loaded.positions.place(path)[0]
                    yield Finding("coverage-words", fault, COVERAGE.as_posix(), place)


def _finding(loaded: Loaded[Coverage], path: tuple[str | int, ...], what: str) -> Finding:
    return Finding("coverage-item", what, COVERAGE.as_posix(), loaded.positions.place(path)[0])


def _faults(item: Item, known: _Known) -> Iterator[str]:
    targets = (item.recipes, item.rules, item.features, item.verbs, item.files, item.pages)
    if not any(targets) and item.nothing is None:
        yield f"{quoted(item.what)} leads nowhere; name what has it here, or say nothing: BECAUSE"
    yield from _unknown("recipe", item.recipes, known.recipes)
    yield from _unknown("rule", item.rules, known.rules)
    if known.features is not None:
        yield from _unknown("feature", item.features, known.features)
    for verb in item.verbs:
        # Asked for by its module, so that no verb has to be imported to be known.
        if find_spec(f"patchctl.cli.{verb}_verb") is None and find_spec(f"patchctl.training.verbs.{verb}") is None:
            yield f"there is no verb {quoted(verb)}"
    for file in item.files:
        if not (known.root / file).exists():
            yield f"there is no {quoted(file)}"
    for page in item.pages:
        yield from _page_fault(page, known.root)


def _unknown(kind: str, names: list[str], known: Collection[str]) -> Iterator[str]:
    for name in names:
        if name not in known:
            yield f"there is no {kind} {quoted(name)}{did_you_mean(name, known)}"


def _page_fault(page: str, root: Path) -> Iterator[str]:
    path, _, heading = page.partition("#")
    if not (root / path).is_file():
        yield f"there is no page {quoted(path)}"
    elif heading:
        there = anchors((root / path).read_text(encoding="utf-8"))
        if heading not in there:
            yield f"{path} has no heading #{heading}{did_you_mean(heading, there)}"
