"""Whether every feature stands by itself: on the pin, with what it requires and without all others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchctl.check.python_code import Changed
from patchctl.errors import DoesNotApply
from patchctl.findings.report import Finding, from_error
from patchctl.git.catfile import ObjectReader
from patchctl.maintain.alone import strange_modules, with_requirements
from patchctl.maintain.tripwires import Source, written_lines
from patchctl.source.types import Base
from patchctl.stack.build import StackBuilder
from patchctl.stack.patches import StackPatch


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
            for file, line, said in strange_modules(_sources(written[id(patch)]), patches, kept):
                yield Finding("alone", f"{file}:{line} uses {said}", patch.shown, upstream=upstream, patch=patch.shown)


def _sources(changed: Changed) -> list[Source]:
    """The Python that a patch writes: of an upstream file only its own lines."""
    lines = {c.new_path: written_lines(c.hunks) for c in changed.patch.patch.changes if c.new_path is not None}
    return [
        Source(path, after, lines.get(path.encode("utf-8", "surrogateescape")))
        for path, (_, after) in changed.files.items()
        if path.endswith(".py")
    ]
