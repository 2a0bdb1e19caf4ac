"""Turns the patch formats beside mails that `git am` knows, StGit's and Mercurial's, into mails (git's builtin/am.c)."""

from __future__ import annotations

import re

_FIELD = re.compile(rb"(From|Author|Date):")


def as_mail(data: bytes) -> bytes:
    """`data` as a mail where it is a StGit or Mercurial patch; anything else as it is."""
    if data.startswith(b"# HG changeset patch"):
        return _mercurial(data)
    lines = data.lstrip(b"\n").split(b"\n", 3)
    is_stgit = len(lines) > 2 and lines[1] == b"" and _FIELD.match(lines[2]) is not None
    return _stgit(data.lstrip(b"\n")) if is_stgit and not data.startswith((b"From ", b"From:")) else data


def _stgit(data: bytes) -> bytes:
    subject, _, rest = data.partition(b"\n\n")
    head = [b"Subject: " + subject]
    lines = rest.split(b"\n")
    while lines and _FIELD.match(lines[0]):
        head.append(lines.pop(0).replace(b"Author:", b"From:", 1))
    return b"\n".join([*head, b"", *lines])


def _mercurial(data: bytes) -> bytes:
    lines = data.split(b"\n")
    head: list[bytes] = []
    while lines and lines[0].startswith(b"# "):
        line = lines.pop(0)
        if line.startswith(b"# User "):
            head.append(b"From: " + line[len(b"# User ") :])
        elif match := re.fullmatch(rb"# Date (\d+)(?:\.\d+)? (-?\d+)", line):
            west = int(match[2])  # Mercurial counts seconds west of Greenwich
            sign = b"-" if west > 0 else b"+"
            minutes = abs(west) // 60
            head.append(b"Date: %s %s%02d%02d" % (match[1], sign, minutes // 60, minutes % 60))
    subject = lines.pop(0) if lines else b""
    return b"\n".join([*head, b"Subject: " + subject, b"", *lines])
