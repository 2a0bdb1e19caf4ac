"""Copies packs between object stores and checks their trailing digests."""

from __future__ import annotations

import filecmp
import hashlib
from pathlib import Path
from typing import IO

from patchctl.atomic import make_folder, replacing
from patchctl.errors import SourceMismatch

_PIECE, _DIGEST = 1 << 20, 20
_AGAIN = "`patchctl fetch --refresh` fetches it again"


def bring_pack(pack: Path, folder: Path, *, anew: bool = False) -> None:
    """Copy a pack and its index into another object store. Raises SourceMismatch if either was modified.

    With `anew`, an existing file is replaced if its bytes differ. Files are copied, not hard-linked: a byte that
    changes in the cache must not change a workspace. Their digests are checked here because git does so only in `git
    fsck`, and a bad object must not be found with half of a tree written.
    """
    make_folder(folder)
    for source in (pack, pack.with_suffix(".idx")):
        target = folder / source.name
        if target.exists() and not (anew and _is_other(target, source)):
            continue
        # fsynced, since the journal relies on it
        with _opened(source) as whole, replacing(target, 0o444) as out:
            if not _copied(whole, out):
                raise _changed(source)


def ends_with_digest(file: Path) -> bool:
    """Whether a pack or index ends with the SHA-1 of all that precedes. Raises OSError."""
    with open(file, "rb") as source:
        return _copied(source, None)


def _is_other(target: Path, source: Path) -> bool:
    with _opened(source):
        pass
    if not filecmp.cmp(target, source, shallow=False):
        return True
    if not ends_with_digest(source):
        raise _changed(source)
    return False


def _opened(file: Path) -> IO[bytes]:
    try:
        return open(file, "rb")
    except FileNotFoundError:
        raise SourceMismatch("the file is gone", where=str(file), hint=_AGAIN) from None


def _changed(file: Path) -> SourceMismatch:
    return SourceMismatch("the file was modified: its digest does not match", where=str(file), hint=_AGAIN)


def _copied(source: IO[bytes], out: IO[bytes] | None) -> bool:
    """Copy in pieces, since packs can be hundreds of megabytes; return whether the trailing digest matches."""
    digest, last = hashlib.sha1(usedforsecurity=False), b""
    while piece := source.read(_PIECE):
        if out is not None:
            out.write(piece)
        held = last + piece
        digest.update(held[:-_DIGEST])
        last = held[-_DIGEST:]
    return digest.digest() == last
