"""Checks of a distribution that need no source: patch files, their numbers and names, what they carry and require, manifests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from patchctl.check.rules import check_form, in_manifest
from patchctl.errors import BadPatch, WrongUse
from patchctl.findings import Finding, Report, from_error
from patchctl.manifest.diagnostics import InvalidManifest, did_you_mean
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.files import PRACTICE
from patchctl.manifest.series import SHARED, SeriesPatch, own_files
from patchctl.manifest.types import Stack
from patchctl.stack.patches import (
    CARRIED_FOLDER,
    LintedPatch,
    StackPatch,
    carried_folder,
    check_requirements,
    leave_out,
    load_patch,
)
from patchctl.stack.tree_lists import show

Key = tuple[str, str]


@dataclass(frozen=True)
class Series:
    """The patch files of a distribution, each read once. A stack with a file that cannot be read is in `broken` instead
    of `stacks`: what depends on such a file is not blamed as well."""

    stacks: Mapping[Key, Sequence[StackPatch]]
    patches: Mapping[Path, StackPatch] = field(default_factory=dict)
    broken: frozenset[Key] = frozenset()


def read_series(dist: Distribution, report: Report) -> Series:
    """Reads and parses every patch of every stack; what cannot be read becomes a finding."""
    read: dict[Path, StackPatch] = {}
    stacks: dict[Key, list[StackPatch]] = {}
    broken: set[Path] = set()
    for key, stack in sorted(dist.stacks.items()):
        files = dist.patch_files(stack)
        for file in files:
            if file in read or file in broken:
                continue
            try:
                read[file] = load_patch(file, dist.root)
            except BadPatch as error:
                broken.add(file)
                report.add([from_error("patch-file", error, file.relative_to(dist.root).as_posix(), stack.upstream)])
        if not broken.intersection(files):
            stacks[key] = [read[file] for file in files]
    return Series(stacks, read, frozenset(dist.stacks.keys() - stacks.keys()))


def check_series(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Lint of every patch, and what no file can say alone."""
    yield from check_form(dist, series.patches)
    for stack in dist.stacks.values():
        yield from _gaps(dist, stack)
    blamed: set[tuple[str, int | None]] = set()
    for (upstream, stack_name), patches in series.stacks.items():
        yield from _features_twice(upstream, patches)
        for finding in _requirements((upstream, stack_name), patches, series):
            blamed.add((finding.file, finding.line))
            yield finding
        yield from _chain(upstream, patches)
    yield from _selections(dist, series, blamed)
    yield from _carried(dist, series)
    yield from _named_features(dist, series)
    yield from _practice(dist, series)
    for path in dist.unlisted_files():
        shown = path.relative_to(dist.root)
        _, *names = shown.parts
        owner = dist.stacks.get((names[0], names[1])) if len(names) > 2 else None
        what = "no stack lists it: delete it, or name it in a manifest"
        if owner is not None and path.is_dir():
            manifest = dist.stack_file(owner).relative_to(dist.root).as_posix()
            what = f"{manifest} lists no patch of this folder: delete the folder, or list its patch there"
        yield Finding("unlisted-file", what, shown.as_posix())


def _gaps(dist: Distribution, stack: Stack) -> Iterator[Finding]:
    expected = 1
    for index, name in enumerate(stack.patches):
        number = int(name[:4])
        if number != expected:
            message = f"{name}: the number {expected:04d} was expected"
            yield Finding("number-gap", message, *in_manifest(dist, stack, "patches", index), "note", stack.upstream)
        expected = number + 1


def _features_twice(upstream: str, patches: Sequence[StackPatch]) -> Iterator[Finding]:
    first: dict[str, StackPatch] = {}
    for patch in patches:
        other = first.setdefault(patch.feature, patch)
        if other is not patch:
            message = f"the feature {patch.feature} is that of {other.file.name} already"
            yield Finding(
                "feature-unique", message, patch.shown, _line(patch, "Feature"), "error", upstream, patch.feature
            )


