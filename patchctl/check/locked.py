"""Compares patches with the locks, without any source: pins, digests, and the ids of every `index` line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from patchctl.check.series import Key, Series
from patchctl.errors import BadManifest
from patchctl.findings.report import Finding
from patchctl.git.objects import object_id
from patchctl.manifest.distribution import Distribution
from patchctl.manifest.lock import Lock, LockedPatch, lock_file, pin_record, read_lock
from patchctl.stack.patches import StackPatch

_WRITE = "`patchctl lock` writes it"
Ids = tuple[str | None, str | None]


def check_locks(dist: Distribution, series: Series) -> Iterator[Finding]:
    """The lock of every stack whose patches could be read."""
    for key, patches in series.stacks.items():
        shown = lock_file(dist.root, *key).relative_to(dist.root).as_posix()
        try:
            lock = read_lock(dist.root, dist.stacks[key])
        except BadManifest as error:
            yield Finding("lock", error.what, shown, upstream=key[0])
            continue
        if lock is None:
            yield Finding("lock", f"the stack {key[1]} of {key[0]} has no lock: {_WRITE}", shown, upstream=key[0])
            continue
        yield from _stale(dist, key, lock, patches, shown)
        locked = {(p.file, p.digest): p for p in lock.patches}
        for patch in patches:
            found = locked.get((patch.file.name, patch.digest))
            if found is not None:
                yield from _blobs(key[0], patch, found)


def _stale(dist: Distribution, key: Key, lock: Lock, patches: Sequence[StackPatch], shown: str) -> Iterator[Finding]:
    """A lock that was made for something else."""
    upstream = key[0]
    if (lock.upstream, lock.stack) != key:
        yield Finding("lock", f"it is the lock of {lock.upstream} {lock.stack}", shown, upstream=upstream)
    if lock.pin != pin_record(dist.stacks[key].pin):
        yield Finding(
            "lock", f"the lock is for another pin than the manifest's; {_WRITE} anew", shown, upstream=upstream
        )
    digests = {p.file: p.digest for p in lock.patches}
    for patch in patches:
        if digests.get(patch.file.name) not in (None, patch.digest):
            message = f"the patch or a file that it carries is not the one that is locked; {_WRITE} anew"
            yield Finding("lock", message, patch.shown, None, "error", upstream, patch.feature)
    listed, known = [p.file.name for p in patches], list(digests)
    if listed != known:
        odd = [f for f in listed if f not in known] + [f for f in known if f not in listed]
        what = f"the lock has another list of patches: {', '.join(odd) or 'their order'}; {_WRITE} anew"
        yield Finding("lock", what, shown, upstream=upstream)


def _blobs(upstream: str, patch: StackPatch, locked: LockedPatch) -> Iterator[Finding]:
    if locked.files is None:
        return  # no form could be computed when the lock was written; the lock says so
    expected = {f.path: (f.before and f.before[1], f.after and f.after[1]) for f in locked.files}
    own, lines = _own_blobs(patch)
    for path in sorted(expected.keys() | own.keys()):
        if path not in own or path not in expected:
            what = f"{path} is changed by the {'lock' if path not in own else 'patch'} alone"
        elif not _agree(own[path], expected[path]):
            what = f"{path}: the patch says {_show(own[path])}, the lock {_show(expected[path])}"
        else:
            continue
        yield Finding("lock-blob", what, patch.shown, lines.get(path), "error", upstream, patch.feature)


def _own_blobs(patch: StackPatch) -> tuple[dict[str, Ids], dict[str, int]]:
    """What the `index` lines and the carried files say of every path: ids before and after; and the lines."""
    own: dict[str, Ids] = {}
    lines: dict[str, int] = {}
    for change in patch.patch.changes:
        for path in {change.old_path, change.new_path} - {None}:
            assert path is not None
            before = change.old_id or "" if path == change.old_path and change.kind != "copy" else None
            after = change.new_id or "" if path == change.new_path else None
            if change.kind != "copy" or path == change.new_path:
                own[path.decode("utf-8", "surrogateescape")] = (before, after)
                lines[path.decode("utf-8", "surrogateescape")] = change.line
    for name, data in patch.carried.items():
        own[name] = (None, object_id("blob", data))
    return own, lines


def _agree(own: Ids, locked: Ids) -> bool:
    """An id that the patch abbreviates, or does not give, agrees as far as it goes; rule full-index speaks of those."""
    return all(
        (a is None) == (b is None) and (a is None or b is None or b.startswith(a))
        for a, b in zip(own, locked, strict=True)
    )


def _show(ids: Ids) -> str:
    return "..".join("nothing" if i is None else i[:12] or "no id" for i in ids)
