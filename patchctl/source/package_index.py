"""Finds a source distribution on package indexes and downloads it. The only module that talks to them.

unearth finds the files (simple index as HTML or JSON, find-links, netrc, keyring). Only the pinned sha256 decides
which one is right: two indexes can use the same name, and anyone can upload to one of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from patchctl.errors import SourceMismatch, Tried, WrongUse
from patchctl.language import joined, message
from patchctl.manifest.types import Sdist
from patchctl.os_errors import as_user_error, is_resource_error
from patchctl.source.config import archive_limits
from patchctl.source.places import (
    PORTS,
    IndexConfig,
    has_proxy,
    known_unreachable,
    machine_config,
    remember_unreachable,
    why_unreachable,
)
from patchctl.source.types import Download
from patchctl.terminal.progress import Progress
from patchctl.terminal.text import one_line, redact

if TYPE_CHECKING:
    from unearth import Link

CONNECT_SECONDS = 10.0
_CHUNK = 1 << 16
_TRIES = 2
# The largest page of our four distributions has 1 MB; parsing one takes about 50 times its size in memory.
_PAGE_LIMIT = 8 << 20
_OF_TRANSFER = (b"content-encoding", b"content-length", b"transfer-encoding")
_ARCHIVES = (".tar.gz", ".zip")


class Offered(NamedTuple):
    """A source distribution that an index offers, and the Pythons that it runs on if the index states them."""

    sdist: Sdist
    python: str | None


@dataclass(frozen=True)
class _Candidate:
    """A file that an index offers, with and without credentials in its address, and its digest if stated."""

    url: str
    shown: str
    page: str
    sha256: str | None


class _Refused(Exception):
    """The server's answer is one that we do not accept."""


def download(
    distribution: str,
    sdist: Sdist,
    folder: Path,
    progress: Progress,
    tried: list[Tried],
    config: IndexConfig | None = None,
) -> Download | None:
    """Download the archive of `distribution` with the pinned sha256 into `folder`, from pip's indexes in order.

    Returns None and adds to `tried` if no place has that version. Raises SourceMismatch with every place if the
    version exists, but nowhere with the pinned digest.
    """
    config = config or machine_config()
    mismatches: list[Tried] = []
    for client, source, kind in _living(config, tried):
        with _plain_errors(source, tried):
            for candidate in _candidates(client, source, kind, distribution, sdist, tried):
                with _plain_errors(candidate.url, tried):
                    found = _take(client, candidate, distribution, sdist, folder, progress, mismatches)
                    if found is not None:
                        return found
    if not config.index_urls and not config.find_links:
        tried.append(Tried(message("package index"), message("pip's configuration has none (no-index)")))
    if mismatches:
        what = message(
            "no place has {name} {version} with the pinned sha256 {digest}",
            name=distribution,
            version=sdist.version,
            digest=sdist.sha256,
        )
        places = (message("{what}: {more}", what=m.place, more=m.reason) for m in mismatches)
        raise SourceMismatch(
            joined([what, *places], "\n  "),
            hint=message(
                "do not use these files: ask the index's maintainers, or use another index with PIP_INDEX_URL"
            ),
        )
    return None


def offers(distribution: str, sdist: Sdist, tried: list[Tried], config: IndexConfig | None = None) -> list[str]:
    """Return the places (without credentials) that list the archive and state no other digest, for `doctor`.

    The others are added to `tried` with the reason. Downloads nothing.
    """
    config = config or machine_config()
    found: list[str] = []
    for client, source, kind in _living(config, tried):
        with _plain_errors(source, tried):
            candidates = _candidates(client, source, kind, distribution, sdist, tried)
            if any(c.sha256 in (None, sdist.sha256) for c in candidates):
                found.append(redact(source))
            elif candidates:
                states = message("the index states sha256 {digest}", digest=candidates[0].sha256)
                tried.append(Tried(redact(source), states))
    return found