def _requirements(key: Key, patches: Sequence[StackPatch], series: Series) -> Iterator[Finding]:
    """Of its own stack a patch can require only what comes before it; of another upstream, what some stack has."""
    upstream, stack = key
    elsewhere = {(u, p.feature) for (u, _), found in series.stacks.items() for p in found}
    unread = {u for u, _ in series.broken}
    own = {p.feature for p in patches}
    earlier: set[str] = set()
    for patch in patches:
        for feature, other in patch.requires:
            line = _line(patch, "Requires")
            if other in unread:
                continue
            if other in (None, upstream) and feature in own and feature not in earlier:
                what = f"requires {feature}, which does not come before it in the stack"
            elif other in (None, upstream) and feature not in own:
                what = f"requires {feature}@{upstream}, which {upstream} {stack} does not have"
            elif other not in (None, upstream) and (other, feature) not in elsewhere:
                what = f"requires {feature}@{other}, which no stack of {other} has"
            else:
                continue
            yield Finding("requires-known", what, patch.shown, line, "error", upstream, patch.feature)
        earlier.add(patch.feature)


def _selections(dist: Distribution, series: Series, blamed: set[tuple[str, int | None]]) -> Iterator[Finding]:
    """What `apply` would refuse: unknown features in `without`, requirements that a profile leaves out.

    A requirement that is `blamed` already, because no stack at all has it, is not blamed for every profile as well.
    """
    for profile in dist.every_profile():
        keys = [(u, n) for u, n in profile.stacks.items()]
        if any(key not in series.stacks for key in keys):
            continue
        patches = {u: series.stacks[u, n] for u, n in keys}
        shown = dist.profile_file(profile).relative_to(dist.root).as_posix()
        try:
            omitted = leave_out(patches, profile.without, "the profile leaves it out")
            check_requirements(patches, omitted, profile.stacks)
        except (WrongUse, BadPatch) as error:
            if error.where is not None and (error.where.file, error.where.line) in blamed:
                continue
            key = "releases" if profile.release else "without" if profile.without else "stacks"
            line = dist.where(dist.profile_file(profile), key).line
            message = error.what if error.hint is None else f"{error.what} ({error.hint})"
            yield Finding("selection", message, shown, line)


def _chain(upstream: str, patches: Sequence[StackPatch]) -> Iterator[Finding]:
    """Each `index` line goes on where the last one for the same file ended."""
    now: dict[bytes, tuple[str, StackPatch]] = {}
    for patch in patches:
        for change in patch.patch.changes:
            old, new = change.old_id, change.new_id
            known = now.get(change.old_path) if change.old_path is not None else None
            if known is not None and old is not None and not known[0].startswith(old) and not old.startswith(known[0]):
                what = (
                    f"{show(change.path)} begins as {old[:12]}, and {known[1].file.name} leaves it as {known[0][:12]}"
                )
                yield Finding("preimage-chain", what, patch.shown, change.line, "error", upstream, patch.feature)
            if new is not None and change.new_path is not None:
                now[change.new_path] = (new, patch)


