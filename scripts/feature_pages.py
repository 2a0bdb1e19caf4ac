"""One page a feature, with releases as columns, for the site: what it does, which releases have it, its proof, gain, recipes and rules.

docs/patches has a page a stack, several of one feature. These are built and not committed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from patchctl.catalog.features import Catalog
from patchctl.catalog.overview import Overview, OverviewPatch
from patchctl.catalog.pages import KINDS, cell, code_spans, gain_text, switch_text, titled
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.series import descent
from patchctl.manifest.types import Release
from patchctl.training.recipes.conditions import names_in
from patchctl.training.recipes.read import read_recipes
from patchctl.training.recipes.types import Condition, RecipeRule

FOLDER = "features"
_DOCS = "../"  # from a page to docs/
_LONG = 60  # characters of a cell that widen a table of four releases over a screen


@dataclass(frozen=True)
class FeatureRule:
    """A rule of recipes that names a feature's switch. `of`: the versions it is true of, "" for all."""

    name: str
    says: str
    why: str
    hint: str
    of: str


def feature_pages(dist: Distribution, whole: Overview, rules: Mapping[str, Sequence[FeatureRule]]) -> dict[str, str]:
    """Return the text of each page, and of their index, by path below docs/. `whole`: the overview of all profiles; `rules` by feature."""
    releases = sorted(dist.releases.values(), key=lambda one: [int(part) for part in one.name.split(".")])
    features = sorted({one.row.feature for one in whole.patches})
    made = {f"{FOLDER}/{name}.md": _Feature(dist, whole, releases, name).page(rules.get(name, ())) for name in features}
    return made | {f"{FOLDER}/README.md": _index(dist, whole, releases, features)}


