"""Whether every feature stands by itself: on the pin, with what it requires and without all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchctl.check.python_code import Changed
from patchctl.drift.api_diff import Source, uses, written_lines
from patchctl.drift.api_index import module_name
from patchctl.errors import DoesNotApply
from patchctl.findings.report import Finding, from_error
from patchctl.git.catfile import ObjectReader
from patchctl.source.types import Base
from patchctl.stack.build import StackBuilder
from patchctl.stack.patches import StackPatch
from patchctl.stack.select import with_requirements


def check_alone(
    upstream: str, base: Base, patches: Sequence[StackPatch], changes: Sequence[Changed]
) -> Iterator[Finding]:
    """`changes` are what every patch that can be had from this base makes of its files; of others nothing is said."""
    written = {id(c.patch): c for c in changes}
    with ObjectReader(base.repo) as reader:
        builder = StackBuilder(reader, base.commit, base.tree)
        for patch in patches:
            kept = with_requirements(patches, patch, upstream)
            if any(id(p) not in written for p in kept):
                continue
            stay = {id(p) for p in kept}
            try:
                builder.build(patches, [p for p in patches if id(p) not in stay])
            except DoesNotApply as error:
                yield from_error("alone", error, patch.shown, upstream)
            for file, line, said in undeclared_imports(_sources(written[id(patch)]), patches, kept):
                yield Finding("alone", f"{file}:{line} uses {said}", patch.shown, upstream=upstream, patch=patch.shown)


def _sources(changed: Changed) -> list[Source]:
    """The Python that a patch writes: of an upstream file only its own lines."""
    lines = {c.new_path: written_lines(c.hunks) for c in changed.patch.patch.changes if c.new_path is not None}
    return [
        Source(path, after, lines.get(path.encode("utf-8", "surrogateescape")))
        for path, (_, after) in changed.files.items()
        if path.endswith(".py")
    ]


def undeclared_imports(
    sources: Sequence[Source], patches: Sequence[StackPatch], kept: Sequence[StackPatch]
) -> Iterator[tuple[str, int, str]]:
    """(file, line, what it says) where sources use a module that a feature carries which is not among `kept`."""
    stay = {p.feature for p in kept}
    carried = [
        (tuple(module_name(c).split(".")), p.feature) for p in patches if p.feature not in stay for c in p.carried
    ]
    for source in sources:
        for use in uses(source):
            feature = next((f for module, f in carried if use.target[: len(module)] == module), None)
            if feature is not None:
                yield source.path, use.line, f"{'.'.join(use.target)} of {feature}, which it does not require"
                break
