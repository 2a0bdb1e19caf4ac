"""Places to fetch from that want more than to be read: commands to run, credentials to catch, other repositories."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from source_builders import GIT_ENV, Answer, IndexServer, Repo, demo_stack, demo_upstream, git

from patchctl.errors import SourceUnavailable, WrongUse
from patchctl.git import run as git_run
from patchctl.source.intact import check_base
from patchctl.source.obtain import obtain
from patchctl.source.types import Base, SourceOptions
from patchctl.terminal.progress import Progress

pytestmark = pytest.mark.family("Fetch")

Get = Callable[..., Base]


@pytest.fixture
def get(repo: Repo, options: SourceOptions) -> Get:
    def fetch(*mirrors: str, commit: str = repo.commit) -> Base:
        mirrored = replace(options, source="git", mirrors={"demo": list(mirrors)})
        return obtain(demo_upstream(), demo_stack(commit), mirrored, Progress())

    return fetch


def serve_git(index: IndexServer, repo: Repo, allowed: Callable[[dict[str, str]], bool]) -> str:
    """git's own HTTP server behind the server on loopback; 401 unless `allowed` likes the request's headers."""
    git(repo.path, "config", "uploadpack.allowAnySHA1InWant", "true")

    def backend(handler: BaseHTTPRequestHandler) -> None:
        headers = {key.lower(): value for key, value in handler.headers.items()}
        if not allowed(headers):
            handler.send_response(401)
            handler.send_header("WWW-Authenticate", 'Basic realm="x"')
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        path, _, query = handler.path.partition("?")
        body = handler.rfile.read(int(headers.get("content-length", 0)))
        variables = {
            "GIT_PROJECT_ROOT": str(repo.path.parent),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": handler.command,
            "CONTENT_TYPE": headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": headers.get("content-encoding", ""),
            "GIT_PROTOCOL": headers.get("git-protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], env={**GIT_ENV, **variables}, input=body, capture_output=True)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        handler.send_response(200)
        for line in head.decode().split("\r\n"):
            key, _, value = line.partition(": ")
            if key != "Status":
                handler.send_header(key, value)
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    for path in ("info/refs?service=git-upload-pack", "git-upload-pack"):
        index.answers[f"/demo/.git/{path}"] = Answer(backend)
    return f"{index.url}/demo/.git"


def test_credentials_in_an_address_reach_the_server_and_nothing_else(
    index: IndexServer, repo: Repo, get: Get, capfd: pytest.CaptureFixture[str]
) -> None:
    expected = "Basic " + base64.b64encode(b"me:hunter2").decode()
    url = serve_git(index, repo, lambda headers: headers.get("authorization") == expected)
    base = get(url.replace("//", "//me:hunter2@"))
    assert (base.tree, base.origin) == (repo.tree, url)
    check_base(base)
    stored = [path for path in base.repo.rglob("*") if path.is_file() and b"hunter2" in path.read_bytes()]
    assert stored == []
    assert "hunter2" not in "".join(capfd.readouterr())


def test_credentials_are_not_in_the_reasons(index: IndexServer, repo: Repo, get: Get) -> None:
    url = serve_git(index, repo, lambda headers: False)
    with pytest.raises(SourceUnavailable) as caught:
        get(url.replace("//", "//me:hunter2@"))
    assert "hunter2" not in str(caught.value) + repr(caught.value.as_json())
    assert "Authentication failed" in str(caught.value) or "401" in str(caught.value)


def test_the_user_s_own_headers_are_sent(index: IndexServer, repo: Repo, get: Get) -> None:
    url = serve_git(index, repo, lambda headers: headers.get("x-mine") == "yes")
    (Path.home() / ".gitconfig").write_text(f'[http "{index.url}/"]\n\textraHeader = X-Mine: yes\n')
    assert get(url).tree == repo.tree


def test_the_user_s_credential_helper_is_asked(index: IndexServer, repo: Repo, get: Get) -> None:
    expected = "Basic " + base64.b64encode(b"me:hunter2").decode()
    url = serve_git(index, repo, lambda headers: headers.get("authorization") == expected)
    helper = "!f() { echo username=me; echo password=hunter2; }; f"
    subprocess.run(["git", "config", "--global", "credential.helper", helper], check=True)
    assert get(url).tree == repo.tree


def test_nobody_is_asked_for_a_password(index: IndexServer, repo: Repo, get: Get) -> None:
    url = serve_git(index, repo, lambda headers: False)
    with pytest.raises(SourceUnavailable):
        get(url)  # a prompt would hang this test


@pytest.mark.parametrize("address", ["ext::sh -c 'touch {w}'", "--upload-pack=touch {w}", "-u{w}"])
def test_addresses_that_run_commands_are_refused_and_run_nothing(get: Get, tmp_path: Path, address: str) -> None:
    witness = tmp_path / "pwned"
    with pytest.raises(WrongUse) as caught:
        get(address.format(w=witness))
    assert caught.value.code == 2 and not witness.exists()


def test_an_address_that_the_user_s_settings_rewrite_to_a_command_is_not_run(get: Get, tmp_path: Path) -> None:
    witness = tmp_path / "pwned"
    (Path.home() / ".gitconfig").write_text(
        f'[url "ext::sh -c touch% {witness} "]\n\tinsteadOf = https://patchctl.invalid/\n[protocol "ext"]\n\tallow = always\n'
    )
    with pytest.raises(SourceUnavailable, match="not allowed"):
        get("https://patchctl.invalid/x")
    assert not witness.exists()


def test_a_git_in_the_current_folder_is_never_run(
    repo: Repo, get: Get, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    witness, here = tmp_path / "pwned", tmp_path / "here"
    here.mkdir()
    (here / "git").write_text(f"#!/bin/sh\ntouch '{witness}'\n")
    (here / "git").chmod(0o755)
    monkeypatch.chdir(here)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    git_run.git_executable.cache_clear()
    try:
        assert get(str(repo.path)).tree == repo.tree
    finally:
        git_run.git_executable.cache_clear()
    assert not witness.exists()


def test_the_settings_and_hooks_of_a_mirror_run_nothing(repo: Repo, get: Get, tmp_path: Path) -> None:
    witness = tmp_path / "pwned"
    command = f"touch '{witness}'; cat"
    for key in (
        "core.fsmonitor",
        "core.sshCommand",
        "uploadpack.packObjectsHook",
        "core.pager",
        "core.alternateRefsCommand",
    ):
        git(repo.path, "config", key, command)
    for name in ("pre-auto-gc", "post-upload-pack", "reference-transaction"):
        (repo.path / ".git/hooks" / name).parent.mkdir(exist_ok=True)
        (repo.path / ".git/hooks" / name).write_text(f"#!/bin/sh\n{command}\n")
        (repo.path / ".git/hooks" / name).chmod(0o755)
    assert get(str(repo.path)).tree == repo.tree
    assert not witness.exists()


def test_a_partial_mirror_does_not_make_us_fetch_from_where_it_came(repo: Repo, get: Get, tmp_path: Path) -> None:
    witness, partial = tmp_path / "pwned", tmp_path / "partial.git"
    git(repo.path, "config", "uploadpack.allowFilter", "true")
    command = ["git", "clone", "--quiet", "--bare", "--filter=blob:none", repo.path.as_uri(), str(partial)]
    subprocess.run(command, env=GIT_ENV, check=True)
    git(partial, "config", "remote.origin.uploadpack", f"touch '{witness}'; git-upload-pack")
    with pytest.raises(SourceUnavailable):
        get(str(partial))
    assert not witness.exists()


def test_what_a_server_says_is_cleaned(index: IndexServer, get: Get) -> None:
    said = b"ERR \x1b[2J\x07bad\rgood \xe2\x80\xae https://me:hunter2@h/ ::error::"
    index.answers["/x/info/refs?service=git-upload-pack"] = Answer(
        b"001e# service=git-upload-pack\n0000" + b"%04x" % (len(said) + 4) + said,
        headers={"Content-Type": "application/x-git-upload-pack-advertisement"},
    )
    with pytest.raises(SourceUnavailable) as caught:
        get(f"{index.url}/x")
    reason = caught.value.tried[-1].reason
    assert "[2J" in reason and "\\u202e" in reason
    assert reason.isprintable() and "hunter2" not in reason


LYING_SSH = """
import os, subprocess, sys, threading
asked, sent, folder = {asked!r}, {sent!r}, {folder!r}
server = subprocess.Popen(["git", "upload-pack", folder], stdin=subprocess.PIPE)
def forward():
    while chunk := os.read(0, 65536):
        server.stdin.write(chunk.replace(asked.encode(), sent.encode()))
        server.stdin.flush()
    server.stdin.close()
threading.Thread(target=forward, daemon=True).start()
sys.exit(server.wait())
"""


@pytest.mark.parametrize("asked", ["5" * 40, "the pinned one"])
def test_a_server_cannot_pass_another_commit_for_the_one_asked_for(
    repo: Repo, get: Get, tmp_path: Path, asked: str
) -> None:
    """The server answers each question for `asked` with the repository's last commit: its id does not become the other."""
    commit = repo.commit if asked == "the pinned one" else asked
    git(repo.path, "config", "uploadpack.allowAnySHA1InWant", "true")
    script = tmp_path / "ssh.py"
    script.write_text(LYING_SSH.format(asked=commit, sent=repo.last, folder=str(repo.path)))
    (Path.home() / ".gitconfig").write_text(
        f'[core]\n\tsshCommand = "{sys.executable} {script}"\n[ssh]\n\tvariant = ssh\n'
    )
    with pytest.raises(SourceUnavailable) as caught:
        get("ssh://git@127.0.0.1:1/demo", commit=commit)
    assert "did not send all necessary objects" in str(caught.value)
