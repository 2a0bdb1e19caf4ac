"""Finding and fetching an archive, from a real server on loopback: the pinned sha256 decides, and nothing leaks."""

from __future__ import annotations

import base64
import gzip
import json
import os
import socket
import sys
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from source_builders import Answer, IndexServer, index_server, sdist_members, sha256, tar_gz

from patchctl.errors import SourceMismatch, Tried, WrongUse
from patchctl.manifest.types import Sdist
from patchctl.source.package_index import download
from patchctl.source.places import IndexConfig
from patchctl.source.types import Download
from patchctl.terminal.progress import Progress

GOOD = tar_gz(sdist_members())
OTHER = tar_gz({**sdist_members(), "demo-1.0/evil.py": b"evil\n"})
PINNED = Sdist(version="1.0", sha256=sha256(GOOD))


def get(tmp_path: Path, config: IndexConfig, tried: list[Tried] | None = None) -> Download | None:
    folder = tmp_path / "into"
    folder.mkdir(exist_ok=True)
    return download("demo", PINNED, folder, Progress(), [] if tried is None else tried, config)


@pytest.mark.parametrize("told", [None, PINNED.sha256])
def test_the_archive_is_found_and_fetched(index: IndexServer, tmp_path: Path, told: str | None) -> None:
    index.offer("demo-0.9.tar.gz", OTHER)
    index.offer("demo-1.0-py3-none-any.whl", b"a wheel")
    index.offer("demo-1.0.tar.gz", GOOD, told=told)
    got = get(tmp_path, IndexConfig((index.simple,)))
    assert got is not None and got.path.read_bytes() == GOOD
    assert (got.origin, got.size) == (f"{index.url}/files/demo-1.0.tar.gz", len(GOOD))
    assert "/files/demo-0.9.tar.gz" not in index.paths() and not [p for p in index.paths() if p.endswith(".whl")]


