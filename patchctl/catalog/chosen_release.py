"""Chooses the release of a profile or an upstream: the one named, else the newest on which it is proven.

A profile is proven on a release if a valid record (patchctl.catalog.evidence) exists for every feature that it
applies there and none of its stacks has a feature postponed. A stack that is only pinned proves nothing if another
stack of its upstream has patches. A profile proven on no release uses the oldest, so that adding a release moves no
one before it is proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from patchctl.errors import WrongUse
from patchctl.language import joined, message
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Profile, Stack
from patchctl.terminal.text import abridged

Tell = Callable[[str], None]


def on_release(dist: Distribution, name: str | None, tell: Tell) -> Distribution:
    """Return the distribution with every profile on the release `name`, or on its chosen one.

    `tell` gets a line when a profile is requested that is then not on its newest release. Raises WrongUse for an
    unknown release.
    """
    if name is not None:
        dist.release(name)
        there = {p.name: p for p in dist.every_profile() if p.release == name}
        return replace(dist, profiles=there, named_release=name)
    if all(len(found) == 1 for found in dist.variants.values()):
        return dist  # nothing to choose, so no record is read
    return replace(dist, profiles=_Proven(dist, tell))


class _Proven(Mapping[str, Profile]):
    """Each profile on the newest release on which it is proven, chosen on first access."""

    def __init__(self, dist: Distribution, tell: Tell) -> None:
        self._dist, self._tell = dist, tell
        self._chosen: dict[str, Profile] = {}

    def __getitem__(self, name: str) -> Profile:
        if name not in self._chosen:
            self._chosen[name] = self._choose(self._dist.variants[name])
        return self._chosen[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dist.variants)

    def __len__(self) -> int:
        return len(self._dist.variants)

    def _choose(self, variants: tuple[Profile, ...]) -> Profile:
        why = []
        for profile in variants if len(variants) > 1 else ():
            lacking = lacking_on(self._dist, profile)
            if lacking is None:
                break
            why.append(message("on {release} {lacking}", release=profile.release, lacking=lacking))
        else:
            profile = variants[-1]
        if why and profile is not variants[0]:
            other = message("`--release {release}` uses that release anyway", release=variants[0].release)
            self._tell(
                message(
                    "{profile} uses release {release}: {why}",
                    profile=profile.name,
                    release=profile.release,
                    why=joined([*why, other], "; "),
                )
            )
        return profile


def stack_taken(dist: Distribution, upstream: str, tell: Tell) -> Stack:
    """Return the stack that an upstream's name means: the only one, else that of the chosen release.

    Without a named release that is the newest on which a profile is proven, else the oldest; `tell` gets a line about
    the choice. Raises WrongUse.
    """
    known = [stack for (owner, _), stack in dist.stacks.items() if owner == upstream]
    if len(known) == 1:
        return known[0]
    releases = [s for s in dist.releases.values() if upstream in s.stacks and dist.named_release in (None, s.name)]
    if not releases:
        what = f"{upstream} has {len(known)} stacks"
        what += f", but release {dist.named_release} has none of them" if dist.named_release else ""
        names = ", ".join(f"{upstream}/{s.name}" for s in known)
        raise WrongUse(what, hint=f"name one of {names}" if known else "`patchctl list stacks` lists every stack")
    taken = next((s for s in releases[:-1] if _proves(dist, s.name)), releases[-1])
    newest = releases[0].name
    why = "" if taken.name == newest else f": no profile is proven on {newest}; `--release {newest}` uses it anyway"
    tell(f"{upstream} means {upstream}/{taken.stacks[upstream]}, of release {taken.name}{why}")
    return dist.stack(upstream, taken.stacks[upstream])


def _proves(dist: Distribution, release: str) -> bool:
    return any(lacking_on(dist, p) is None for p in dist.every_profile() if p.release == release)


def lacking_on(dist: Distribution, profile: Profile) -> str | None:
    """Return why a profile is not proven on its release, or None.

    Reasons: features without a valid record, postponed features, or a stack without patches although another of its
    upstream has some.
    """
    from patchctl.catalog.evidence import Evidence
    from patchctl.stack.plan import select

    chosen, evidence = select(dist, profile, ()), Evidence(dist)
    omitted = {id(one.patch) for one in chosen.omitted}
    later = [f"{f}@{u}" for u, stack in chosen.stacks.items() for f in stack.postponed]
    if later:
        return message("features are postponed: {names}", names=abridged(later, 1))
    unproven = [
        f"{patch.feature}@{upstream}"
        for upstream, stack in chosen.stacks.items()
        for patch in chosen.patches[upstream]
        if id(patch) not in omitted and evidence.unproven(stack, patch) is not None
    ]
    if unproven:
        return message("features are not proven: {names}", names=abridged(unproven, 1))
    for (upstream, _), other in dist.stacks.items():
        stack = chosen.stacks.get(upstream)
        if stack is not None and not chosen.patches[upstream] and stack.comes_from is None and other.patches:
            return message("{stack} has no patches yet", stack=f"{upstream}/{stack.name}")
    return None
