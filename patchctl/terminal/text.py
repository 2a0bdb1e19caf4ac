"""Text for people: untrusted text made safe to show in a terminal, a log or a message; colours; and how errors look.

Subjects, authors, file names, git's stderr and addresses can contain escape sequences that rewrite the screen, and
addresses can contain credentials. Neither leaves the tool.
"""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TextIO

from patchctl.errors import PatchctlError
from patchctl.language import Translatable, joined, message, translated

# Control, formatting (bidirectional marks, zero-width characters, tags), surrogate, private use, unassigned, line and
# paragraph separators. https://trojansource.codes shows attacks with formatting ones.
_SHOWN_AS_ESCAPES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_SECRET_NAMES = (
    "token|(?:access|private|auth)[_-]token|password|passwd|secret|api[_-]?key|access[_-]?key"
    "|sig|signature|x-amz-[a-z-]*|auth"
)
_SECRET_QUERY = re.compile(rf"(?i)(?<=[?&;])({_SECRET_NAMES})=[^&;#\s]*")
_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<userinfo>[^/?#\s]*|[^/?#\s:@]*:(?!\d+/)\S*)@")
_AUTHORISATION = re.compile(r"(?i)\b((?:proxy-)?authorization:\s*)\S+(?:\s+\S+)?")


def visible(text: str, kept: str = "\n\t") -> str:
    """Escape every character that a terminal acts on, except those `kept`: line ends and tabs."""
    if text.isascii() and text.isprintable():  # the usual case
        return text
    shown = "".join(c if c in kept else _shown(c) for c in text)
    return text if shown == text else shown  # a message stays one


def visible_line(text: str) -> str:
    """Like `visible`, but escape line ends and tabs too."""
    return visible(text, kept="")


def _shown(character: str) -> str:
    escaped = unicodedata.category(character) in _SHOWN_AS_ESCAPES
    return character.encode("unicode_escape").decode() if escaped else character


def redact(url: str) -> str:
    """Return an address without credentials: no user information, no secrets in the query.

    The user of an ssh address (`git@`) stays: it is part of the address, and ssh keeps secrets elsewhere.
    """
    from urllib.parse import urlsplit, urlunsplit

    try:
        parts = urlsplit(url)
        _ = parts.port  # raises if part of a password containing a slash is taken as the port
    except ValueError:
        return f"{url.partition('://')[0]}://(an invalid address)" if "://" in url else visible_line(url)
    if parts.scheme and "@" in parts.netloc:
        userinfo, _, host = parts.netloc.rpartition("@")
        kept = userinfo.partition(":")[0] + "@" if parts.scheme in ("ssh", "git+ssh") else ""
        url = urlunsplit(parts._replace(netloc=kept + host))
    return visible_line(_SECRET_QUERY.sub(r"\1=***", url))


def redact_text(text: str) -> str:
    """Remove credentials from every address in `text`, such as messages of git and HTTP libraries."""
    text = _USERINFO.sub(_without_userinfo, text)
    text = _SECRET_QUERY.sub(r"\1=***", text)
    return _AUTHORISATION.sub(r"\1***", text)


def _without_userinfo(match: re.Match[str]) -> str:
    scheme, userinfo = match["scheme"], match["userinfo"]
    if scheme.lower() == "ssh://":
        return f"{scheme}{userinfo.partition(':')[0]}@"
    return scheme


def one_line(text: str, limit: int = 300) -> str:
    """Return untrusted text as one safe line of at most `limit` characters, without credentials.

    Text that is one already is returned itself, so that a message can still be translated.
    """
    line = visible_line(" ".join(redact_text(text).split()))
    if line == text and len(line) <= limit:
        return text
    return line if len(line) <= limit else line[: limit - 3] + "..."


def columns(text: str) -> int:
    """Return how many terminal columns `text` takes: two for a Chinese character, none for a combining one."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def padded(text: str, width: int) -> str:
    """Return `text` with spaces up to `width` columns."""
    return text + " " * (width - columns(text))


def cut(text: str, width: int) -> str:
    """Return as much of the start of `text` as fits into `width` columns."""
    end = min(len(text), width)
    while columns(text[:end]) > width:
        end -= 1
    return text[:end]


COLOR = re.compile("(\x1b\\[[0-9;]*m)")
# A command that stands by itself is for copying: no line end goes into it.
_COMMAND = re.compile(
    r"(?:^ *|[:：] ?| {2})(?:export |(?:[A-Z_]+=\S+ )*(?:\S*/)?(?:patchctl|python3? -m|\w+\.sh) )"
    r"|(?:^ *|try: |：)(?:make|git|docker|pip|bash) |\\$"
)
# What stays in one line: code, a word or a Chinese character, with the bracket before it and the punctuation behind it.
_WIDE, _CLOSING = "\u2e80-\u9fff\uff00-\uffef", "，。；：、）！？》」"
_PIECE = re.compile(rf"[（《]?(?:`[^`]*`[^\s{_WIDE}]*|[{_WIDE}]|[^\s{_WIDE}]+)[{_CLOSING}]*| +")
_COLUMN = re.compile(r"(?<=\S) {2,}(?=\S)")


def wrapped(line: str, width: int) -> list[str]:
    """Break a line at spaces to `width` columns of a terminal. What follows is indented as the last column that begins in its first half.

    Nothing is cut: a word that is longer, and a line that is a command, stay whole.
    """
    plain = COLOR.sub("", line)
    if columns(plain) <= width or _COMMAND.search(plain):
        return [line]
    starts = [columns(plain[: gap.end()]) for gap in _COLUMN.finditer(plain)]
    leading = len(plain) - len(plain.lstrip(" "))
    indent = max([start for start in starts if start <= width // 2], default=min(leading + 2, width // 2))
    lines, at = [""], 0
    for piece in (
        found for part in COLOR.split(line) for found in ([part] if COLOR.match(part) else _PIECE.findall(part))
    ):
        size = 0 if COLOR.match(piece) else columns(piece)
        if at + size > width and at > indent and not piece.isspace():
            lines[-1] = lines[-1].rstrip(" ")
            lines.append(" " * indent)
            at = indent
        if not (piece.isspace() and at == indent and len(lines) > 1):
            lines[-1] += piece
            at += size
    return lines


def width_of(stream: TextIO) -> int:
    """Return the columns of a terminal, 0 where the stream is none or does not know."""
    with suppress(OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns if stream.isatty() else 0
    return 0


def fitted(text: str, width: int) -> str:
    """Return the lines of `text` wrapped to a terminal of that width; as they are where it is 0."""
    return "\n".join(part for line in text.split("\n") for part in wrapped(line, width)) if width else text


def abridged(items: Sequence[object], shown: int) -> str:
    """Return the first items as an enumeration, and how many more there are."""
    names = joined(item if isinstance(item, str) else str(item) for item in items[:shown])
    if len(items) <= shown:
        return names
    return message("{names} and {more} more", names=names, more=len(items) - shown)


def summarised(summary: Iterable[str], details: Iterable[str], *, verbose: bool, more: str) -> Iterator[str]:
    """Yield a summary, and below it the details, or without `verbose` what -v adds."""
    yield from summary
    if verbose:
        yield ""
        yield from details
    else:
        yield f"-v adds {more}"


def counted(number: int, word: str) -> str:
    """Format a count: 1 node, 2 nodes."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def patch_count(count: int) -> str:
    """Format a count: 1 patch, 2 patches."""
    return message("{count} patch", count=count) if count == 1 else message("{count} patches", count=count)


def device_count(count: int) -> str:
    """Format a count: 1 device, 2 devices."""
    return message("{count} device", count=count) if count == 1 else message("{count} devices", count=count)


class Style:
    """Colours, or none."""

    def __init__(self, on: bool) -> None:
        self._on = on

    def __call__(self, text: str, **style: Any) -> str:
        if not self._on:
            return text
        import click  # which the nodes of a cluster and the scripts have not

        return click.style(text, **style)

    def good(self, text: str) -> str:
        return self(text, fg="green")

    def bad(self, text: str) -> str:
        return self(text, fg="red", bold=True)

    def note(self, text: str) -> str:
        return self(text, fg="yellow")


# Where a line or a hint names a command of ours that is for copying: by itself, behind its label, or in backticks.
_OURS = re.compile(r"((?:^ *|next: |try: |下一步：|建议：|; |, (?:then )?|`)(?:[A-Z_]+=\S* )*patchctl )(?=[a-z])")
ADVICE = ("next: ", "try: ", "下一步：", "建议：")


class _Root:
    named = ""


def name_root(root: str) -> None:
    """Have every command that is shown from now on name this distribution, as a run without would take another; "" for none."""
    _Root.named = root


def with_root(text: str) -> str:
    """Return text with its commands of patchctl as they work here."""
    return _OURS.sub(lambda found: f"{found[1]}--root {_Root.named} ", text) if _Root.named else text


def render_error(error: PatchctlError, *, as_json: bool, program: str = "patchctl") -> None:
    """Print an error of `program`, patchctl or a script. Untrusted text is escaped."""
    if as_json:
        told = error.as_json()
        if error.hint:
            told["hint"] = with_root(error.hint)
        text = json.dumps({"schema": "patchctl.error/1", "error": told}, indent=2, ensure_ascii=True)
        print(text, flush=True)  # where nothing can be written that is known before the error is told, once
    width = width_of(sys.stderr)
    print(fitted(f"{program}: {visible(error.text(translated))}", width), file=sys.stderr)
    if error.hint:
        hint = message("try: {todo}", todo=error.hint) if isinstance(error.hint, Translatable) else f"try: {error.hint}"
        print(fitted(f"  {with_root(visible(translated(hint)))}", width), file=sys.stderr)