def find_digest(
    distribution: str, version: str, folder: Path, progress: Progress, tried: list[Tried]
) -> tuple[str, str] | None:
    """Return (sha256, place) of a version's archive that is not pinned yet, from the first place that has one.

    Takes the digest that the page states, else that of the file, downloaded into `folder`. Returns None and adds to
    `tried`.
    """
    config = machine_config()
    for client, source, kind in _living(config, tried):
        with _plain_errors(source, tried):
            for candidate in _candidates(client, source, kind, distribution, Sdist(version, ""), tried):
                if candidate.sha256 is None:
                    label = f"{distribution} {version}: {candidate.page}"
                    return _new_digest(client, candidate, folder, label, progress), candidate.shown
                return candidate.sha256, candidate.shown
    if not config.index_urls and not config.find_links:
        tried.append(Tried(message("package index"), message("pip's configuration has none (no-index)")))
    return None


def _new_digest(client: Any, candidate: _Candidate, folder: Path, label: str, progress: Progress) -> str:
    """Return a downloaded file's digest. Raises MachineFailed for a full disk, which must not lead to another pin."""
    try:
        return _stream(client, candidate.url, folder / "archive", label, progress)[0]
    except OSError as error:
        if is_resource_error(error):
            raise as_user_error(
                error, message("cannot download {place}", place=candidate.shown), message("run the same command again")
            ) from error
        raise


def _living(config: IndexConfig, tried: list[Tried]) -> Iterator[tuple[Any, str, str]]:
    """Yield the places where pip would look that answer, in order, each as "index" or "links" (a page or folder), and who asks them."""
    with _client(config) as client:
        for source, kind in [*((u, "index") for u in config.index_urls), *((p, "links") for p in config.find_links)]:
            is_dead = True
            with _plain_errors(source, tried):
                is_dead = _is_dead(source, config, tried)
            if not is_dead:
                yield client, source, kind


def _client(config: IndexConfig) -> Any:
    """Return unearth's HTTP client with pip's certificates, proxy and timeouts. Unsafe redirects are refused."""
    import httpx2
    from unearth.auth import MultiDomainBasicAuth
    from unearth.fetchers import PyPIClient

    options: dict[str, Any] = {"proxy": config.proxy} if config.proxy else {}

    class Client(PyPIClient):
        def get(self, url: Any, **options: Any) -> Any:
            return _page(self, url, options)

    verify = _tls(config)
    try:
        return Client(
            trusted_hosts=config.trusted_hosts,
            verify=verify,
            timeout=httpx2.Timeout(config.timeout, connect=min(CONNECT_SECONDS, config.timeout)),
            follow_redirects=True,
            max_redirects=5,
            event_hooks={"response": [_check_redirect]},
            auth=MultiDomainBasicAuth(prompting=False, index_urls=list(config.index_urls)),
            **options,
        )
    except (ImportError, ValueError) as error:
        said = one_line(redact(str(error)))
        what = message("cannot use the proxy of the environment or of pip's configuration: {error}", error=said)
        python = shlex.quote(sys.executable)
        hint = message("`{python} -m pip install socksio` adds SOCKS; or name an http:// proxy", python=python)
        raise WrongUse(what, hint=hint) from error


def _page(client: Any, url: Any, options: dict[str, Any]) -> Any:
    """Answer unearth's `get` with a page of bounded size, which unearth does not limit."""
    import httpx2

    with client.stream("GET", url, **options) as answer:
        content = bytearray()
        for chunk in answer.iter_bytes(_CHUNK):
            content += chunk
            if len(content) > _PAGE_LIMIT:
                raise _Refused(f"the page is larger than {_PAGE_LIMIT} bytes")
        unpacked = [(k, v) for k, v in answer.headers.raw if k.lower() not in _OF_TRANSFER]
        return httpx2.Response(answer.status_code, headers=unpacked, content=bytes(content), request=answer.request)


def _tls(config: IndexConfig) -> ssl.SSLContext | bool:
    if config.cert is None and config.client_cert is None:
        return True
    try:
        is_folder = config.cert is not None and os.path.isdir(config.cert)
        context = ssl.create_default_context(
            cafile=None if is_folder else config.cert, capath=config.cert if is_folder else None
        )
        if config.client_cert is not None:
            context.load_cert_chain(config.client_cert)
    except (OSError, ssl.SSLError) as error:
        raise WrongUse(
            message("cannot read the certificates of pip's configuration: {error}", error=error),
            where=config.cert or config.client_cert,
            hint=message("`pip config list` shows `cert` and `client-cert`"),
        ) from error
    return context


