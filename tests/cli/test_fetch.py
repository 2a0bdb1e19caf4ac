"""`patchctl fetch`: what comes into the cache, from where, and what is said when it cannot be had."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from distribution import Made, git, write_files
from on_disk import Workspace, snapshot


@pytest.fixture
def fresh(own: Made) -> Made:
    """A distribution whose cache is empty."""
    shutil.rmtree(own.cache)
    return own


def fetched(made: Made, *args: str) -> dict[str, dict[str, object]]:
    """The sources that a fetch reports, by upstream."""
    data = json.loads(made.good("fetch", "--profile", "full", "--json", *args))
    assert data["schema"] == "patchctl.fetch/1"
    return {row["upstream"]: row for row in data["sources"]}


def test_from_the_origin_then_from_the_cache(fresh: Made) -> None:
    first = fetched(fresh)
    assert [(r["form"], r["from_cache"]) for r in first.values()] == [("git", False), ("git", False)]
    head = git(fresh.origins / "greeter", "rev-parse", "HEAD", "HEAD^{tree}").split()
    assert [first["greeter"]["commit"], first["greeter"]["tree"]] == head
    before = snapshot(fresh.cache / "git")
    second = fetched(fresh)
    assert all(r["from_cache"] and r["bytes"] == 0 for r in second.values())
    assert snapshot(fresh.cache / "git") == before
    assert "proven" in fresh.good("fetch", "--profile", "full", "--offline")


def test_the_cache_holds_what_apply_needs_without_a_network(fresh: Made, tmp_path: Path) -> None:
    fetched(fresh)
    origins = fresh.origins.rename(tmp_path / "moved")
    try:
        ws = Workspace(fresh, tmp_path / "ws")
        ws.apply("full", "--offline")
        ws.assert_healthy()
    finally:
        origins.rename(fresh.origins)


def test_a_mirror_is_tried_first(fresh: Made, tmp_path: Path) -> None:
    mirror = tmp_path / "a mirror"
    git(tmp_path, "clone", "--quiet", "--bare", str(fresh.origins / "greeter"), str(mirror))
    rows = fetched(fresh, "--mirror", f"greeter={mirror}")
    assert str(mirror) in str(rows["greeter"]["origin"]) and str(mirror) not in str(rows["clock"]["origin"])


def test_a_mirror_that_lacks_the_commit_is_passed_over(fresh: Made, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(tmp_path, "init", "--quiet", str(other))
    write_files(other, {"a.txt": "a\n"})
    git(other, "add", "--all")
    git(other, "commit", "--quiet", "-m", "something else")
    rows = fetched(fresh, "--mirror", f"greeter={other}")
    assert str(fresh.origins / "greeter") in str(rows["greeter"]["origin"])


def test_every_place_is_named(fresh: Made) -> None:
    upstreams = fresh.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/", "/gone/"))
    done = fresh.patchctl("fetch", "--profile", "full", "--mirror", "clock=/no/such/place")
    assert done.returncode == 3
    for text in (
        "/no/such/place",
        "gone/greeter",
        "gone/clock",
        "greeter: no place has commit",
        "clock: no place has commit",
    ):
        assert text in done.stderr
    none = fresh.patchctl("fetch", "--profile", "full", "--skip-unavailable")
    assert none.returncode == 3 and "gone/greeter" in none.stderr and "continues without" not in none.stderr
    some = fresh.good("fetch", "--profile", "full", "--skip-unavailable", f"--mirror=clock={fresh.origins / 'clock'}")
    assert some.count("skipped") == 1 and "gone/greeter" in some


def test_offline_asks_nobody(fresh: Made) -> None:
    upstreams = fresh.root / "manifests/upstreams.yaml"
    text = upstreams.read_text()
    for name in ("greeter", "clock"):
        text = text.replace((fresh.origins / name).as_uri(), f"https://no-such-host.invalid/{name}.git")
    upstreams.write_text(text)
    done = fresh.patchctl("fetch", "--profile", "full", "--offline")
    assert done.returncode == 3 and "offline" in done.stderr
    rows = fetched(fresh, "--offline", *(f"--mirror={n}={fresh.origins / n}" for n in ("greeter", "clock")))
    assert set(rows) == {"greeter", "clock"}  # a local mirror needs no network


def test_a_changed_cache_is_found_and_refreshed(fresh: Made) -> None:
    fetched(fresh)
    (pack,) = (fresh.cache / "git/greeter").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    done = fresh.patchctl("fetch", "--profile", "full")
    assert done.returncode == 3 and str(pack.parent) in done.stderr and "--refresh" in done.stderr
    fetched(fresh, "--refresh")
    assert fetched(fresh)["greeter"]["from_cache"]


def test_wrong_use(fresh: Made) -> None:
    assert "did you mean 'full'?" in fresh.patchctl("fetch", "--profile", "ful").stderr
    assert fresh.patchctl("fetch", "--profile", "full", "--mirror", "greeter").returncode == 2
    assert fresh.patchctl("fetch", "--profile", "full", "--mirror", "nobody=/x").returncode == 2
    assert fresh.patchctl("fetch", "--profile", "full", "--mirror", "greeter=ext::sh -c date").returncode == 2


def hang_up(server: socket.socket) -> None:
    """Ends each connection as it comes, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            server.accept()[0].close()


def test_a_token_of_a_mirror_is_in_no_message_and_in_no_command_line(small: Made, tmp_path: Path) -> None:
    spy = tmp_path / "bin/git"
    spy.parent.mkdir()
    spy.write_text(f'#!/bin/sh\necho "$@" >> "{tmp_path}/asked"\nexec "{shutil.which("git")}" "$@"\n')
    spy.chmod(0o755)
    env = {"PATH": f"{spy.parent}{os.pathsep}{os.environ['PATH']}"}
    made = replace(small, cache=tmp_path / "cache")
    with socket.create_server(("127.0.0.1", 0)) as server:  # whoever connects gets no answer, and then an end
        server.settimeout(60)
        threading.Thread(target=hang_up, args=(server,), daemon=True).start()
        address = f"https://someone:SECRET@127.0.0.1:{server.getsockname()[1]}/x.git?token=SECRET"
        for mirror, code in ((address, 2), (f"greeter={address}", 0)):
            done = made.patchctl("fetch", "--profile", "full", "--mirror", mirror, env=env)
            assert done.returncode == code and "SECRET" not in done.stdout + done.stderr, done.stderr
        asked = (tmp_path / "asked").read_text()
    assert f"127.0.0.1:{urlsplit(address).port}/x.git" in asked and "SECRET" not in asked
