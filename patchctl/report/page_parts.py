"""The parts of the report's page that are text and tables: profiles, stacks, features, files, dependencies, recipes. Computes nothing."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from patchctl.catalog.features import go_together
from patchctl.catalog.overview import Overview, OverviewPatch, OverviewStack, RecipeRow
from patchctl.report.markup import (
    Markup,
    Row,
    badge,
    cell,
    code,
    facts,
    grid,
    join,
    keys,
    prose,
    section,
    table,
    tag,
    text,
)
from patchctl.terminal.text import counted, patch_count

_CHANGE = re.compile(r"https://[\w.-]+/[\w.-]+/([\w.-]+)/(?:commit/([0-9a-f]{12})[0-9a-f]*|(?:pull|issues)/(\d+))")


class Names:
    """The page's patches by their numbers in `Overview.patches`: elements name those that they are about in data-p, and the
    filter shows an element when one of its patches is found.

    `names` are the patches' own: FEATURE@UPSTREAM, or FEATURE@UPSTREAM/STACK where several stacks here have it. `required` are
    the patches that each one requires.
    """

    def __init__(self, seen: Overview) -> None:
        self.seen = seen
        self.features: dict[str, list[int]] = {}
        for number, patch in enumerate(seen.patches):
            self.features.setdefault(patch.row.feature, []).append(number)
        self.names = [p.name if len(self.named(p.name)) == 1 else f"{p.name}/{p.row.stack}" for p in seen.patches]
        self.several_releases = len({profile.release for profile in seen.profiles}) > 1
        self.required = [self._required(number) for number in range(len(seen.patches))]

    def _required(self, number: int) -> list[int]:
        """The patches that one requires, of those that are applied with it."""
        patch = self.seen.patches[number]
        found = (self.beside(name, patch.row.upstream, patch.row.stack) for name in patch.requires)
        return [n for n in dict.fromkeys(itertools.chain.from_iterable(found)) if n != number]

    def required_by(self, number: int) -> list[int]:
        return [n for n, required in enumerate(self.required) if number in required]

    def patches(self, numbers: Iterable[int]) -> list[OverviewPatch]:
        return [self.seen.patches[n] for n in numbers]

    def named(self, name: str) -> list[int]:
        """The patches of FEATURE, of FEATURE@UPSTREAM, or of FEATURE@UPSTREAM/STACK."""
        feature, _, place = name.partition("@")
        upstream, _, stack = place.partition("/")
        found = ((n, self.seen.patches[n].row) for n in self.features.get(feature, ()))
        return [n for n, row in found if upstream in ("", row.upstream) and stack in ("", row.stack)]

    def beside(self, name: str, upstream: str, stack: str) -> list[int]:
        """Of the patches of a name those that are applied with this stack."""
        found = ((n, self.seen.patches[n].row) for n in self.named(name))
        return [n for n, row in found if go_together(self.seen.profiles, (upstream, stack), (row.upstream, row.stack))]

    def of_stack(self, upstream: str, stack: str) -> list[int]:
        found = enumerate(self.seen.patches)
        return [n for n, p in found if (p.row.upstream, p.row.stack) == (upstream, stack)]

    def link(self, name: str, shown: str = "") -> Markup:
        """A feature, or a patch by its name, as a link where the page has it."""
        shown = code(shown or name)
        return tag("a", shown, href=f"#{self.place(name)}") if self.named(name) else shown

    def place(self, name: str) -> str:
        """The id of a feature's card; where it has several patches, and one is meant, that of this one's part."""
        feature, _, place = name.partition("@")
        several = len(self.features.get(feature, ())) > 1
        if not place or not several:
            return anchor(feature)
        return f"{anchor(feature)}@{anchor(self.names[self.named(name)[0]].partition('@')[2])}"

    def needed(self, name: str, upstream: str, stack: str) -> Markup:
        """What a patch of this stack requires, as it writes it, with a link to what that is there."""
        found = self.beside(name, upstream, stack)
        return self.link(self.names[found[0]], name) if found else code(name)

    def links(self, names: Iterable[str]) -> Markup:
        return join(map(self.link, names), ", ")


def anchor(name: str) -> str:
    """The id of a feature's place: its name, as patchctl takes one. No part of the page has such an id."""
    return re.sub(r"[^A-Za-z0-9_]", "-", name)


