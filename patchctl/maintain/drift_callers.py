"""What patches of other upstreams call in the releases of a stack: those that stand beside it in a profile. No hunk of theirs
can be lost there, and nothing else that `drift` looks at is of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from patchctl.catalog.evidence import Evidence
from patchctl.maintain.drift_types import CallerDrift
from patchctl.maintain.tripwire_modules import Reader
from patchctl.maintain.tripwires import Source, changed_names
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.types import Stack, Upstream
from patchctl.stack.patches import StackPatch
from patchctl.stack.plan import load_patches


@dataclass(frozen=True)
class Caller:
    """A patch of another stack, with the Python that it writes."""

    stack: Stack
    patch: StackPatch
    sources: tuple[Source, ...]


def beside(dist: Distribution, stack: Stack) -> list[Stack]:
    """The stacks of other upstreams that share a profile with this one."""
    shared = (p.stacks.items() for p in dist.every_profile() if p.stacks.get(stack.upstream) == stack.name)
    return [
        dist.stack(*name) for name in dict.fromkeys(n for names in shared for n in names) if name[0] != stack.upstream
    ]


def tops_of(upstream: Upstream) -> frozenset[str]:
    """The first parts of the names that it can be imported by: `megatron`, whose other packages come with it from git."""
    return frozenset(package.partition(".")[0] for package in upstream.packages)


def naming(callers: Iterable[Caller], tops: frozenset[str]) -> list[Caller]:
    """The callers with a file in which one of these names stands, and these files alone."""
    words = [top.encode() for top in tops]
    found = (replace(c, sources=tuple(s for s in c.sources if any(w in s.data for w in words))) for c in callers)
    return [caller for caller in found if caller.sources]


def calls(callers: Iterable[Caller], tops: frozenset[str], old: Reader, new: Reader) -> Iterator[CallerDrift]:
    """Those of the callers that use what is in the old tree, and gone or different in the new one."""
    before, after = cache(old), cache(new)
    for caller in callers:
        if names := changed_names(caller.sources, before, after, tops):
            stack, patch = caller.stack, caller.patch
            yield CallerDrift(stack.upstream, stack.name, patch.feature, patch.shown, tuple(names))


def unproven_with(dist: Distribution, caller: CallerDrift, own: Stack) -> str | None:
    """Why nothing shows that a caller works with this stack: None where a record of trees with it does, or where a stack that
    stands beside it has left the patch out."""
    near = beside(dist, own)
    said = f"no stack of {caller.upstream} has it with {own.upstream}/{own.name}"
    for stack in (s for (upstream, _), s in dist.stacks.items() if upstream == caller.upstream):
        if stack in near and caller.feature in stack.dropped:
            return None
        patch = next((p for p in load_patches(dist, stack) if p.feature == caller.feature), None)
        if patch is not None and (said := Evidence(dist).unproven(stack, patch, own) or "") == "":
            return None
    return said
