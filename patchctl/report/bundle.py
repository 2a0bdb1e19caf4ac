"""What the verbs of bundles print. Computes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from patchctl.terminal.progress import size_text
from patchctl.terminal.text import visible_line

if TYPE_CHECKING:
    from patchctl.bundle.create import Created
    from patchctl.bundle.layout import Index
    from patchctl.bundle.reader import Bundle
    from patchctl.bundle.signature import Signature
    from patchctl.terminal.style import Style


def created_json(created: Created) -> dict[str, Any]:
    """The shape patchctl.bundle.create/1 (docs/json.md)."""
    tried = {(m.upstream, str(m.form)): [[t.place, t.reason] for t in m.failure.tried] for m in created.missing}
    return {
        **_head(created.path, created.size, created.sha256, created.index, created.signature),
        "missing": [{"upstream": u, "form": f, "tried": tried.get((u, f), [])} for u, f in created.index.missing],
        "skipped": [
            {"upstream": s.upstream, "tried": [[t.place, t.reason] for t in s.tried]} for s in created.plan.skipped
        ],
    }


def created_text(created: Created, style: Style) -> Iterator[str]:
    """What is in it, what is not and where it was looked for, and the digest to hand on beside the file."""
    yield from _sources(created.index, style)
    for missing in created.missing:
        yield f"{missing.upstream:<12} {missing.form:<6} {style.note('not in it')}"
        yield from (
            f"    tried {visible_line(t.place)}: {visible_line(t.reason)}"
            for t in missing.failure.tried
            if not t.place.startswith("cache ")
        )
    for skipped in created.plan.skipped:
        yield f"{skipped.upstream:<12} {style.note('skipped')}: its source could not be had"
        yield from (f"    tried {visible_line(t.place)}: {visible_line(t.reason)}" for t in skipped.tried)
    for planned in created.plan.stacks:
        for left in planned.omitted:
            yield f"{planned.upstream:<12} {style.note('left out')} {left.patch.feature}: {visible_line(left.reason)}"
    yield _size(created.path, created.size, created.index)
    yield from _signed(created.signature, style)
    yield f"sha256 {created.sha256}"


def bundle_json(bundle: Bundle, *, members: bool) -> dict[str, Any]:
    """The shapes patchctl.bundle.verify/1 and patchctl.bundle.show/1 (docs/json.md)."""
    head = _head(bundle.path, bundle.size, bundle.sha256, bundle.index, bundle.signature)
    missing = [{"upstream": u, "form": f} for u, f in bundle.index.missing]
    rows = [{"name": m.name, "size": m.size, "sha256": m.sha256} for m in bundle.index.members]
    distrust = None if bundle.distrust is None else str(bundle.distrust)
    return {**head, "distrust": distrust, "missing": missing, **({"members": rows} if members else {})}


def show_text(bundle: Bundle, style: Style, *, members: bool) -> Iterator[str]:
    """Profile, sources, what is missing, size and digest; with `members` every file."""
    yield f"profile      {bundle.index.profile}"
    if bundle.index.release:
        yield f"release      {bundle.index.release}"
    yield from _sources(bundle.index, style)
    yield from (f"{u:<12} {f:<6} {style.note('not in it')}" for u, f in bundle.index.missing)
    if members:
        yield from (f"{m.sha256}  {m.size:>10}  {visible_line(m.name)}" for m in bundle.index.members)
    yield _size(bundle.path, bundle.size, bundle.index)
    yield from _signed(bundle.signature, style)
    yield f"sha256 {bundle.sha256}"


def verify_text(bundle: Bundle, style: Style) -> Iterator[str]:
    """One line: it is whole."""
    members = len(bundle.index.members)
    yield f"{visible_line(str(bundle.path))}: {style.good('every byte is as it was written')}, {members} members"
    yield from _signed(bundle.signature, style)
    if bundle.unread:
        yield style.note(
            f"{visible_line(bundle.unread.name)} was not looked at: --allowed-signers FILE says whose signatures count"
        )
    yield f"sha256 {bundle.sha256}"


def _signed(signature: Signature | None, style: Style) -> Iterator[str]:
    for signer in signature.signers if signature else ():
        who = f" by {visible_line(signer.principal)}" if signer.principal else ""
        yield f"{style.good('signed')}{who} with {signer.key}"


def _head(path: Path, size: int, sha256: str, index: Index, signature: Signature | None) -> dict[str, Any]:
    rows = [
        {"upstream": s.upstream, "form": s.form, "commit": s.commit, "version": s.version, "member": s.member}
        for s in index.sources
    ]
    signed = signature and {
        "file": str(signature.file),
        "signers": [{"principal": signer.principal, "key": signer.key} for signer in signature.signers],
    }
    head = {
        "file": str(path),
        "size": size,
        "sha256": sha256,
        "profile": index.profile,
        "release": index.release,
        "sources": rows,
    }
    return {**head, "signature": signed}


def _sources(index: Index, style: Style) -> Iterator[str]:
    sizes = {m.name: m.size for m in index.members}
    for source in index.sources:
        what = source.commit if source.form == "git" else f"version {source.version}"
        yield f"{source.upstream:<12} {source.form:<6} {what}  {size_text(sizes[source.member])}"


def _size(path: Path, size: int, index: Index) -> str:
    return f"{visible_line(str(path))}: {size_text(size)} in {len(index.members)} members"