def proof_badge(unproven: Sequence[str | None]) -> Markup:
    """Of one patch, or of all that a feature has."""
    return badge("open", "○", "unproven") if any(unproven) else badge("good", "✓", "proven")


def switch(value: str | None) -> Markup:
    """Where it is set, and the key; a long key is parted behind a dot, where it has to be."""
    if value in (None, "none"):
        return tag("span", "always on", class_="quiet")
    where, _, key = (value or "").partition(" ")
    parts = join(re.split(r"(?<=[.=])(?=.)", key or where), Markup("<wbr>"))
    return join([tag("span", where, " ", class_="quiet") if key else "", tag("code", parts)])


def short(value: str) -> str:
    """A status with each address of a commit or a pull request as REPOSITORY@ID or REPOSITORY#NUMBER: for a narrow column."""
    return _CHANGE.sub(
        lambda found: f"{found[1]}@{found[2]}" if found[2] else f"{found[1]}#{found[3]}",
        value.replace("Inappropriate ", "Inappropriate: ", 1),
    )


def profiles(names: Names) -> Markup:
    """What each is for, its stacks and what it runs on."""
    seen = names.seen
    rows = []
    for one in seen.profiles:
        stacks = join((tag("span", text(u), " ", code(s), class_="pair") for u, s in one.stacks.items()), " ")
        runtime = join((tag("span", text(n), " ", code(v), class_="pair") for n, v in one.runtime.items()), " ")
        left_out = names.links(one.without) if one.without else "nothing"
        on = tag("span", f"on {one.release}", class_="quiet below") if one.release else ""
        rows.append(Row((join([code(one.name), on]), one.summary, str(one.patches), stacks, left_out, runtime), ()))
    heads = ("Profile", "What for", "Patches", "Stacks", "Leaves out", "Runs on")
    return section("profiles", "Profiles" if len(rows) > 1 else "Profile", table("Profiles", heads, rows, "profiles"))


def stacks(names: Names) -> Markup:
    """A table a stack, in the order in which its patches apply."""
    return section("stacks", "Stacks", *(_stack(names, stack) for stack in names.seen.stacks))


def _stack(names: Names, stack: OverviewStack) -> Markup:
    row = stack.row
    numbers = names.of_stack(row.upstream, row.stack)
    rows = []
    for number in numbers:
        patch = names.seen.patches[number]
        one = patch.row
        what = join([one.subject, " ", badge("plain", "", "fix") if one.kind == "bugfix" else ""])
        state = (switch(one.switch), proof_badge([patch.unproven]), short(one.upstream_status or "not said"))
        rows.append(Row((names.link(one.feature), f"{one.number:04d}", what, *state), [number]))
    heads = ("Feature", "No.", "What it does", "Switch", "Proof", "Upstream status")
    listed = table(f"Patches of {row.upstream} {row.stack}, in order", heads, rows, "patches fixed")
    pinned = [
        ("Pin", join([row.tag, code(row.commit[:12])] if row.tag else [code(row.commit[:12])], " ")),
        ("Source distribution", row.sdist or "none: git alone"),
        ("Extends", row.extends),
        ("Locked tips", _tips(stack)),
        ("Profiles", ", ".join(row.profiles) or "none"),
    ]
    gone = [*_left("Dropped on the way here", stack.dropped), *_left("Not here yet", stack.postponed)]
    none = tag("p", "It has no patches.", class_="quiet")
    title = tag("h3", row.upstream, " ", tag("span", row.stack, class_="quiet"))
    return tag("article", title, facts(pinned), listed if rows else none, *gone, class_="stack", data_p=keys(numbers))


def _left(title: str, reasons: Mapping[str, str]) -> Iterator[Markup]:
    if reasons:
        yield tag("h4", title)
        yield tag("ul", *(tag("li", code(feature), ": ", why) for feature, why in reasons.items()))


def _tips(stack: OverviewStack) -> Markup:
    """By form; of several profiles, those that leave nothing out come first."""
    tips = []
    for tip in sorted(stack.locked, key=lambda t: (len(t.without), t.without, t.form)):
        without = f" without {', '.join(tip.without)}" if tip.without else ""
        tips.append(join([tip.form, " ", code(tip.tip_commit[:12]), without]))
    return join(tips, "; ")


