"""The text of a RECORD, in which an installer lists a package's files with their digests and sizes."""

from __future__ import annotations

import base64
import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping

from patchctl.workspace.files import bytecode_of


def listed(record: bytes) -> frozenset[bytes]:
    """The paths that a RECORD names."""
    return frozenset(os.fsencode(path) for path, _ in _rows(record))


def rewritten(record: bytes, changes: Mapping[bytes, bytes | None]) -> bytes:
    """A RECORD in which the files `changes` have these contents, or are gone (None); every other line stays as it is.

    Lines of their modules' byte code go: it is dropped, and what Python writes anew no installer has listed.
    """
    if not changes:
        return record
    stale = set(bytecode(record, changes))
    lines, seen = [], set()
    end = b"\r\n" if record.partition(b"\n")[0].endswith(b"\r") else b"\n"
    for path, line in _rows(record):
        name = os.fsencode(path)
        seen.add(name)
        content = changes.get(name)
        if content is not None:
            lines.append(_line(path, content) + end)
        elif name not in changes and name not in stale:
            lines.append(line)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += end
    new = sorted((p, c) for p, c in changes.items() if c is not None and p not in seen)
    return b"".join([*lines, *(_line(os.fsdecode(p), c) + end for p, c in new)])


def bytecode(record: bytes, modules: Iterable[bytes]) -> Iterator[bytes]:
    """The files that a RECORD names and that Python compiled of these modules."""
    wanted = {os.path.split(p[:-2]) for p in modules if p.endswith(b".py")}  # folder, and name with the dot
    for path in listed(record):
        folder, name = os.path.split(path)
        above, cache = os.path.split(folder)
        stem = name.partition(b".")[0] + b"."
        if cache == b"__pycache__" and (above, stem) in wanted and bytecode_of(stem, name):
            yield path


def _rows(record: bytes) -> Iterator[tuple[str, bytes]]:
    """The path of each line, and the line with its end. A name that needs quotes has them, as in any CSV."""
    import csv

    for line in record.splitlines(keepends=True):
        text = line.decode("utf-8", "surrogateescape").rstrip("\r\n")
        try:
            row = next(csv.reader([text]), None)
        except csv.Error:  # longer than a field may be, or with a NUL before Python 3.11: it names no file
            row = [text]
        if row:
            yield row[0], line


def _line(path: str, content: bytes) -> bytes:
    import csv

    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode("ascii")
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([path, f"sha256={digest}", len(content)])
    return out.getvalue().encode("utf-8", "surrogateescape")
