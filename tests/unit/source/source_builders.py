"""Real things for the tests of sources: git repositories, source distributions, and a package index on loopback."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from patchctl.manifest.types import GeneratedFile, Pin, Sdist, Stack, Upstream

SETUP_CFG = b"[egg_info]\ntag_build = \ntag_date = 0\n\n"
GIT_ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_COMMITTER_NAME": "C O Mitter",
    "GIT_COMMITTER_EMAIL": "committer@example.com",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
}


def git(repo: Path, *args: str, stdin: bytes | None = None) -> str:
    """The output of one git command in `repo`, without this machine's configuration."""
    done = subprocess.run(["git", "-C", str(repo), *args], env=GIT_ENV, input=stdin, capture_output=True, check=True)
    return done.stdout.decode().strip()


@dataclass(frozen=True)
class Repo:
    """A repository of three commits; `commit` is the one in the middle, which no branch or tag names."""

    path: Path
    commit: str
    tree: str
    last: str


def make_repo(path: Path, files: Mapping[str, bytes] | None = None) -> Repo:
    path.mkdir(parents=True)
    git(path, "init", "--quiet", "--initial-branch=main")
    (path / "README").write_text("first\n")
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "first")
    for name, data in (files or {"pkg/__init__.py": b"x = 1\n", "pkg/run.sh": b"#!/bin/sh\n"}).items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    if (path / "pkg/run.sh").exists():
        (path / "pkg/run.sh").chmod(0o755)
    git(path, "add", ".")
    git(path, "commit", "--quiet", "-m", "second")
    commit, tree = git(path, "rev-parse", "HEAD"), git(path, "rev-parse", "HEAD^{tree}")
    (path / "README").write_text("third\n")
    git(path, "commit", "--quiet", "-am", "third")
    return Repo(path, commit, tree, git(path, "rev-parse", "HEAD"))


def tar_gz(members: Mapping[str, bytes | None], *, executable: tuple[str, ...] = ()) -> bytes:
    """A .tar.gz of these files; None makes a folder. Fixed times, so that the same members give the same bytes."""
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o755 if data is None or name in executable else 0o644
            if data is None:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            else:
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return gzip.compress(raw.getvalue(), mtime=0)


def sdist_members(version: str = "1.0", name: str = "demo") -> dict[str, bytes | None]:
    """What setuptools puts into a source distribution: tracked files, and those that it and setuptools-scm write."""
    top = f"{name}-{version}"
    return {
        top: None,
        f"{top}/README.md": b"# demo\n",
        f"{top}/PKG-INFO": b"Metadata-Version: 2.1\n",
        f"{top}/setup.cfg": SETUP_CFG,
        f"{top}/{name}/__init__.py": b"from ._version import version\n",
        f"{top}/{name}/_version.py": b"version = '1.0'\n",
        f"{top}/{name}/bin/run.sh": b"#!/bin/sh\n",
        f"{top}/{name}.egg-info/SOURCES.txt": b"README.md\n",
    }


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def demo_upstream(git_urls: tuple[str, ...] = (), sdist: str | None = None) -> Upstream:
    return Upstream(summary="a demonstration", license="MIT", git=list(git_urls), sdist=sdist)


def demo_stack(
    commit: str = "0" * 40,
    tree: str | None = None,
    sdist: Sdist | None = None,
    generated: tuple[str, ...] = (),
) -> Stack:
    files = [GeneratedFile(path=path, content="", why="a test") for path in generated]
    return Stack(schema=1, upstream="demo", name="v1", pin=Pin(commit=commit, tree=tree, sdist=sdist), generated=files)


@dataclass
class Answer:
    """What the server says: `body` is bytes, or a function that writes to the connection itself."""

    body: bytes | Callable[[BaseHTTPRequestHandler], None] = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class IndexServer:
    """A package index on loopback. `answers` maps paths; `asked` lists (path, headers) of every request."""

    url: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    def offer(self, filename: str, data: bytes, *, project: str = "demo", told: str | None = None) -> None:
        """Put a file on the index; `told` is what the page says that its sha256 is (nothing when None)."""
        fragment = f"#sha256={told}" if told else ""
        page = self.answers.setdefault(f"/simple/{project}/", Answer(headers={"Content-Type": "text/html"}))
        assert isinstance(page.body, bytes)
        page.body += f'<a href="/files/{filename}{fragment}">{filename}</a>\n'.encode()
        self.answers[f"/files/{filename}"] = Answer(data, headers={"Content-Type": "application/octet-stream"})

    @property
    def simple(self) -> str:
        return f"{self.url}/simple/"

    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


@contextmanager
def index_server() -> Iterator[IndexServer]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_POST(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            served.asked.append((self.path, dict(self.headers)))
            answer = served.answers.get(self.path, Answer(b"nothing here", 404))
            if callable(answer.body):
                answer.body(self)
                return
            self.send_response(answer.status)
            for key, value in answer.headers.items():
                self.send_header(key, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if with_body:
                self.wfile.write(answer.body)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served = IndexServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