def features(names: Names) -> Markup:
    """Each feature with all of its patches, to be opened; a link to #FEATURE opens it."""
    cards = [_feature(names, feature, numbers) for feature, numbers in sorted(names.features.items())]
    hint = tag("p", "Each opens on its name. A link to this page that ends with #FEATURE opens one.", class_="quiet")
    return section("features", "Features", hint, *cards)


def _feature(names: Names, feature: str, numbers: Sequence[int]) -> Markup:
    patches = names.patches(numbers)
    upstreams = dict.fromkeys(p.row.upstream for p in patches)
    summary = tag(
        "summary",
        tag("h3", code(feature)),
        tag("span", patches[0].row.subject, class_="what"),
        tag(
            "span",
            *(badge("plain", "", u) for u in upstreams),
            proof_badge([p.unproven for p in patches]),
            class_="badges",
        ),
    )
    recipes = [r for r in names.seen.recipes if {*numbers} & {*_needed(names, r)}]
    used = [("Needed by recipes", ", ".join(_title(names, r) for r in recipes))]
    parts = [_patch(names, number) for number in numbers]
    return tag("details", summary, facts(used), *parts, class_="feature", id=anchor(feature), data_p=keys(numbers))


def _patch(names: Names, number: int) -> Markup:
    patch = names.seen.patches[number]
    row, folder = patch.row, patch.path.rpartition("/")[0] + "/"
    several = len(names.features[row.feature]) > 1
    requires = join((names.needed(name, row.upstream, row.stack) for name in patch.requires), ", ")
    rows = [
        ("Stack", f"{row.upstream} {row.stack}, number {row.number:04d}"),
        ("Switch", switch(row.switch)),
        ("Proof", join([proof_badge([patch.unproven]), " ", _proof(patch)])),
        ("Requires", requires),
        ("Required by", names.links(names.names[n] for n in names.required_by(number))),
        ("Profiles", ", ".join(row.profiles) or "none"),
        ("Upstream status", row.upstream_status),
        ("Can be dropped when", patch.drop_when),
        ("Patch file", code(patch.path)),
        ("Tests", join((code(path.removeprefix(folder)) for path in patch.tests), ", ")),
        ("Mutations", join((code(path.removeprefix(folder)) for path in patch.mutants), ", ")),
    ]
    head, below = ((tag("h4", row.subject),), "h5") if several else ((), "h4")
    said = (("Need", patch.need), ("Change", patch.change), ("Risk", patch.risk))
    told = [tag("div", tag(below, title), prose(words)) for title, words in said if words]
    files = [
        tag("li", code(f.path), " ", tag("span", _lines(f.added, f.removed, f.change), class_="quiet"))
        for f in patch.files
    ]
    told += [tag("div", tag(below, "Files"), tag("ul", *files, class_="plain"))]
    own = names.place(names.names[number]) if several else None
    return tag("div", *head, facts(rows), tag("div", *told, class_="told"), class_="patch", id=own)


def _proof(patch: OverviewPatch) -> str:
    """Why there is none, or what the record says."""
    if patch.unproven is not None or patch.run is None:
        return patch.unproven or ""
    tests = ", ".join(f"{count} {mark}" for mark, count in patch.run.tests.items())
    mutations = counted(patch.run.mutants, "mutation")
    return f"run on {patch.run.date}: tests {tests or 'none'}; {mutations} turned red"


def _lines(added: int | None, removed: int | None, change: str) -> str:
    counted = "binary" if added is None else f"+{added} −{removed}"
    return counted if change == "modify" else f"{counted} {change}"


def files(names: Names) -> Markup:
    """Who touches which file of an upstream, by its path; those that several patches touch are named so."""
    hint = "By path. What several patches touch is what a change of one has to be seen with."
    parts = [_files(names, stack) for stack in names.seen.stacks]
    return section("files", "Files of upstream", tag("p", hint, class_="quiet"), *parts)


def _files(names: Names, stack: OverviewStack) -> Markup:
    upstream, name = stack.row.upstream, stack.row.stack
    touched: dict[str, list[int]] = {}
    numbers = names.of_stack(upstream, name)
    for number in numbers:
        for file in names.seen.patches[number].files:
            touched.setdefault(file.path, []).append(number)
    rows = [_file(names, path, about) for path, about in sorted(touched.items())]
    shared = sum(len(about) > 1 for about in touched.values())
    count = join([counted(len(rows), "file"), f", {shared} of them touched by several patches" if shared else ""])
    title = tag("h3", upstream, " ", tag("span", name, class_="quiet"))
    listed = table(
        f"Files of {upstream} that patches touch", ("File", "Patches, in order", "Shared", "Lines"), rows, "paths fixed"
    )
    return tag("article", title, tag("p", count), listed if rows else "", data_p=keys(numbers))


