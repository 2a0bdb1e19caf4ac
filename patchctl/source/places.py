"""Which addresses a source may be fetched from, which hosts do not answer, and which package indexes pip is configured for.

An address that starts with `-` would reach git as an option (CVE-2022-24439, CVE-2023-40267), and `ext::` runs a
command: both are refused before git sees them, whatever git's own settings say.

A machine behind a company index, or offline with a folder of files, is already configured for pip. pip merges its
files (system, user, site, PIP_CONFIG_FILE) with PIP_* variables; `pip config list` prints the result.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from patchctl.errors import WrongUse
from patchctl.language import message
from patchctl.process_group import ask, find_program
from patchctl.terminal.text import one_line, redact, visible_line

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
        return _local(Path(os.path.expanduser(text)))
    if _SCP_LIKE.fullmatch(text):
        return SourcePlace(text, redact(text))
    raise _refused(text, message("it is neither an address nor a folder"))


def _parse_url(text: str) -> SourcePlace:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:  # whose words may have part of a password
        why = message("its host or port is invalid; in a password / is %2F, and @ is %40")
        raise _refused(text, why) from error
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


PYPI = "https://pypi.org/simple"
_PIP_SECONDS = 60.0
# Later sections win, as in `pip download`; `install` is where most people set it.
_SECTIONS = ("global", "install", "download", ":env:")
_TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})


@dataclass(frozen=True)
class IndexConfig:
    """Where packages come from. `find_links` are folders, pages or archives; `timeout` is for reads, in seconds."""

    index_urls: tuple[str, ...]
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: tuple[str, ...] = ()
    proxy: str | None = None
    timeout: float = 15.0


def machine_config() -> IndexConfig:
    """Return `read_config` of this process's environment, cached: pip takes a third of a second to answer."""
    return _config_of(frozenset(os.environ.items()))


@functools.lru_cache(maxsize=1)
def _config_of(environment: frozenset[tuple[str, str]]) -> IndexConfig:
    return read_config(dict(environment))


def read_config(environment: Mapping[str, str]) -> IndexConfig:
    """Return pip's configuration, or only the PIP_* variables if pip cannot be run.

    Raises WrongUse for a file of pip's that pip cannot read: what it names may be all that a machine may ask.
    """
    settings = _from_pip(environment)
    return from_settings(dict(_from_variables(environment) if settings is None else settings), environment)


def from_settings(settings: Mapping[str, str], environment: Mapping[str, str]) -> IndexConfig:
    """Build an IndexConfig from `settings`: pip's long options without dashes, values as in pip's files."""

    def words(name: str) -> tuple[str, ...]:
        return tuple(settings.get(name, "").split())

    main = settings.get("index-url") or settings.get("pypi-url") or PYPI
    indexes = () if settings.get("no-index", "").lower() in _TRUE else (main, *words("extra-index-url"))
    cert = settings.get("cert") or environment.get("REQUESTS_CA_BUNDLE") or environment.get("CURL_CA_BUNDLE")
    return IndexConfig(
        index_urls=tuple(dict.fromkeys(indexes)),
        find_links=tuple(dict.fromkeys(words("find-links"))),
        cert=cert or None,
        client_cert=settings.get("client-cert") or None,
        trusted_hosts=words("trusted-host"),
        proxy=_proxy(settings.get("proxy")),
        timeout=_seconds(settings.get("timeout") or settings.get("default-timeout")),
    )


def _proxy(text: str | None) -> str | None:
    """pip takes HOST:PORT, too."""
    return (text if "://" in text else f"http://{text}") if text else None


def _seconds(text: str | None) -> float:
    try:
        return max(1.0, float(text)) if text else 15.0
    except ValueError:
        return 15.0


def _from_pip(environment: Mapping[str, str]) -> list[tuple[str, str]] | None:
    own = {**environment, "PIP_NO_COLOR": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for command in _pips(environment):
        try:
            # `python -m pip` would import a folder named pip from the current directory
            done = ask([*command, "config", "list"], _PIP_SECONDS, env=own, cwd=os.sep)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if done.returncode == 0:
            return _parse(done.stdout)
        if "onfiguration file" in done.stderr:
            raise WrongUse(
                message("pip cannot read its configuration: {problem}", problem=redact(one_line(done.stderr))),
                hint=message("mend that file, or set PIP_CONFIG_FILE=/dev/null, which leaves pip's files out"),
            )
    return None


def _pips(environment: Mapping[str, str]) -> Iterator[list[str]]:
    yield [sys.executable, "-m", "pip"]
    for name in ("pip", "pip3"):
        found = find_program(name, environment)
        if found:
            yield [found]


def _parse(text: str) -> list[tuple[str, str]]:
    """Parse lines section.key='value', quoted as in Python. Sorted so that later ones win."""
    by_section: dict[str, list[tuple[str, str]]] = {section: [] for section in _SECTIONS}
    for line in text.splitlines():
        place, equals, quoted = line.partition("=")
        section, _, key = place.rpartition(".")
        if not equals or section not in by_section:
            continue
        try:
            value = ast.literal_eval(quoted)
        except (ValueError, SyntaxError):
            continue
        by_section[section].append((key, str(value)))
    return [pair for section in _SECTIONS for pair in by_section[section] if pair[1].strip()]


def _from_variables(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, value in environment.items():
        if name.startswith("PIP_") and value.strip():
            yield name.removeprefix("PIP_").lower().replace("_", "-"), value
