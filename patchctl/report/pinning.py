"""What `pin` found, as lines and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.pin.pin import Pinned


def lines(pinned: Pinned, root: Path, *, written: bool) -> Iterator[str]:
    """The pin, what was not had, what to look at, the proposal, and what to do next."""
    stack, pin = pinned.stack, pinned.stack.pin
    name = f"{stack.upstream}/{stack.name}"
    yield f"{name}  comes from {pinned.like.name}"
    yield f"    commit  {pin.commit or 'none: the source distribution alone is pinned'}{f'  tag {pin.tag}' if pin.tag else ''}"
    yield f"    tree    {pin.tree or 'not established: no repository could be had'}"
    yield f"    sdist   {f'{pin.sdist.version}  {pin.sdist.sha256}' if pin.sdist else 'none'}"
    yield from (visible_line(f"    {base.form} from {base.origin}") for base in pinned.bases)
    yield from (visible_line(f"    not had from {t.place}: {t.reason}") for t in pinned.tried)
    yield from (visible_line(f"    {note}") for note in pinned.notes)
    if pinned.runtime:
        yield "proposal for a profile's `runtime:`, read from upstream's own files; no profile was changed:"
        yield from (visible_line(f"    {p.name:<12} {p.value:<16} {p.file}:{p.line}") for p in pinned.runtime)
    if not written:
        yield "dry run: nothing was written; the manifest would be"
        yield from pinned.text.splitlines()
        return
    yield f"written  {pinned.file.relative_to(root).as_posix()}"
    yield f"next: patchctl rebase {stack.upstream}/{pinned.like.name} --to {name}"


def data(pinned: Pinned, *, written: bool) -> dict[str, Any]:
    """The shape `patchctl.pin/1`, less its name."""
    stack, pin = pinned.stack, pinned.stack.pin
    return {
        "upstream": stack.upstream,
        "stack": stack.name,
        "comes_from": pinned.like.name,
        "written": written,
        "file": str(pinned.file),
        "commit": pin.identity,
        "tree": pin.tree,
        "tag": pin.tag,
        "sdist": asdict(pin.sdist) if pin.sdist else None,
        "forms": [b.form for b in pinned.bases],
        "generated": [g.path for g in stack.generated],
        "notes": list(pinned.notes),
        "runtime": [asdict(p) for p in pinned.runtime],
        "tried": [[t.place, t.reason] for t in pinned.tried],
        "manifest": pinned.text,
    }