def test_the_json_form_of_an_index_is_read(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", GOOD)
    page = {
        "meta": {"api-version": "1.0"},
        "name": "demo",
        "files": [
            {"filename": "demo-1.0.tar.gz", "url": "/files/demo-1.0.tar.gz", "hashes": {"sha256": PINNED.sha256}}
        ],
    }
    index.answers["/simple/demo/"] = Answer(
        json.dumps(page).encode(), headers={"Content-Type": "application/vnd.pypi.simple.v1+json"}
    )
    assert get(tmp_path, IndexConfig((index.simple,))) is not None


def test_the_pinned_digest_decides_between_two_indexes(index: IndexServer, tmp_path: Path) -> None:
    with index_server() as second:
        index.offer("demo-1.0.tar.gz", OTHER)
        second.offer("demo-1.0.tar.gz", GOOD)
        got = get(tmp_path, IndexConfig((index.simple, second.simple)))
        assert got is not None and got.path.read_bytes() == GOOD
        assert got.origin.startswith(second.url)


def test_a_file_that_the_index_says_is_another_is_not_downloaded(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", OTHER, told=sha256(OTHER))
    with pytest.raises(SourceMismatch, match="the index states"):
        get(tmp_path, IndexConfig((index.simple,)))
    assert "/files/demo-1.0.tar.gz" not in index.paths()


def test_another_digest_everywhere_is_a_mismatch_that_names_every_place(index: IndexServer, tmp_path: Path) -> None:
    with index_server() as second:
        index.offer("demo-1.0.tar.gz", OTHER)
        second.offer("demo-1.0.tar.gz", GOOD + b"\0", told=PINNED.sha256)
        with pytest.raises(SourceMismatch) as caught:
            get(tmp_path, IndexConfig((index.simple, second.simple)))
    assert caught.value.code == 3
    assert f"{index.url}/files/demo-1.0.tar.gz: its sha256 is {sha256(OTHER)}" in str(caught.value)
    assert second.url in str(caught.value) and PINNED.sha256 in str(caught.value)
    assert not list((tmp_path / "into").iterdir())


def test_places_without_it_are_named_with_their_reasons(index: IndexServer, tmp_path: Path) -> None:
    index.answers["/broken/demo/"] = Answer(b"oops", 500)
    index.answers["/odd/demo/"] = Answer(b"\x1b[2J", headers={"Content-Type": "image/\x9bpng"})
    index.offer("demo-0.9.tar.gz", OTHER)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"http://me:secret@127.0.0.1:{unused.getsockname()[1]}/simple"
    tried: list[Tried] = []
    config = IndexConfig(
        (f"{index.url}/missing/", f"{index.url}/broken/", f"{index.url}/odd/", index.simple, dead, dead + "2"),
        find_links=(str(tmp_path / "nowhere"), (tmp_path / "nowhere too").as_uri(), f"{index.url}/gone.html"),
    )
    assert get(tmp_path, config, tried) is None
    reasons = [t.reason for t in tried]
    assert len(reasons) == len(config.index_urls) + len(config.find_links)
    assert "404" in reasons[0] and "500" in reasons[1] and "image/" in reasons[2]
    assert "no archive of demo 1.0 among its 1 files" in reasons[3]
    assert "cannot be reached" in reasons[4] and "cannot be reached" in reasons[5]
    shown = "".join(f"{t.place} {t.reason}" for t in tried)
    assert "secret" not in shown and "\x1b" not in shown and "\x9b" not in shown


def test_unearth_writes_nothing_to_the_terminal(
    index: IndexServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    get(tmp_path, IndexConfig((f"{index.url}/missing/",)))
    assert capfd.readouterr() == ("", "")


def test_a_missing_file_does_not_hide_the_next_candidate(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", GOOD)
    del index.answers["/files/demo-1.0.tar.gz"]
    tried: list[Tried] = []
    with index_server() as second:
        second.offer("demo-1.0.tar.gz", GOOD)
        assert get(tmp_path, IndexConfig((index.simple, second.simple)), tried) is not None
    assert "404" in tried[0].reason


@pytest.mark.parametrize("kind", ["folder", "file address", "page"])
def test_find_links_are_folders_and_pages(index: IndexServer, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "wheel house ü"
    folder.mkdir()
    (folder / "demo-1.0.tar.gz").write_bytes(GOOD)
    (folder / "torch-2.0-cp311-cp311-linux_x86_64.whl").write_bytes(b"x")
    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/links.html"] = index.answers["/simple/demo/"]
    where = {"folder": str(folder), "file address": folder.as_uri(), "page": f"{index.url}/links.html"}[kind]
    got = get(tmp_path, IndexConfig((), find_links=(where,)))
    assert got is not None and got.path.read_bytes() == GOOD


def test_a_file_index_that_lacks_the_project_breaks_nothing(index: IndexServer, tmp_path: Path) -> None:
    there = tmp_path / "simple"
    (there / "other").mkdir(parents=True)
    index.offer("demo-1.0.tar.gz", GOOD)
    tried: list[Tried] = []
    config = IndexConfig((there.as_uri(), (tmp_path / "gone" / "simple").as_uri(), index.simple))
    assert get(tmp_path, config, tried) is not None
    assert len(tried) == 2


def test_no_index_and_no_links_is_said(tmp_path: Path) -> None:
    tried: list[Tried] = []
    assert get(tmp_path, IndexConfig(()), tried) is None
    assert "no-index" in tried[0].reason


def test_credentials_reach_their_own_server_only(index: IndexServer, tmp_path: Path) -> None:
    """They are sent to the index, not to the host that it redirects to, and are in no message."""
    with index_server() as files:
        files.offer("demo-1.0.tar.gz", GOOD)
        index.offer("demo-1.0.tar.gz", GOOD)
        elsewhere = files.url.replace("127.0.0.1", "localhost") + "/files/demo-1.0.tar.gz"
        index.answers["/files/demo-1.0.tar.gz"] = Answer(status=302, headers={"Location": elsewhere})
        config = IndexConfig((index.simple.replace("//", "//me:secret@"),))
        got = get(tmp_path, config)
        assert got is not None and "secret" not in got.origin
        expected = "Basic " + base64.b64encode(b"me:secret").decode()
        assert index.asked[0][1].get("Authorization", index.asked[0][1].get("authorization")) == expected
        for _, headers in files.asked:
            assert "authorization" not in {key.lower() for key in headers}


def test_nobody_is_asked_for_a_password(index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda *a: pytest.fail("a prompt"))
    index.answers["/simple/demo/"] = Answer(b"who are you", 401, {"WWW-Authenticate": "Basic"})
    tried: list[Tried] = []
    assert get(tmp_path, IndexConfig((index.simple,)), tried) is None
    assert "401" in tried[0].reason


@pytest.mark.parametrize("target", ["file:///etc/hostname", "ftp://127.0.0.1/x", "javascript:alert(1)"])
def test_a_redirect_into_a_file_or_another_protocol_is_refused(index: IndexServer, tmp_path: Path, target: str) -> None:
    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/files/demo-1.0.tar.gz"] = Answer(status=302, headers={"Location": target})
    tried: list[Tried] = []
    assert get(tmp_path, IndexConfig((index.simple,)), tried) is None
    assert "redirect" in tried[0].reason or "protocol" in tried[0].reason.lower()


def test_a_page_from_a_server_cannot_point_at_local_files(index: IndexServer, tmp_path: Path) -> None:
    (tmp_path / "demo-1.0.tar.gz").write_bytes(GOOD)
    uri = (tmp_path / "demo-1.0.tar.gz").as_uri()
    index.answers["/simple/demo/"] = Answer(f'<a href="{uri}">x</a>'.encode(), headers={"Content-Type": "text/html"})
    assert get(tmp_path, IndexConfig((index.simple,)), []) is None


def test_endless_redirects_end(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/files/demo-1.0.tar.gz"] = Answer(status=302, headers={"Location": "/files/demo-1.0.tar.gz"})
    tried: list[Tried] = []
    assert get(tmp_path, IndexConfig((index.simple,)), tried) is None
    assert len(index.asked) < 20


def test_the_bytes_are_taken_as_they_come(index: IndexServer, tmp_path: Path) -> None:
    """A server that calls the .tar.gz an encoding of the .tar must not get it unpacked on the way."""
    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/files/demo-1.0.tar.gz"] = Answer(GOOD, headers={"Content-Encoding": "gzip"})
    got = get(tmp_path, IndexConfig((index.simple,)))
    assert got is not None and gzip.decompress(got.path.read_bytes())


def test_a_transfer_that_breaks_is_begun_once_more(index: IndexServer, tmp_path: Path) -> None:
    times: list[int] = []

    def flaky(handler: BaseHTTPRequestHandler) -> None:
        times.append(1)
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(GOOD)))
        handler.end_headers()
        handler.wfile.write(GOOD if len(times) > 1 else GOOD[:100])
        if len(times) == 1:
            handler.close_connection = True
            handler.connection.shutdown(socket.SHUT_RDWR)

    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/files/demo-1.0.tar.gz"] = Answer(flaky)
    got = get(tmp_path, IndexConfig((index.simple,)))
    assert got is not None and got.path.read_bytes() == GOOD and len(times) == 2


def test_a_server_that_stops_sending_is_given_up(index: IndexServer, tmp_path: Path) -> None:
    def stall(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(GOOD)))
        handler.end_headers()
        handler.wfile.write(GOOD[:100])
        handler.connection.settimeout(5)
        handler.rfile.read(1)

    index.offer("demo-1.0.tar.gz", GOOD)
    index.answers["/files/demo-1.0.tar.gz"] = Answer(stall)
    tried: list[Tried] = []
    assert get(tmp_path, replace(IndexConfig((index.simple,)), timeout=0.3), tried) is None
    assert tried and tried[0].reason


def test_a_server_that_never_ends_is_cut_off(
    index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("archives: {packed_mib: 1}\n")
    monkeypatch.setenv("PATCHCTL_CONFIG", str(config))
    index.offer("demo-1.0.tar.gz", GOOD + bytes(1 << 20))
    tried: list[Tried] = []
    assert get(tmp_path, IndexConfig((index.simple,)), tried) is None
    assert "more than 1048576 bytes" in tried[0].reason


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="certificates") as caught:
        get(tmp_path, IndexConfig(("https://patchctl.invalid/simple",), cert=str(tmp_path / "no.pem")))
    assert "no.pem" in str(caught.value)


def test_a_plain_http_index_that_is_not_trusted_is_not_read(index: IndexServer, tmp_path: Path) -> None:
    """The server on loopback stands for the proxy that would lead to it: it is not even asked."""
    tried: list[Tried] = []
    config = IndexConfig(("http://patchctl.invalid/simple",), proxy=index.url)
    assert get(tmp_path, config, tried) is None
    assert "trusted" in tried[0].reason and index.asked == []


def test_the_proxy_of_the_configuration_is_used(index: IndexServer, tmp_path: Path) -> None:
    index.offer("demo-1.0.tar.gz", GOOD)
    for path in list(index.answers):
        index.answers["http://localhost:1" + path] = index.answers.pop(path)
    got = get(tmp_path, IndexConfig(("http://localhost:1/simple",), proxy=index.url))
    assert got is not None and got.origin == "http://localhost:1/files/demo-1.0.tar.gz"


def test_the_index_of_this_process_s_pip_is_asked(
    index: IndexServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Black box: PIP_* variables, a pip.conf with several values on a line, and a pip that is really run."""
    index.offer("demo-1.0.tar.gz", GOOD)
    for name in [n for n in os.environ if n.startswith("PIP_")]:
        monkeypatch.delenv(name)
    conf = tmp_path / "pip.conf"
    conf.write_text(
        f"[global]\nindex-url = {tmp_path.as_uri()}/a\nextra-index-url = {tmp_path.as_uri()}/b {index.simple}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    folder = tmp_path / "into"
    folder.mkdir()
    tried: list[Tried] = []
    got = download("demo", PINNED, folder, Progress(), tried)
    assert got is not None and got.origin.startswith(index.url)
    assert [t.place for t in tried] == [f"{tmp_path.as_uri()}/a", f"{tmp_path.as_uri()}/b"]
    assert "pip" not in sys.modules
