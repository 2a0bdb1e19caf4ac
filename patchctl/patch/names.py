"""File names in patches: git's C-style quoting, and which paths a patch may touch."""

from __future__ import annotations

import re
import unicodedata

# Files for git itself: no patch may touch them, but a repository and a source distribution may well have some.
GIT_OWN = (b".gitattributes", b".gitmodules")
_ESCAPES = {b"a": 7, b"b": 8, b"t": 9, b"n": 10, b"v": 11, b"f": 12, b"r": 13, b'"': 34, b"\\": 92}
_OCTAL = re.compile(rb"[0-3][0-7][0-7]")
_LONGEST_PATH = 4000
_DEEPEST = 100
_WINDOWS_DEVICES = {"con", "prn", "aux", "nul", *(f"com{i}" for i in range(1, 10)), *(f"lpt{i}" for i in range(1, 10))}
# NTFS short names (8.3) of .gitmodules and .gitattributes.
_NTFS_SHORT = re.compile(r"(gitmod|gitatt|gi7eba|gi7d29)~[0-9]")
# Code points that HFS+ ignores in names; git refuses `.git` spelt with them (CVE-2014-9390).
_HFS_IGNORED = {*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF}


def path_text(path: bytes) -> str:
    """Return a path for messages: ASCII only, so that it cannot steer a terminal."""
    return ascii(path.decode("utf-8", "backslashreplace"))[1:-1]


def unquote(text: bytes) -> tuple[bytes, bytes]:
    """Read one C-quoted name from the start of `text`; return it and what follows the closing quote.

    Raises ValueError when the quoting is broken.
    """
    out = bytearray()
    at = 1
    while at < len(text):
        byte = text[at : at + 1]
        if byte == b'"':
            return bytes(out), text[at + 1 :]
        if byte != b"\\":
            out += byte
            at += 1
            continue
        escape = text[at + 1 : at + 2]
        if escape in _ESCAPES:
            out.append(_ESCAPES[escape])
            at += 2
        else:
            digits = text[at + 1 : at + 4]
            if _OCTAL.fullmatch(digits) is None:
                raise ValueError("a quoted name has a broken escape")
            out.append(int(digits, 8))
            at += 4
    raise ValueError("a quoted name has no closing quote")


def quote(name: bytes) -> bytes:
    """Quote `name` as git does in a diff: for control characters, quotes, backslashes and bytes over 127."""
    if all(0x20 <= b < 0x7F and b not in b'"\\' for b in name):
        return name
    back = {v: k for k, v in _ESCAPES.items()}
    parts = []
    for b in name:
        if b in back:
            parts.append(b"\\" + back[b])
        elif 0x20 <= b < 0x7F:
            parts.append(bytes([b]))
        else:
            parts.append(b"\\%03o" % b)
    return b'"' + b"".join(parts) + b'"'


def parse_name(text: bytes) -> bytes:
    """Read the name after `---` or `+++`: quoted or not, up to a tab."""
    if text.startswith(b'"'):
        try:
            name, rest = unquote(text)
        except ValueError:
            return text
        return name if not rest or rest.startswith(b"\t") else text
    return text.split(b"\t", 1)[0] if b"\t" in text else text


def parse_moved(text: bytes) -> bytes:
    """Read the name after `rename from`, `copy to`, ...: quoted, or the whole line, since git ends it at no tab."""
    return parse_name(text) if text.startswith(b'"') else text


def header_names(text: bytes) -> list[tuple[bytes, bytes]]:
    """Return every way to split `a/OLD b/NEW` after `diff --git`; ambiguous if names contain blanks."""
    pairs = []
    try:
        if text.startswith(b'"'):
            old, rest = unquote(text)
            pairs += [(old, parse_name(rest[1:]))] if rest.startswith(b" ") else []
        elif b'"' in text:  # git starts the second name at the first quote, wherever it is
            old, _, rest = text.partition(b' "')
            pairs += [(old, parse_name(b'"' + rest))] if rest and b'"' not in old else []
        else:
            at = text.find(b" b/")
            while at >= 0:
                pairs.append((text[:at], text[at + 1 :]))
                at = text.find(b" b/", at + 1)
    except ValueError:
        return []
    return [(a[2:], b[2:]) for a, b in pairs if a.startswith(b"a/") and b.startswith(b"b/")]


def why_refused(path: bytes) -> str | None:
    """Return why a patch may not touch this path, or None. docs/hostile-input.md has the background."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return "its name is not UTF-8"
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text) or any(unicodedata.category(c) in ("Cc", "Cf") for c in text):
        return "its name contains a control or formatting character"
    if text.startswith("/") or "\\" in text or (len(text) > 1 and text[1] == ":"):
        return "it is absolute or contains a backslash"
    if len(path) > _LONGEST_PATH:
        return f"its name is longer than {_LONGEST_PATH} bytes"
    if text.count("/") > _DEEPEST:
        return f"it is more than {_DEEPEST} folders deep"
    for part in text.split("/"):
        reason = _why_part_refused(part)
        if reason:
            return reason
    return None


def _why_part_refused(part: str) -> str | None:
    plain = "".join(c for c in part if ord(c) not in _HFS_IGNORED).casefold().rstrip(". ")
    if part in ("", ".", ".."):
        return "it leaves the tree or has an empty component"
    if plain in (".git", "git~1") or plain.startswith(".git:"):
        return "it is inside .git"
    if plain in (".gitattributes", ".gitmodules") or _NTFS_SHORT.fullmatch(plain):
        return f"{plain} changes how git treats other files"
    if plain.split(".")[0] in _WINDOWS_DEVICES:
        return "it is the name of a device on Windows"
    if len(part.encode("utf-8")) > 255:
        return "a component is longer than 255 bytes"
    return None


def collision_key(path: bytes) -> str:
    """Return a key that is equal for paths that collide where case or Unicode form is ignored."""
    return unicodedata.normalize("NFC", path.decode("utf-8", "surrogateescape")).casefold()