def _check_redirect(response: Any) -> None:
    """Refuse redirects from https to http and to other schemes. Credentials do not follow to another host."""
    target = response.headers.get("location") if response.is_redirect else None
    if target is None:
        return
    here = response.request.url
    there = here.join(target)
    if there.scheme not in ("http", "https") or (here.scheme == "https" and there.scheme != "https"):
        raise _Refused(f"refused to follow a redirect from {here.scheme} to {redact(str(there))}")


@contextmanager
def _plain_errors(url: str, tried: list[Tried]) -> Iterator[None]:
    """Turn an error at one place into a reason in `tried`, so that the next place is asked."""
    import httpx2

    try:
        yield
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
        reason = message("cannot be reached: {error}", error=one_line(str(error)) or message("no answer"))
        remember_unreachable(_host(url), reason)
        tried.append(Tried(redact(url), reason))
    except (httpx2.HTTPError, httpx2.InvalidURL, _Refused, OSError, ValueError) as error:
        tried.append(Tried(redact(url), one_line(str(error)) or type(error).__name__))


def _is_dead(source: str, config: IndexConfig, tried: list[Tried]) -> bool:
    """Whether the index does not answer, which a single name look-up can take minutes to find out."""
    host = _host(source)
    proxied = config.proxy is not None or has_proxy(source)
    reason = why_unreachable(host) if host and not proxied else known_unreachable(host)
    if reason:
        tried.append(Tried(redact(source), reason))
    return reason is not None


def _host(url: str) -> tuple[str, int] | None:
    parts = urlsplit(url)
    return (parts.hostname, parts.port or PORTS[parts.scheme]) if parts.scheme in PORTS and parts.hostname else None