def _index(dist: Distribution, whole: Overview, releases: Sequence[Release], features: Sequence[str]) -> str:
    titles = ["feature", "what", *(one.name for one in releases)]
    lines = [
        "# Features",
        "",
        "Each has a page with its switch, proof, gain, recipes and rules. By stack: [patches](../patches/README.md).",
        "",
    ]
    lines += [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name in features:
        one = _Feature(dist, whole, releases, name)
        there = [", ".join(dict.fromkeys(p.row.stack for p in one.on(release))) for release in releases]
        cells = [f"[{cell(name)}]({name}.md)", cell(one.newest.row.subject), *map(cell, there)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


class _Feature:
    """A feature on every release."""

    def __init__(self, dist: Distribution, whole: Overview, releases: Sequence[Release], name: str) -> None:
        self.dist, self.whole, self.releases, self.name = dist, whole, releases, name
        self.patches = [one for one in whole.patches if one.row.feature == name]
        self.upstreams = list(dict.fromkeys(one.row.upstream for one in self.patches))

    def on(self, release: Release) -> list[OverviewPatch]:
        """Its patches on a release, one an upstream."""
        return [one for one in self.patches if release.stacks.get(one.row.upstream) == one.row.stack]

    @property
    def newest(self) -> OverviewPatch:
        """Its patch on the newest release that has it; of a stack that no release has, where there is none."""
        return next((found[0] for one in reversed(self.releases) if (found := self.on(one))), self.patches[-1])

    def page(self, rules: Sequence[FeatureRule]) -> str:
        newest = self.newest
        parts = [f"# {cell(self.name)}", cell(newest.row.subject)]
        for upstream in self.upstreams:
            title = "## Releases" if len(self.upstreams) == 1 else f"## {upstream}"
            parts += [title, "\n".join(self._table(upstream))]
        if recipes := list(self._recipes()):
            parts += ["## Recipes that need it", "\n".join(recipes)]
        if rules:
            lines = ["| what must hold | or else | set | versions |", "|---|---|---|---|"]
            lines += [f"| {cell(r.says)} | {cell(r.why)} | {cell(r.hint)} | {cell(r.of or 'all')} |" for r in rules]
            parts += ["## What a recipe is refused for", "\n".join(lines)]
        for title, text in titled((newest.need, newest.change, newest.risk)):
            parts += [f"## {title}", text]
        parts += [f"`patchctl show {self.name}` prints it, `patchctl list patches` all of them."]
        return "\n\n".join(parts) + "\n"

    def _table(self, upstream: str) -> Iterator[str]:
        """What differs between releases by release, and before it once what does not."""
        columns = [next((p for p in self.on(one) if p.row.upstream == upstream), None) for one in self.releases]
        of_patch = {
            "Kind": _kind,
            "Switch": lambda p: switch_text(p.row.switch or "none"),
            "Brings": lambda p: gain_text(p.row.gain, _DOCS),
            "Requires": lambda p: code_spans(p.requires),
            "Upstream status": lambda p: cell(p.row.upstream_status or ""),
            "Can be dropped when": lambda p: cell(p.drop_when or ""),
            "Proof": _proof,
        }
        rows = {title: [text(one) if one else None for one in columns] for title, text in of_patch.items()}
        same = {title: texts.pop() for title, cells in rows.items() if len(texts := {*cells} - {None}) == 1}
        yield from ("| | on every release that has it |", "|---|---|")
        yield from (f"| **{title}** | {text} |" for title, text in same.items() if text)
        yield from ("", f"| | {' | '.join(one.name for one in self.releases)} |", f"|---|{'---|' * len(self.releases)}")
        places = zip(columns, self.releases, strict=True)
        differing = {"Patch": [self._stack(p) if p else self._absence(upstream, one) for p, one in places]}
        differing |= {title: [text or "" for text in cells] for title, cells in rows.items() if title not in same}
        yield from (f"| **{title}** | {' | '.join(self._shortened(cells))} |" for title, cells in differing.items())

    def _shortened(self, cells: Sequence[str]) -> Iterator[str]:
        """A long text of the release before is not said again."""
        for number, text in enumerate(cells):
            first = cells.index(text)
            link = text.startswith("[")
            yield text if first == number or link or len(text) < _LONG else f"as on {self.releases[first].name}"

    def _stack(self, patch: OverviewPatch) -> str:
        row = patch.row
        return f"[{cell(f'{row.upstream} {row.stack}')}]({_DOCS}patches/{row.upstream}/{row.stack}/{self.name}.md)"

    def _absence(self, upstream: str, release: Release) -> str:
        """Why a release has it not, by its stack or one that this comes from."""
        stack = self.dist.stacks.get((upstream, release.stacks.get(upstream, "")))
        for one in descent(stack, self.dist.stacks) if stack else ():
            for word, reasons in (("dropped", one.dropped), ("postponed", one.postponed)):
                if reason := reasons.get(self.name) or reasons.get(f"{self.name}@{upstream}"):
                    return f"{word}: {cell(reason)}"
        return "—"

    def _recipes(self) -> Iterator[str]:
        names = {self.name, *(f"{self.name}@{upstream}" for upstream in self.upstreams)}
        found: dict[str, set[str | None]] = {}
        for one in self.whole.recipes:
            if names & {*one.needs}:
                found.setdefault(f"{one.profile}/{one.recipe}", set()).add(one.release)
        if found:
            yield f"| recipe | {' | '.join(one.name for one in self.releases)} |"
            yield f"|---|{'---|' * len(self.releases)}"
        for recipe, on in sorted(found.items()):
            marks = ("yes" if one.name in on or None in on else "" for one in self.releases)
            yield f"| `{recipe}` | {' | '.join(marks)} |"


def _kind(patch: OverviewPatch) -> str:
    return KINDS.get(patch.row.kind, patch.row.kind)


def _proof(patch: OverviewPatch) -> str:
    if patch.unproven is not None:
        return f"not proven: {cell(patch.unproven)}"
    if patch.run is None:
        return ""
    return f"proven on {patch.run.date}: {sum(patch.run.tests.values())} tests, {patch.run.mutants} mutations"


def rules_of_features(dist: Distribution) -> Mapping[str, list[FeatureRule]]:
    """Return by feature the rules that read its switch or what else it acts on, ask a recipe to need it, or have it as their source."""
    loaded = read_recipes(dist).rules
    if loaded is None:
        return {}
    rules, found = loaded.value, dict[str, list[FeatureRule]]()
    for row in Catalog(dist).patches():
        kind, _, rest = (row.switch or "").partition(" ")
        switch = rest.partition("=")[0].strip().lstrip("+")
        named = {f"env.{switch}" if kind == "env" else switch, *rules.switched_by.get(row.feature, ())} - {""}
        about = [_of_feature(name, rule) for name, rule in rules.rules.items() if _is_about(rule, row.feature, named)]
        found.setdefault(row.feature, []).extend(one for one in about if one not in found[row.feature])
    return found


def _is_about(rule: RecipeRule, feature: str, named: set[str]) -> bool:
    conditions: list[Condition] = [one for one in (rule.when, rule.must) if one]
    read = {name for one in conditions for name in names_in(one)}
    needed = {feature for one in conditions for feature in one.contains.get("recipe.needs", ())}
    # An engine's setting has the keys of verl before it: engine_kwargs.vllm.additional_config.NAME.
    acts = any(name == one or name.endswith(f".{one}") for name in read for one in named)
    return acts or feature in needed or feature in re.findall(r"[a-z0-9_]+", rule.source)


def _of_feature(name: str, rule: RecipeRule) -> FeatureRule:
    of = ", ".join(f"{upstream} {versions}" for upstream, versions in rule.of.items())
    return FeatureRule(name, rule.says, rule.why, rule.hint, of)
