"""A feature by itself, on its stack's pin with only what it requires there: whether it stands so, and how upstream could take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from patchctl.git.catfile import ObjectReader
from patchctl.git.objects import Entry
from patchctl.maintain.tripwire_modules import module_name
from patchctl.maintain.tripwires import Source, uses
from patchctl.patch.header import Header
from patchctl.patch.write import Difference, Side, render_patch
from patchctl.stack.memo import StackResult
from patchctl.stack.patches import StackPatch


@dataclass(frozen=True)
class ForUpstream:
    """Mails that upstream could take, the feature's last, by file name; and what does not go with them, in words."""

    files: Mapping[str, bytes]
    left_out: tuple[str, ...]


def with_requirements(patches: Sequence[StackPatch], wanted: StackPatch, upstream: str) -> list[StackPatch]:
    """A patch of a stack and all that it requires in that stack, in their order."""
    needed, to_see = {wanted.feature}, [wanted]
    by_name = {p.feature: p for p in patches}
    while to_see:
        for feature, other in to_see.pop().requires:
            if other in (None, upstream) and feature not in needed and feature in by_name:
                needed.add(feature)
                to_see.append(by_name[feature])
    return [p for p in patches if p.feature in needed]


def strange_modules(
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


def for_upstream(reader: ObjectReader, result: StackResult, upstream: str, tests: Sequence[str]) -> ForUpstream:
    """Every commit of a stack of one feature and its requirements as a mail without our trailers. `reader` must have the
    base's objects and the result's; `tests` are the feature's, which are for patchctl's harness."""
    files: dict[str, bytes] = {}
    for number, step in enumerate(result.steps, 1):
        differences = [
            Difference(c.path.encode(), _side(reader, c.before), _side(reader, c.after)) for c in step.touched
        ]
        files[f"{number:04d}-{step.patch.feature}.patch"] = render_patch(_plain(step.patch.header), differences)
    *before, wanted = [step.patch for step in result.steps]
    elsewhere = [f"{f}@{u}" for f, u in wanted.requires if u not in (None, upstream)]
    told = [
        f"the trailers {', '.join(wanted.header.trailers)}: they are patchctl's",
        "Signed-off-by: nobody signs for you; `git am --signoff` adds yours",
        f"an author: {wanted.header.name} <{wanted.header.email}> stands there; `git commit --amend --reset-author`",
        *([f"tests in upstream's own form; ours are for patchctl's harness: {', '.join(tests)}"] if tests else []),
        *([f"what it requires in other upstreams: {', '.join(elsewhere)}"] if elsewhere else []),
    ]
    if before:
        told.append(f"nothing of what it requires: {', '.join(p.feature for p in before)} come first, a mail each")
    return ForUpstream(files, tuple(told))


def _side(reader: ObjectReader, entry: Entry | None) -> Side | None:
    return None if entry is None else Side(entry.mode, entry.id, reader.read(entry.id)[1])


def _plain(header: Header) -> Header:
    """The message without its last paragraph, where that is the trailers."""
    body = header.body.strip("\n").split("\n")
    while header.trailers and body and body[-1].strip():
        body.pop()
    return replace(header, body="\n".join(body).strip("\n"), trailers={})