def _carried(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Files below files/ that the patch beside them does not carry, those that two patches of a stack carry, and shared ones that
    none carries."""
    for (upstream, name), stack in sorted(dist.stacks.items()):
        files = [dist.root / SeriesPatch(upstream, name, file).path for file in own_files(stack)]
        own = [series.patches[file] for file in files if file in series.patches]
        carriers: dict[str, list[StackPatch]] = {}
        for patch in own:
            for path in patch.carried:
                carriers.setdefault(path, []).append(patch)
            below = patch.file.parent / CARRIED_FOLDER
            for path in _files_below(below):
                if path not in patch.carried:
                    shown = (below / path).relative_to(dist.root).as_posix()
                    yield Finding("carried-file", "its patch does not carry it", shown, upstream=upstream)
        for path, found in carriers.items():
            for patch in found[1:]:
                what = f"{path} is carried by {found[0].file.name} already"
                yield Finding(
                    "carried-file", what, patch.shown, _line(patch, "Carries"), "error", upstream, patch.feature
                )
    if series.broken:
        return  # they may carry what no other patch does
    carried = {carried_folder(file, path) / path for file, patch in series.patches.items() for path in patch.carried}
    for below in sorted((dist.root / "patches").glob(f"*/{SHARED}/*/{CARRIED_FOLDER}")):
        for file in (below / path for path in _files_below(below)):
            if file not in carried:
                yield Finding("carried-file", "no patch carries it", file.relative_to(dist.root).as_posix())


def _files_below(folder: Path) -> list[str]:
    """Every file, by its path below the folder; what Python and editors leave behind is nobody's."""
    found = (p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir())
    names = (p.relative_to(folder) for p in found)
    return sorted(n.as_posix() for n in names if "__pycache__" not in n.parts and not n.name.startswith("."))


def _named_features(dist: Distribution, series: Series) -> Iterator[Finding]:
    """A stack that comes from another has its features, or says why not. What `gains:` of a stack names it has."""
    for name, stack in sorted(dist.stacks.items()):
        followed = (stack.upstream, stack.comes_from or "")
        if stack.comes_from is not None and followed not in dist.stacks:
            known = [other for upstream, other in dist.stacks if upstream == stack.upstream and other != stack.name]
            what = f"no stack {stack.comes_from} is here, whose features this one has or drops{did_you_mean(stack.comes_from, known)}"
            yield Finding("dropped", what, *in_manifest(dist, stack, "comes_from"), "note", stack.upstream)
        if name not in series.stacks:
            continue
        own = {p.feature for p in series.stacks[name]}
        for feature in stack.gains:
            if feature not in own:
                what = f"`gains:` names {feature}, and this stack has no such feature{did_you_mean(feature, own)}"
                yield Finding("gain", what, *in_manifest(dist, stack, "gains", feature), "error", stack.upstream)
        if followed not in series.stacks:
            continue
        before = {p.feature for p in series.stacks[followed]}
        for feature in sorted(before - own - stack.dropped.keys() - stack.postponed.keys()):
            way = "bring it over, or say why in `dropped:`, or in `postponed:` where it is to come"
            what = f"{stack.comes_from} has {feature}, and this stack has not: {way}"
            yield Finding("dropped", what, *in_manifest(dist, stack, "comes_from"), "error", stack.upstream)
        for key, feature in (*(("dropped", f) for f in stack.dropped), *(("postponed", f) for f in stack.postponed)):
            if feature in own or feature not in before:
                why = "this stack has it" if feature in own else f"{stack.comes_from} has no such feature"
                what = f"`{key}:` names {feature}, and {why}"
                yield Finding("dropped", what, *in_manifest(dist, stack, key, feature), "error", stack.upstream)


def _line(patch: StackPatch, key: str) -> int:
    return LintedPatch(patch).trailer_line(key)


def _practice(dist: Distribution, series: Series) -> Iterator[Finding]:
    """Features that practice.yaml names and no stack has, or had and does without."""
    if dist.practice is None or series.broken:
        return
    owners = [(upstream, p.feature) for (upstream, _), patches in series.stacks.items() for p in patches]
    owners += [(upstream, feature) for (upstream, _), stack in dist.stacks.items() for feature in stack.dropped]
    known = {name for upstream, feature in owners for name in (feature, f"{feature}@{upstream}")}
    for name, entry in dist.practice.switches.items():
        for feature in entry.features:
            if feature not in known:
                what = f"{name}: no stack has a feature {feature}{did_you_mean(feature, known)}"
                file = dist.root / "manifests" / PRACTICE
                line = dist.where(file, "switches", name).line
                yield Finding("practice-feature", what, file.relative_to(dist.root).as_posix(), line)


def check_generated(dist: Distribution) -> Iterator[Finding]:
    """A note for each stack that lacks a generated file which another stack of the upstream has."""
    for stack in dist.stacks.values():
        own = {g.path for g in stack.generated}
        for (upstream, name), other in sorted(dist.stacks.items()):
            if upstream != stack.upstream or stack.extends == name or other.extends == stack.name:
                continue
            for generated in other.generated:
                if generated.path not in own:
                    own.add(generated.path)
                    what = f"`generated:` has no {generated.path}, as {upstream}/{name} has: {generated.why}"
                    yield Finding("generated-missing", what, *in_manifest(dist, stack), "note", upstream)


def manifest_findings(root: Path, error: InvalidManifest) -> list[Finding]:
    """The problems of manifests that cannot be loaded, as findings; nothing else can be checked then."""
    return [Finding("manifest", str(one), below(root, one.file), one.line) for one in error.problems]


def below(root: Path, shown: str) -> str:
    """The path below the root of a path as messages show it, relative to the current folder or absolute."""
    full = (Path.cwd() / shown).resolve()
    return full.relative_to(root).as_posix() if full.is_relative_to(root) else shown