@contextmanager
def _read_as_page() -> Iterator[None]:
    """Turn malformed pages into _Refused: unearth assumes the right types and little nesting."""
    try:
        yield
    except (AttributeError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise _Refused(f"cannot parse the page: {type(error).__name__}: {one_line(str(error))}") from error


def versions(distribution: str, tried: list[Tried], config: IndexConfig | None = None) -> list[Offered]:
    """Return every source distribution that pip's indexes offer with a digest; the first place wins per version.

    Places with none, or that cannot be asked, are added to `tried`. Downloads nothing.
    """
    config = config or machine_config()
    found: dict[str, Offered] = {}
    for client, source, kind in _living(config, tried):
        with _plain_errors(source, tried):
            for one in _offered(client, source, kind, distribution, tried):
                found.setdefault(one.sdist.version, one)
    return list(found.values())


@_read_as_page()
def _offered(client: Any, source: str, kind: str, distribution: str, tried: list[Tried]) -> list[Offered]:
    packages, said = _packages(client, source, kind, distribution)
    links = [(p.version, p.link) for p in packages if p.version and p.link.filename.endswith(_ARCHIVES)]
    found = [(version, _digest(link) or _digest_of_file(link), link.requires_python) for version, link in links]
    if not found:
        tried.append(Tried(redact(source), said or f"no archive of {distribution} among its {len(packages)} files"))
    return [Offered(Sdist(version, digest), python) for version, digest, python in found if digest is not None]


def _digest_of_file(link: Link) -> str | None:
    """Return the digest of an archive in a find-links folder, which states none."""
    return hashlib.sha256(link.file_path.read_bytes()).hexdigest() if link.is_file else None


@_read_as_page()
def _candidates(
    client: Any, source: str, kind: str, distribution: str, sdist: Sdist, tried: list[Tried]
) -> list[_Candidate]:
    """Return the archives of this version at one index, those with the pinned digest first."""
    from packaging.version import Version

    packages, said = _packages(client, source, kind, distribution)
    wanted = Version(sdist.version)
    links = [
        package.link
        for package in packages
        if package.version is not None
        and Version(package.version) == wanted
        and package.link.filename.endswith(_ARCHIVES)
        and not (package.link.is_file and urlsplit(source).scheme in ("http", "https"))
    ]
    if not links:
        nothing = message(
            "no archive of {name} {version} among its {count} files",
            name=distribution,
            version=sdist.version,
            count=len(packages),
        )
        tried.append(Tried(redact(source), said or nothing))
    page = redact(source)
    found = [_Candidate(link.normalized, redact(link.url_without_fragment), page, _digest(link)) for link in links]
    return sorted(found, key=lambda c: c.sha256 != sdist.sha256)


def _packages(client: Any, source: str, kind: str, distribution: str) -> tuple[list[Any], str]:
    """Return every file of a distribution at one index, and why there are none."""
    from unearth import PackageFinder

    indexes, folders = ([source], []) if kind == "index" else ([], [_as_url(source)])
    finder = PackageFinder(session=client, ignore_compatibility=True, index_urls=indexes, find_links=folders)
    with _heard() as warnings:
        packages = list(finder.find_all_packages(distribution, allow_yanked=True))
    return packages, one_line(warnings[-1]) if warnings else ""


def _as_url(find_links: str) -> str:
    """Return find-links, which may be a path, as a URL: for a missing path, that gives an error later."""
    return find_links if "://" in find_links else Path(find_links).absolute().as_uri()


def _digest(link: Link) -> str | None:
    told = (link.hash_option or {}).get("sha256")
    return told[0].lower() if told else None


@contextmanager
def _heard() -> Iterator[list[str]]:
    """Collect unearth's log messages: it logs why a page gave nothing instead of raising."""
    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    logger = logging.getLogger("unearth")
    listener, before = Listener(logging.WARNING), logger.propagate
    logger.addHandler(listener)
    logger.propagate = False
    try:
        yield said
    finally:
        logger.removeHandler(listener)
        logger.propagate = before


def _take(
    client: Any,
    candidate: _Candidate,
    distribution: str,
    sdist: Sdist,
    folder: Path,
    progress: Progress,
    mismatches: list[Tried],
) -> Download | None:
    """Download one candidate. Returns None and adds to `mismatches` if its digest is wrong."""
    if candidate.sha256 is not None and candidate.sha256 != sdist.sha256:
        states = message("the index states sha256 {digest}", digest=candidate.sha256)
        mismatches.append(Tried(candidate.shown, states))
        return None
    target = folder / ("download.zip" if candidate.url.partition("#")[0].endswith(".zip") else "download.tar.gz")
    label = f"{distribution} {sdist.version}: {candidate.page}"
    progress.start(label, None)
    try:
        found, size = _stream(client, candidate.url, target, label, progress)
    finally:
        progress.finish()
    if found != sdist.sha256:
        target.unlink()
        mismatches.append(Tried(candidate.shown, message("its sha256 is {digest}", digest=found)))
        return None
    return Download(target, candidate.shown, size)


def _stream(client: Any, url: str, target: Path, label: str, progress: Progress) -> tuple[str, int]:
    """Download `url` to `target` and return (sha256, bytes). A broken transfer is retried once."""
    import httpx2

    for attempt in range(1, _TRIES + 1):
        try:
            return _stream_once(client, url, target, label, progress)
        except (httpx2.ReadError, httpx2.ReadTimeout, httpx2.RemoteProtocolError):
            if attempt == _TRIES:
                raise
            progress.note(message("the transfer broke; retrying"))
    raise AssertionError("unreachable")


def _stream_once(client: Any, url: str, target: Path, label: str, progress: Progress) -> tuple[str, int]:
    digest = hashlib.sha256()
    size = 0
    largest = archive_limits().packed_mib << 20
    # Servers may compress what they send, or decompress .tar.gz files; iter_raw takes the bytes as sent.
    headers = {"Accept-Encoding": "identity"}
    with client.get_stream(url, headers=headers) as response, open(target, "wb") as out:
        response.raise_for_status()
        length = response.headers.get("content-length", "")
        progress.start(label, int(length) if length.isdigit() else None)
        for chunk in response.iter_raw(_CHUNK):
            size += len(chunk)
            if size > largest:
                raise _Refused(f"the response is more than {largest} bytes")
            digest.update(chunk)
            out.write(chunk)
            progress.advance(len(chunk))
    return digest.hexdigest(), size
