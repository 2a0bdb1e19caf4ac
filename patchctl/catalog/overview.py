"""A distribution or one profile of it, for `report`: each patch with proof and files, locks, recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from patchctl import extension
from patchctl.catalog.evidence import Evidence, mutants_of, read_record, tests_of
from patchctl.catalog.features import Catalog, FileRow, PatchRow, ProfileRow, StackRow, file_rows, sections
from patchctl.doc import Doc, Spread
from patchctl.errors import BadManifest
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import LockedForm, read_lock
from patchctl.manifest.types import Stack


@dataclass(frozen=True)
class LockedTip:
    """The commit that a stack gives from one form, with the features `without` left out."""

    form: Annotated[str, Doc("source form: `git` or `sdist`")]
    without: Annotated[tuple[str, ...], Doc("features left out")]
    tip_commit: Annotated[str, Doc("commit of the last patch")]


@dataclass(frozen=True)
class OverviewStack:
    """A stack."""

    row: Annotated[StackRow, Spread()]
    locked: Annotated[
        tuple[LockedTip, ...], Doc("tips recorded in the lock; with `--profile`, only those of the profile")
    ]
    dropped: Annotated[dict[str, str], Doc("features of the previous stack that this one dropped, with the reason")]
    postponed: Annotated[
        dict[str, str], Doc("features of the previous stack not yet ported to this one, with the reason")
    ]


@dataclass(frozen=True)
class ProofRun:
    """A summary of a record."""

    date: Annotated[str, Doc("date of the newest run in the record")]
    tests: Annotated[dict[str, int], Doc("number of tests by mark")]
    mutants: Annotated[int, Doc("number of mutations")]


@dataclass(frozen=True)
class OverviewPatch:
    """A patch in a stack."""

    row: Annotated[PatchRow, Spread()]
    path: Annotated[str, Doc("path of the patch file in the distribution")]
    need: Annotated[str, Doc("why the patch is needed")]
    change: Annotated[str, Doc("what the patch changes")]
    risk: Annotated[str, Doc("what can go wrong")]
    drop_when: Annotated[str | None, Doc("condition for dropping the patch")]
    requires: Annotated[tuple[str, ...], Doc("required features, as FEATURE@UPSTREAM")]
    files: Annotated[tuple[FileRow, ...], Doc("files that the patch changes or carries")]
    tests: Annotated[tuple[str, ...], Doc("behaviour tests of the feature")]
    mutants: Annotated[tuple[str, ...], Doc("mutations that these tests must detect")]
    unproven: Annotated[str | None, Doc("why no record proves the patch on this stack; null if one does")]
    run: Annotated[ProofRun | None, Doc("summary of the record; null if there is none")]

    @property
    def name(self) -> str:
        return f"{self.row.feature}@{self.row.upstream}"


@dataclass(frozen=True)
class RecipeRow:
    """A recipe of an extension."""

    profile: Annotated[str, Doc("profile name")]
    recipe: Annotated[str, Doc("recipe name")]
    summary: Annotated[str, Doc("one-line summary")]
    nodes: Annotated[int, Doc("number of nodes")]
    devices_per_node: Annotated[int, Doc("devices per node")]
    module: Annotated[str, Doc("entry module")]
    needs: Annotated[tuple[str, ...], Doc("required features, as FEATURE or FEATURE@UPSTREAM")]
    limits: Annotated[tuple[str, ...], Doc("known limitations at these pins")]
    release: Annotated[str | None, Doc("release of the profile")] = None


@dataclass(frozen=True)
class Overview:
    """The whole overview, of `profile` only if one is given."""

    profile: Annotated[str | None, Doc("value of `--profile`")]
    profiles: Annotated[tuple[ProfileRow, ...], Doc("profiles, as in `list`")]
    stacks: Annotated[tuple[OverviewStack, ...], Doc("stacks, in the order of upstreams.yaml")]
    patches: Annotated[
        tuple[OverviewPatch, ...],
        Doc("patches, in the order they apply; the page embeds them as JSON in the element `data`"),
    ]
    recipes: Annotated[tuple[RecipeRow, ...], Doc("recipes, sorted by profile and name")]


def overview(dist: Distribution, profile: str | None) -> Overview:
    """Build the overview. Raises WrongUse for an unknown profile, BadPatch, BadManifest for a bad lock or recipe."""
    catalog, evidence = Catalog(dist), Evidence(dist)
    without = frozenset(dist.profile(profile).without) if profile else None
    stacks = tuple(_stack(catalog, row, without) for row in catalog.stacks(profile))
    patches = tuple(_patch(catalog, evidence, row) for row in catalog.patches(profile))
    found = (row for other in extension.registered() for name in other.recipes for row in extension.load(name)(dist))
    profiles = tuple(catalog.profiles(profile))
    shown = {(one.name, one.release) for one in profiles}  # only the profile's release that the page is for
    recipes = tuple(row for row in found if (row.profile, row.release) in shown)
    return Overview(profile, profiles, stacks, patches, recipes)


def _stack(catalog: Catalog, row: StackRow, without: frozenset[str] | None) -> OverviewStack:
    stack = catalog.dist.stack(row.upstream, row.stack)
    left_out = None
    if without is not None:
        features = (catalog.patch(file).feature for file in catalog.dist.patch_files(stack))
        left_out = frozenset(f for f in features if without & {f, f"{f}@{stack.upstream}"})
    tips = tuple(_tips(catalog.dist.root, stack, left_out))
    return OverviewStack(row, tips, dict(stack.dropped), dict(stack.postponed))


def _tips(root: Path, stack: Stack, without: frozenset[str] | None) -> Iterator[LockedTip]:
    """Yield the locked results with exactly these features left out; all results for None."""
    lock = read_lock(root, stack)
    for result in lock.results if lock else ():
        if without in (None, frozenset(result.without)):
            for form, record in result.forms.items():
                if isinstance(record, LockedForm):
                    yield LockedTip(form, tuple(result.without), record.tip_commit)


def _patch(catalog: Catalog, evidence: Evidence, row: PatchRow) -> OverviewPatch:
    dist = catalog.dist
    stack = dist.stack(row.upstream, row.stack)
    patch = catalog.patch(dist.patch_files(stack)[row.number - 1])
    need, change, risk = sections(patch)
    requires = tuple(f"{name}@{upstream or row.upstream}" for name, upstream in patch.requires)
    tests, mutants = (of(dist, stack, row.feature) for of in (tests_of, mutants_of))
    return OverviewPatch(
        row,
        patch.shown,
        need,
        change,
        risk,
        patch.header.trailer("Drop-When"),
        requires,
        file_rows(patch),
        tests,
        mutants,
        evidence.unproven(stack, patch),
        _run(dist.root, stack, row.feature),
    )


def _run(root: Path, stack: Stack, feature: str) -> ProofRun | None:
    try:
        record = read_record(root, stack.upstream, stack.name, feature)
    except BadManifest:
        return None  # `unproven` reports what is wrong with it
    if record is None:
        return None
    proofs = [*([record.tests] if record.tests else []), *record.mutants.values()]
    results = record.tests.results.values() if record.tests else ()
    results_of = {test: result for found in results for test, result in found.items()}
    marks = Counter(result.partition(" ")[0] for result in results_of.values())  # on, off or misuse
    return ProofRun(max((p.date for p in proofs), default=""), dict(sorted(marks.items())), len(record.mutants))
