"""Selects the features to apply: what is left out and why, and that nothing required is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from patchctl.errors import BadPatch, Where, WrongUse
from patchctl.stack.patches import StackPatch

_NAME = re.compile(r"[a-z0-9][a-z0-9_]*")
Patches = Mapping[str, Sequence[StackPatch]]


@dataclass(frozen=True)
class Omission:
    """A patch that is not applied, and why."""

    upstream: str
    patch: StackPatch
    reason: str


def parse_feature(text: str) -> tuple[str, str | None]:
    """Split FEATURE or FEATURE@UPSTREAM."""
    name, _, upstream = text.partition("@")
    return name, upstream or None


def check_name(patch: StackPatch) -> None:
    """Raise BadPatch for an invalid feature name: names go into state, command lines and messages."""
    trailers = patch.header.trailers.get("Feature", [])
    if trailers and not _NAME.fullmatch(patch.feature):
        what = f"{patch.feature!a} is not a feature name: use lower-case letters, digits and '_'"
        raise BadPatch(what, where=Where(patch.shown, trailers[0].line))


def named_patches(patches: Patches, feature: str) -> list[tuple[str, StackPatch]]:
    """Return every patch of FEATURE[@UPSTREAM]. Raises WrongUse with the nearest known name."""
    name, upstream = parse_feature(feature)
    found = [(u, p) for u, series in patches.items() for p in series if p.feature == name and upstream in (None, u)]
    if not found:
        import difflib

        known = sorted({p.feature for series in patches.values() for p in series})
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"known features (see `patchctl list`): {', '.join(known)}"
        raise WrongUse(f"this profile has no feature {feature!r}", hint=hint)
    return found


def leave_out(patches: Patches, without: Iterable[str], reason: str) -> list[Omission]:
    """Return omissions for the patches of these features, without duplicates."""
    named = {id(p): (u, p) for feature in without for u, p in named_patches(patches, feature)}
    return [Omission(u, p, reason) for u, p in named.values()]


def dependents(patches: Patches, omitted: Sequence[Omission]) -> list[Omission]:
    """Return the kept patches that require an omitted one, directly or indirectly."""
    gone = {(o.upstream, o.patch.feature) for o in omitted}
    out = {id(o.patch) for o in omitted}
    found: list[Omission] = []
    grew = True
    while grew:
        grew = False
        for upstream, patch in _kept(patches, out):
            missing = [r for r in _requirements(upstream, patch) if r in gone]
            if missing:
                reason = f"requires {missing[0][1]}@{missing[0][0]}, which is left out"
                found.append(Omission(upstream, patch, reason))
                out.add(id(patch))
                gone.add((upstream, patch.feature))
                grew = True
    return found


def check_requirements(patches: Patches, omitted: Sequence[Omission], stacks: Mapping[str, str]) -> None:
    """Raise WrongUse if a kept patch requires one left out, BadPatch if it requires one the profile lacks.

    `stacks` names the profile's stack of each upstream.
    """
    known = {(u, p.feature) for u, series in patches.items() for p in series}
    for upstream, patch in _kept(patches, {id(o.patch) for o in omitted}):
        for needed_upstream, feature in _requirements(upstream, patch):
            if (needed_upstream, feature) not in known:
                trailer = patch.header.trailers["Requires"][0]
                stack = stacks.get(needed_upstream)
                lacks = f"which this profile's {needed_upstream} {stack} does not have"
                lacks = lacks if stack else f"but this profile has no stack of {needed_upstream}"
                what = f"requires {feature}@{needed_upstream}, {lacks}"
                raise BadPatch(what, where=Where(patch.shown, trailer.line))
    left = dependents(patches, omitted)
    if left:
        what = "; ".join(f"{o.patch.feature}@{o.upstream} {o.reason}" for o in left)
        options = " ".join(f"--without {o.patch.feature}@{o.upstream}" for o in left)
        raise WrongUse(what, hint=f"leave out its dependents as well: {options}")


def _kept(patches: Patches, out: set[int]) -> list[tuple[str, StackPatch]]:
    return [(u, p) for u, series in patches.items() for p in series if id(p) not in out]


def _requirements(upstream: str, patch: StackPatch) -> list[tuple[str, str]]:
    return [(u or upstream, f) for f, u in patch.requires]


def with_requirements(patches: Sequence[StackPatch], wanted: StackPatch, upstream: str) -> list[StackPatch]:
    """Return a patch and everything it requires in its stack, in stack order."""
    needed, to_see = {wanted.feature}, [wanted]
    by_name = {p.feature: p for p in patches}
    while to_see:
        for feature, other in to_see.pop().requires:
            if other in (None, upstream) and feature not in needed and feature in by_name:
                needed.add(feature)
                to_see.append(by_name[feature])
    return [p for p in patches if p.feature in needed]