def _file(names: Names, path: str, about: Sequence[int]) -> Row:
    found = [(f, p) for p in names.patches(about) for f in p.files if f.path == path]
    links = names.links(p.row.feature for _, p in found)
    shared = badge("note", "≡", f"{len(about)} patches") if len(about) > 1 else ""
    added, removed = (
        None if None in all_ else sum(n or 0 for n in all_)
        for all_ in zip(*((f.added, f.removed) for f, _ in found), strict=True)
    )
    return Row((code(path), links, shared, _lines(added, removed, found[0][0].change)), about, path)


def dependencies(names: Names) -> Markup:
    """What features require of each other, in the order of the stacks; one that stands alone has no row."""
    rows = []
    for number, name in enumerate(names.names):
        required, by = (
            [names.names[n] for n in found] for found in (names.required[number], names.required_by(number))
        )
        if required or by:
            feature, _, place = name.partition("@")
            cells = (names.link(name, feature), place, names.links(required), names.links(by))
            rows.append(Row(cells, [number]))
    if not rows:
        return section("dependencies", "Dependencies", tag("p", "No feature here requires another.", class_="notice"))
    alone = patch_count(len(names.names) - len(rows))
    hint = f"Not listed: {alone} that nothing here requires and that require nothing."
    heads = ("Feature", "Upstream", "Requires", "Required by")
    listed = table("What features require of each other", heads, rows, "needs fixed")
    return section("dependencies", "Dependencies", tag("p", hint, class_="quiet"), listed)


def recipes(names: Names) -> Markup:
    """What profiles are trained with, and the features that each cannot do without."""
    found = names.seen.recipes
    if not found:
        return section("recipes", "Recipes", tag("p", "There are no recipes here.", class_="notice"))
    needed = {need: None for recipe in found for need in recipe.needs}
    rows = []
    for need in sorted(needed):
        cells = (cell("is-exact", "●", "needed") if need in r.needs else "" for r in found)
        rows.append(Row((names.link(need), *cells), names.named(need)))
    title = "Features that recipes need"
    marks = grid(title, "Feature", ((_title(names, r), r.summary) for r in found), rows) if rows else ""
    heads = ("Recipe", "What", "Nodes × devices", "Limits")
    listed = table("Recipes", heads, (_recipe(names, row) for row in found), "runs fixed")
    return section("recipes", "Recipes", listed, tag("article", marks))


def _recipe(names: Names, row: RecipeRow) -> Row:
    about, title = _needed(names, row), _title(names, row)
    what = join([row.summary, tag("span", row.module, class_="quiet below")])
    limits = tag("ul", *(tag("li", limit) for limit in row.limits)) if row.limits else "none"
    return Row((code(title), what, f"{row.nodes} × {row.devices_per_node}", limits), about, title)


def _needed(names: Names, row: RecipeRow) -> list[int]:
    """The patches of its profile, on its release, that a recipe cannot do without."""
    profiles = (p for p in names.seen.profiles if (p.name, p.release) == (row.profile, row.release))
    applied = {n for p in profiles for upstream, stack in p.stacks.items() for n in names.of_stack(upstream, stack)}
    return sorted(applied & {n for need in row.needs for n in names.named(need)})


def _title(names: Names, row: RecipeRow) -> str:
    """As `patchctl recipe` takes it: with its release where the page has several."""
    return f"{row.profile}/{row.recipe}" + (f"@{row.release}" if names.several_releases and row.release else "")


def numbers(seen: Overview) -> Iterator[tuple[str, str]]:
    """How much there is, for the head of the page."""
    touched = {(p.row.upstream, f.path) for p in seen.patches for f in p.files if f.change != "carried"}
    yield "patches", str(len(seen.patches))
    yield "stacks", str(len(seen.stacks))
    yield "proven here", f"{sum(p.unproven is None for p in seen.patches)} of {len(seen.patches)}"
    yield "upstream files touched", str(len(touched))
    yield "recipes", str(len(seen.recipes))
