"""Which addresses a source may be fetched from, and which hosts do not answer.

An address that starts with `-` would reach git as an option (CVE-2022-24439, CVE-2023-40267), and `ext::` runs a
command: both are refused before git sees them, whatever git's own settings say.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from patchctl.errors import WrongUse
from patchctl.language import message
from patchctl.terminal.text import redact, visible_line

PORTS = {"http": 80, "https": 443, "git": 9418, "ssh": 22}
CONNECT_SECONDS = 10.0
# scp-like [user@]host:path. The first character rules out options, "::" remote helpers.
_SCP_LIKE = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9][A-Za-z0-9._-]*:(?![:/]{2})[^\s:].*")
_ACCEPTED = message("an https://, ssh://, git:// or file:// address, host:path, or the path of a local repository")


@dataclass(frozen=True)
class SourcePlace:
    """A place to fetch a repository from. `address` is for git; `shown`, without credentials, is for people."""

    address: str
    shown: str
    local: Path | None = None
    host: tuple[str, int] | None = None


def parse_place(text: str) -> SourcePlace:
    """Parse an address from a manifest, configuration or `--mirror`. Raises WrongUse for disallowed protocols."""
    if text.startswith("-"):
        raise _refused(text, message("it begins with '-' and would be read as an option"))
    if not text or any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        raise _refused(text, message("it is empty or contains a control character"))
    if "::" in text.split("/", 1)[0]:
        raise _refused(text, message("remote helpers such as ext:: run commands"))
    if "://" in text:
        return _parse_url(text)
    if text.startswith(("/", "./", "../", "~")) or text in (".", "..") or os.path.isdir(text):
        return _local(Path(text).expanduser())
    if _SCP_LIKE.fullmatch(text):
        return SourcePlace(text, redact(text))
    raise _refused(text, message("it is neither an address nor a folder"))


def _parse_url(text: str) -> SourcePlace:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refused(text, str(error)) from error
    scheme = parts.scheme.lower()
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise _refused(text, message("a file:// address cannot name a host"))
        return _local(Path(unquote(parts.path)))
    if scheme not in PORTS:
        raise _refused(text, message("the protocol {scheme} is not allowed", scheme=visible_line(scheme)))
    if not host or host.startswith("-") or any(c.isspace() for c in text):
        raise _refused(text, message("its host is missing or begins with '-', or it contains a blank"))
    return SourcePlace(text, redact(text), host=(host, port or PORTS[scheme]))


def _local(path: Path) -> SourcePlace:
    path = Path(os.path.abspath(path))
    return SourcePlace(str(path), visible_line(str(path)), local=path)


def _refused(text: str, why: str) -> WrongUse:
    return WrongUse(
        message("{address} is not a valid source: {why}", address=repr(redact(text)), why=why),
        hint=message("use {accepted}", accepted=_ACCEPTED),
    )


def has_proxy(url: str) -> bool:
    """Whether the environment (https_proxy, all_proxy, no_proxy, ...) sets a proxy for this address."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(url)
    return bool(getproxies().keys() & {parts.scheme, "all"}) and not proxy_bypass(parts.hostname or "")


_unreachable: dict[tuple[str, int], str] = {}
_unreachable_lock = threading.Lock()


def known_unreachable(host: tuple[str, int] | None) -> str | None:
    """Return why this host was given up earlier in this run, or None, so that each dead host costs one wait."""
    with _unreachable_lock:
        return _unreachable.get(host) if host else None


def remember_unreachable(host: tuple[str, int] | None, reason: str) -> None:
    """Give up on a host for the rest of this run."""
    if host:
        with _unreachable_lock:
            _unreachable.setdefault(host, reason)


def why_unreachable(host: tuple[str, int], seconds: float | None = None) -> str | None:
    """Try to connect within `seconds` (CONNECT_SECONDS) and return why that fails, or None. Remembers failures.

    git would wait for minutes. Runs in a thread, since name look-ups have no timeout.
    """
    known = known_unreachable(host)
    if known:
        return known
    import socket

    limit = CONNECT_SECONDS if seconds is None else seconds
    outcome: list[str | None] = []

    def connect() -> None:
        try:
            socket.create_connection(host, timeout=limit).close()
            outcome.append(None)
        except OSError as error:
            outcome.append(error.strerror or str(error) or type(error).__name__)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(limit + 1)
    reason = outcome[0] if outcome else message("no answer within {seconds} s", seconds=f"{limit:.0f}")
    if reason is None:
        return None
    reason = message("{host} cannot be reached: {reason}", host=host[0], reason=reason)
    remember_unreachable(host, reason)
    return reason
