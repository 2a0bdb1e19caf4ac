"""Which addresses are taken, and that a host which does not answer is asked once a run."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest

from patchctl.errors import WrongUse
from patchctl.source.places import known_unreachable, parse_place, why_unreachable


@pytest.mark.parametrize(
    "text",
    [
        "--upload-pack=touch pwned",
        "-oProxyCommand=touch pwned",
        "-",
        "ext::sh -c touch% pwned",
        "fd::17",
        "http::https://host/x",
        "ftp://host/x.git",
        "javascript://x",
        "ssh://-oProxyCommand=touch/x",
        "ssh:///x",
        "https://host:port/x",
        "https://host/a b",
        "https://host/a\nb",
        "https://\x1b[0m/x",
        "file://other-host/x",
        "no-such-folder",
        "",
    ],
)
def test_what_could_run_a_command_or_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(WrongUse) as caught:
        parse_place(text)
    assert caught.value.code == 2
    assert "\x1b" not in str(caught.value)


def test_the_home_of_nobody_is_a_folder_that_is_not_there() -> None:
    assert parse_place("~no-such-user/x").shown == str(Path("~no-such-user/x").absolute())


def test_an_option_is_refused_though_a_folder_has_that_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "--upload-pack=x").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WrongUse, match="begins with '-'"):
        parse_place("--upload-pack=x")


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("https://host/x.git", ("host", 443)),
        ("http://host:8080/x.git", ("host", 8080)),
        ("git://host/x.git", ("host", 9418)),
        ("ssh://git@host/x.git", ("host", 22)),
        ("git@host:x/y.git", None),
    ],
)
def test_allowed_protocols_are_taken(text: str, host: tuple[str, int] | None) -> None:
    place = parse_place(text)
    assert (place.address, place.host, place.local) == (text, host, None)


def test_credentials_are_kept_for_git_and_not_for_people() -> None:
    place = parse_place("https://me:secret@host/x.git")
    assert place.address == "https://me:secret@host/x.git"
    assert place.shown == "https://host/x.git"


def test_local_repositories_become_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a b ü"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_place(str(folder)).local == folder
    assert parse_place("a b ü").local == folder
    assert parse_place("./a b ü/../a b ü").local == folder
    assert parse_place(folder.as_uri()).local == folder
    assert parse_place("~/x").local == Path.home() / "x"


def test_a_host_that_refuses_is_asked_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        host = ("127.0.0.1", unused.getsockname()[1])
        assert "Connection refused" in (why_unreachable(host) or "")
    assert known_unreachable(host) == why_unreachable(host)


def test_a_host_that_does_not_answer_is_given_up_quickly() -> None:
    with socket.socket() as full:  # a queue of no length, and one connection that fills it: later ones are not answered
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        host = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(host)
        began = time.monotonic()
        reason = why_unreachable(host, seconds=0.3)
        assert reason is not None and time.monotonic() - began < 3
        began = time.monotonic()
        assert why_unreachable(host) == reason
        assert time.monotonic() - began < 0.1
        for filler in fillers:
            filler.close()
