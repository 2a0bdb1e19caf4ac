"""`patchctl bundle`, and the verbs that take one: everything works in an empty home that reaches no network."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from chinese import IN_CHINESE, english_in
from distribution import CLOCK, GREETER, REPO, Made, git, make_distribution, run_patchctl
from on_disk import copy_of, snapshot
from pins import oldest
from test_example import Example

from patchctl.bundle.layout import (
    DIGEST,
    END,
    INDEX,
    TOP,
    BundleMember,
    header,
    padding,
    parse_index,
    render_digest,
    render_index,
)
from patchctl.errors import SourceUnavailable

WITH_SDIST = ("greeter/__init__.py", "greeter/hello.py", "README.md", "run.sh")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """greeter in both forms, clock in git alone, with a page, a script and what editors leave behind. Read only."""
    from dataclasses import replace

    large = {"greeter/words.txt": "".join(f"word {n}\n" for n in range(20_000))}
    greeter = replace(GREETER, files={**GREETER.files, **large}, sdist=WITH_SDIST)
    made = make_distribution(tmp_path_factory.mktemp("bundle"), (greeter, CLOCK), lock=True)
    (made.root / "LICENSE").write_text("do what you like\n")
    (made.root / "scripts").mkdir()
    (made.root / "scripts" / "train.sh").write_text("#!/bin/sh\necho trained\n")
    (made.root / "scripts" / "train.sh").chmod(0o755)
    (made.root / "patches" / "greeter" / "v1" / "polite" / ".0001.swp").write_text("an editor's")
    (made.root / "patches" / "greeter" / "v1" / "polite" / "files" / "__pycache__").mkdir()
    (made.root / "patches" / "greeter" / "v1" / "polite" / "files" / "__pycache__" / "manners.pyc").write_bytes(b"\0")
    return made


@pytest.fixture(scope="module")
def bundle(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of profile full. Read only."""
    out = tmp_path_factory.mktemp("out") / "full.tar"
    made.good("bundle", "create", "--profile", "full", "--out", str(out))
    return out


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody answers, kept from others for the time of the test."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@dataclass(frozen=True)
class Behind:
    """A machine behind a firewall: an empty home, no distribution, every proxy and index at a port that is closed."""

    home: Path
    port: int
    cut: tuple[str, ...]

    def run(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        self.home.mkdir(exist_ok=True)
        nobody = f"http://127.0.0.1:{self.port}"
        proxies = {f"{n}_proxy": nobody for n in ("http", "https", "all")}
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(REPO), "PIP_INDEX_URL": nobody}
        line = [*self.cut, sys.executable, "-m", "patchctl", *args]
        return subprocess.run(
            line,
            env={**own, **proxies, **(env or {})},
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def good(self, *args: str) -> str:
        done = self.run(*args)
        assert done.returncode == 0, f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def without_network() -> tuple[str, ...]:
    """What to put before a command so that it has no network at all; nothing where the kernel does not let us."""
    unshare = shutil.which("unshare")
    cut = (unshare, "--map-root-user", "--net") if unshare else ()
    return cut if subprocess.run([*cut, "true"], capture_output=True, check=False).returncode == 0 else ()


@pytest.fixture
def behind(made: Made, closed_port: int, tmp_path: Path) -> Iterator[Behind]:
    """The origins are away for the time of the test. Where the kernel allows, the processes have no network at all."""
    away = made.origins.rename(tmp_path / "away")
    index = made.index.rename(tmp_path / "index-away")
    try:
        yield Behind(tmp_path / "home", closed_port, without_network())
    finally:
        away.rename(made.origins)
        index.rename(made.index)


def shown(path: Path, *args: str) -> dict[str, Any]:
    done = run_patchctl("bundle", "show", str(path), "--json", *args, home=path.parent / "home")
    assert done.returncode == 0, done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_a_bundle_is_a_distribution_for_every_verb(behind: Behind, bundle: Path) -> None:
    """By --root or PATCHCTL_ROOT, with nothing beside it; what writes patches wants a clone."""
    root = ("--root", str(bundle))
    assert "polite" in behind.good(*root, "list", "patches")
    assert "polite" in behind.run("list", "patches", env={"PATCHCTL_ROOT": str(bundle)}).stdout
    behind.good(*root, "verify", "--static")
    behind.good("apply", "--bundle", str(bundle), "--profile", "full", "--workspace", str(behind.home / "ws"))
    behind.good(*root, "verify", "--workspace", str(behind.home / "ws"))
    refused = behind.run(*root, "lock")
    assert refused.returncode == 2 and "lock works on a clone of the distribution" in refused.stderr
    assert "is a bundle's" in refused.stderr and "clone the repository that the bundle was made of" in refused.stderr


@pytest.mark.heavy("fetches the sources of a real profile")
def test_recipes_and_preflight_need_a_bundle_and_nothing_else(tmp_path: Path) -> None:
    profile, file = "qwen3-235b", tmp_path / "real.tar"
    release = {"PATCHCTL_RELEASE": oldest()}  # not the one that a distribution takes by itself
    args = (f"--profile={profile}", f"--release={oldest()}", "--source=sdist", "--skip-unavailable", f"--out={file}")
    index = {name: value for name, value in os.environ.items() if name.startswith("PIP_")} | {"PIP_NO_INDEX": "0"}
    made = run_patchctl(f"--root={REPO}", "bundle", "create", *args, home=tmp_path / "home", env=index, timeout=600)
    if made.returncode == SourceUnavailable.code:
        pytest.skip(made.stderr.splitlines()[0])
    assert made.returncode == 0, made.stderr
    assert shown(file)["release"] == oldest()
    for words in ("recipe list", f"recipe command {profile}/grpo"):
        here, there = (
            run_patchctl("--root", str(at), *words.split(), home=tmp_path / "home", env=chosen)
            for at, chosen in ((REPO, release), (file, {}))
        )
        assert there.returncode == 0 and there.stdout == here.stdout != "", there.stderr
    dry = run_patchctl(f"--root={file}", "train", profile, "grpo", "--dry-run", home=tmp_path / "home")
    assert f"# {profile}/grpo, release {oldest()}" in dry.stdout, dry.stdout + dry.stderr
    looked = run_patchctl(f"--root={file}", "preflight", f"--recipe={profile}/grpo", "--json", home=tmp_path / "home")
    assert looked.returncode == 1 and len(json.loads(looked.stdout)["findings"]) > 10, looked.stderr


def test_a_bundle_that_was_changed_is_no_distribution(behind: Behind, bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[-4000] ^= 1
    (tmp_path / "changed.tar").write_bytes(data)
    refused = behind.run("--root", str(tmp_path / "changed.tar"), "list")
    assert refused.returncode == 3 and "changed.tar" in refused.stderr


def test_what_is_in_it(made: Made, bundle: Path) -> None:
    data = shown(bundle, "--members")
    assert [(s["upstream"], s["form"]) for s in data["sources"]] == [
        ("greeter", "git"),
        ("greeter", "sdist"),
        ("clock", "git"),
    ]
    assert data["missing"] == [] and data["profile"] == "full"
    names = {m["name"] for m in data["members"]}
    patch = "distribution/patches/greeter/v1/polite/0002-feature-polite.patch"
    assert {"distribution/manifests/locks/greeter/v1.json", patch, "distribution/LICENSE"} <= names
    assert "distribution/patches/greeter/v1/polite/files/greeter/manners.py" in names
    assert not any(".swp" in n or "pycache" in n for n in names)
    assert data["sha256"] == hashlib.sha256(bundle.read_bytes()).hexdigest()
    assert data["size"] == bundle.stat().st_size


def test_other_tools_read_it(made: Made, bundle: Path, tmp_path: Path) -> None:
    """tar, sha256sum and git are enough to get everything out again."""
    subprocess.run(["tar", "-xf", str(bundle), "-C", str(tmp_path)], check=True)
    top = tmp_path / "patchctl-bundle"
    subprocess.run(["sha256sum", "--check", "--quiet", "index.json.sha256"], cwd=top, check=True)
    assert os.access(top / "distribution/scripts/train.sh", os.X_OK)
    (pack,) = (top / "sources/git/greeter").iterdir()
    git(tmp_path, "init", "--quiet", "--bare", "repo")
    with pack.open("rb") as data:
        subprocess.run(["git", "--git-dir=repo", "unpack-objects", "-q"], stdin=data, cwd=tmp_path, check=True)
    tree = git(tmp_path / "repo", "ls-tree", "-r", pack.stem)
    assert tree == git(made.origins / "greeter", "ls-tree", "-r", "HEAD")
    with tarfile.open(bundle) as tar:
        members = tar.getmembers()
    assert {(m.uid, m.gid, m.uname, m.gname, m.mtime) for m in members} == {(0, 0, "", "", 0)}
    assert {m.mode for m in members} == {0o644, 0o755}


def test_the_same_content_gives_the_same_bytes(made: Made, bundle: Path, tmp_path: Path) -> None:
    """Another folder, another cache filled from other places, another time: one file."""
    other = copy_of(made, tmp_path)
    shutil.rmtree(other.cache)
    mirror = tmp_path / "mirror"
    git(tmp_path, "clone", "--quiet", "--bare", str(made.origins / "greeter"), str(mirror))
    git(mirror, "repack", "-adfq", "--depth=0")
    os.utime(other.root / "LICENSE", (0, 0))
    out = tmp_path / "other.tar"
    other.good("bundle", "create", "-p", "full", "-o", str(out), "--mirror", f"greeter={mirror}")
    assert out.read_bytes() == bundle.read_bytes()


def test_an_empty_home_without_a_network_needs_the_bundle_alone(behind: Behind, bundle: Path) -> None:
    ws = behind.home / "ws"
    applied = behind.good("apply", "--bundle", str(bundle), "--profile", "full", "--workspace", str(ws))
    assert applied.count("as locked") == 2 and applied.count("git ") >= 2
    assert behind.good("status", "--workspace", str(ws)).count("as locked") == 2
    assert "no errors" in behind.good("verify", "--workspace", str(ws))
    shutil.rmtree(ws / "clock")
    (told,) = [line for line in behind.run("status", "--workspace", str(ws)).stdout.splitlines() if "next: " in line]
    assert "patchctl --root " in told and "as locked" in behind.good(*shlex.split(told.partition("patchctl ")[2]))
    assert "2 git trees" in behind.good("verify", "--bundle", str(bundle))
    assert "unchanged" in behind.good("apply", "--bundle", str(bundle), "--profile", "full", "--workspace", str(ws))
    behind.good("apply", "--bundle", str(bundle), "--profile", "plain", "--workspace", str(ws))
    behind.good("revert", "--workspace", str(ws))


def test_fetch_fills_the_cache_and_says_where_the_distribution_is(behind: Behind, bundle: Path) -> None:
    data = json.loads(behind.good("fetch", "--bundle", str(bundle), "--profile", "full", "--json"))
    assert [(s["form"], s["from_cache"]) for s in data["sources"]] == [("git", False), ("git", False)]
    assert all(str(bundle) in s["origin"] for s in data["sources"])
    root = data["root"]
    assert "as locked" in behind.good("--root", root, "apply", "--offline", "--profile", "full")
    assert "greeter" in behind.good("--root", root, "list")
    again = json.loads(behind.good("fetch", "--bundle", str(bundle), "--profile", "full", "--json"))
    assert all(s["from_cache"] for s in again["sources"]) and again["root"] == root
    refreshed = json.loads(behind.good("fetch", "--bundle", str(bundle), "-p", "full", "--refresh", "--json"))
    assert not any(s["from_cache"] for s in refreshed["sources"])


def test_the_source_distribution_comes_from_it_too(behind: Behind, bundle: Path) -> None:
    line = ("apply", "--bundle", str(bundle), "--profile", "full", "--source", "sdist", "--skip-unavailable")
    out = behind.good(*line, "--workspace", str(behind.home / "ws"))
    assert "v1  sdist  applied  3 patches" in out and "clock" in out and "skipped" in out
    assert f"tried bundle {bundle}: not included in form sdist" in out or "no source distribution is pinned" in out


def test_unpack(made: Made, behind: Behind, bundle: Path) -> None:
    to = behind.home / "mine"
    behind.good("bundle", "unpack", str(bundle), "--to", str(to))
    wanted = {p: s for p, s in snapshot(made.root).items() if "pycache" not in p and ".swp" not in p}
    files = {p: s for p, s in wanted.items() if s[1]}
    assert {p: s for p, s in snapshot(to).items() if s[1]} == files
    behind.good("--root", str(to), "apply", "--bundle", str(bundle), "--profile", "full")
    again = behind.home / "again.tar"
    line = ("--root", str(to), "bundle", "create", "--profile", "full", "--out", str(again))
    assert behind.run(*line, "--offline", "--source", "git").returncode == 0
    (to / "notes.txt").write_text("mine\n")
    done = behind.run("bundle", "unpack", str(bundle), "--to", str(to))
    assert done.returncode == 2 and "the folder is not empty" in done.stderr
    assert (to / "notes.txt").read_text() == "mine\n"


def test_what_a_killed_unpack_left_is_completed(made: Made, behind: Behind, bundle: Path) -> None:
    """In a folder that was there the files are moved one by one: some are in place, and the rest is in a hidden folder."""
    whole, to = behind.home / "whole", behind.home / "mine"
    behind.good("bundle", "unpack", str(bundle), "--to", str(whole))
    shutil.copytree(whole / "patches", to / "patches")
    shutil.copytree(whole / "manifests", to / ".mine.new" / "manifests")
    behind.good("bundle", "unpack", str(bundle), "--to", str(to))
    assert snapshot(to) == snapshot(whole)
    shutil.rmtree(to / "manifests")
    changed = next((to / "patches").rglob("*.patch"))
    changed.write_text("mine\n")
    done = behind.run("bundle", "unpack", str(bundle), "--to", str(to))
    assert done.returncode == 2 and "the folder is not empty" in done.stderr
    assert changed.read_text() == "mine\n" and not (to / "manifests").exists()


def test_a_named_root_wins_and_takes_only_sources(made: Made, behind: Behind, bundle: Path, tmp_path: Path) -> None:
    other = copy_of(made, tmp_path / "other")
    other.edit("manifests/stacks/clock/v2.yaml", git_commit(bundle, "clock"), "1" * 40)
    other.edit("manifests/upstreams.yaml", (made.origins / "clock").as_uri(), "https://no-such-host.invalid/clock.git")
    done = behind.run("--root", str(other.root), "fetch", "--bundle", str(bundle), "--profile", "full")
    assert done.returncode == 3
    assert f"bundle {bundle}: it has commit {git_commit(bundle, 'clock')}" in done.stderr
    assert "clock.git: the run is offline" in done.stderr and "create a bundle of this profile" in done.stderr


def as_before_folders(bundle: Path, to: Path) -> Path:
    """The bundle with its patches as they lay when no feature had a folder: right digests, one layout further back."""
    with tarfile.open(bundle) as tar:
        held = {m.name.removeprefix(TOP): tar.extractfile(m).read() for m in tar}  # type: ignore[union-attr]
    index = parse_index(held[INDEX])
    flat = {m.name: re.sub(r"^(distribution/patches/[^/]+/[^/]+/)[^/]+/", r"\1", m.name) for m in index.members}
    assert len(set(flat.values())) == len(flat) and flat.keys() != {*flat.values()}
    pairs = sorted(((replace(m, name=flat[m.name]), held[m.name]) for m in index.members), key=lambda p: p[0].name)
    first = render_index(replace(index, members=tuple(m for m, _ in pairs)))
    second = render_digest(hashlib.sha256(first).hexdigest())
    heads = [(BundleMember(name, len(data), ""), data) for name, data in ((INDEX, first), (DIGEST, second))]
    to.write_bytes(b"".join(header(m) + data + bytes(padding(m.size)) for m, data in [*heads, *pairs]) + END)
    return to


def test_a_bundle_from_before_features_had_folders(made: Made, behind: Behind, bundle: Path, tmp_path: Path) -> None:
    """Its distribution is refused with the reason; its sources serve a distribution of today."""
    old = as_before_folders(bundle, tmp_path / "old.bundle.tar")
    line = ("apply", "--bundle", str(old), "--profile", "full", "--workspace", str(tmp_path / "ws"))
    done = behind.run(*line)
    assert done.returncode == 2 and "next to that folder: move it" in done.stderr
    assert not (tmp_path / "ws").exists() and "every byte is as it was written" in behind.good(
        "bundle", "verify", str(old)
    )
    assert behind.good("--root", str(made.root), *line).count("as locked") == 2


def git_commit(bundle: Path, upstream: str) -> str:
    found = (s for s in shown(bundle)["sources"] if (s["upstream"], s["form"]) == (upstream, "git"))
    return str(next(found)["commit"])


def test_the_digest_is_checked_before_anything_is_read(made: Made, bundle: Path, tmp_path: Path) -> None:
    right = hashlib.sha256(bundle.read_bytes()).hexdigest()
    home = tmp_path / "home"
    ws = ("--workspace", str(tmp_path / "ws"))
    assert run_patchctl("bundle", "verify", str(bundle), "--sha256", right.upper(), home=home).returncode == 0
    wrong = run_patchctl("apply", "--bundle", str(bundle), "--sha256", "0" * 64, "-p", "full", *ws, home=home)
    assert wrong.returncode == 3 and right in wrong.stderr and "0" * 64 in wrong.stderr
    garbage = tmp_path / "garbage"
    garbage.write_bytes(b"no bundle")
    assert ", expected " in run_patchctl("bundle", "show", str(garbage), "--sha256", right, home=home).stderr
    assert run_patchctl("bundle", "show", str(bundle), "--sha256", "12", home=home).returncode == 2
    alone = made.patchctl("fetch", "--sha256", right, "--profile", "full")
    assert alone.returncode == 2 and "--bundle FILE" in alone.stderr
    assert not (tmp_path / "ws").exists() and not (home / ".cache").exists()


def test_what_cannot_be_had(made: Made, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    shutil.rmtree(own.cache)
    upstreams = own.root / "manifests/upstreams.yaml"
    upstreams.write_text(upstreams.read_text().replace("/origins/clock", "/gone/clock"))
    out = tmp_path / "out.tar"
    done = own.patchctl("bundle", "create", "-p", "full", "-o", str(out))
    assert done.returncode == 3 and "gone/clock" in done.stderr and not out.exists()
    data = json.loads(own.good("bundle", "create", "-p", "full", "-o", str(out), "--skip-unavailable", "--json"))
    assert data["missing"][0]["upstream"] == "clock" and data["skipped"][0]["tried"]
    assert shown(out)["missing"] == [{"upstream": "clock", "form": "git"}]
    assert [(s["upstream"], s["form"]) for s in shown(out)["sources"]] == [("greeter", "git"), ("greeter", "sdist")]
    line = ("apply", "--bundle", str(out), "-p", "full", "--workspace", str(tmp_path / "ws"), "--skip-unavailable")
    assert "clock        skipped" in own.good(*line)


def test_what_does_not_apply_is_not_bundled(made: Made, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    own.edit(own.patch("typo"), '+    text = "Hello', '+    text = "Hallo')
    out = tmp_path / "out.tar"
    assert own.patchctl("bundle", "create", "-p", "full", "-o", str(out)).returncode in (2, 4)
    assert not out.exists()


def test_a_changed_cache_is_not_bundled(made: Made, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    (pack,) = (own.cache / "git/greeter").rglob("*.pack")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o644)
    pack.write_bytes(data)
    out = tmp_path / "out.tar"
    assert own.patchctl("bundle", "create", "-p", "full", "-o", str(out)).returncode == 3
    assert not out.exists()


def test_a_file_that_was_there_is_replaced_whole(made: Made, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tar"
    out.write_text("old")
    made.good("bundle", "create", "--profile", "full", "--out", str(out))
    assert out.read_bytes() == bundle.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["out.tar"]
    (tmp_path / "folder").mkdir()
    assert made.patchctl("bundle", "create", "-p", "full", "-o", str(tmp_path / "folder")).returncode == 2
    assert made.patchctl("bundle", "create", "-p", "full", "-o", str(tmp_path / "no" / "out.tar")).returncode == 2


@pytest.mark.parametrize("kind", ["link", "pipe", "control"])
def test_a_distribution_with_a_file_that_no_bundle_takes(made: Made, kind: str, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    odd = own.root / "scripts" / ("a\x1bb" if kind == "control" else "odd")
    odd.parent.mkdir(exist_ok=True)
    if kind == "link":
        odd.symlink_to("/etc/passwd")
    elif kind == "pipe":
        os.mkfifo(odd)
    else:
        odd.write_text("")
    done = own.patchctl("bundle", "create", "-p", "full", "-o", str(tmp_path / "out.tar"))
    assert done.returncode == 2 and "cannot bundle this file" in done.stderr and "\x1b" not in done.stderr


def test_a_changed_distribution_in_the_cache_is_found(behind: Behind, bundle: Path) -> None:
    root = Path(json.loads(behind.good("fetch", "--bundle", str(bundle), "-p", "full", "--json"))["root"])
    added = root / "manifests" / "profiles" / "evil.yaml"
    added.write_text("schema: 1\n")
    done = behind.run("apply", "--bundle", str(bundle), "--profile", "full")
    assert done.returncode == 3 and str(added) in done.stderr
    added.unlink()
    (root / "manifests/profiles/full.yaml").write_text("schema: 1\n")
    done = behind.run("apply", "--bundle", str(bundle), "--profile", "full")
    assert done.returncode == 3 and "full.yaml" in done.stderr
    assert not (behind.home / "workspace").exists()


def test_byte_code_in_the_cached_distribution_is_no_change(behind: Behind, bundle: Path) -> None:
    """Scripts of it that import one another leave it there."""
    root = Path(json.loads(behind.good("fetch", "--bundle", str(bundle), "-p", "full", "--json"))["root"])
    (root / "scripts" / "__pycache__").mkdir()
    (root / "scripts" / "__pycache__" / "torch_env.cpython-311.pyc").write_bytes(b"\0")
    behind.good("fetch", "--bundle", str(bundle), "--profile", "full")


def test_an_empty_folder_is_filled_and_stays_the_same_folder(bundle: Path, tmp_path: Path) -> None:
    """It may be where somebody stands, or a mount point, in a folder that nobody may write to."""
    to = tmp_path / "here"
    to.mkdir()
    before = to.stat().st_ino
    done = subprocess.run(
        [sys.executable, "-m", "patchctl", "bundle", "unpack", str(bundle), "--to", "."],
        env={"HOME": str(tmp_path), "PATH": os.environ["PATH"], "PYTHONPATH": str(REPO)},
        cwd=to,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert to.stat().st_ino == before and (to / "manifests/upstreams.yaml").is_file()
    assert sorted(p.name for p in to.iterdir()) == ["LICENSE", "manifests", "patches", "scripts"]
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".here")] == []


@pytest.mark.parametrize("kind", ["untracked", "ignored", "ignored-patch"])
def test_in_a_checkout_only_what_git_keeps_is_bundled(made: Made, kind: str, tmp_path: Path) -> None:
    """One revision, one digest; and no file that happens to lie there goes to other machines."""
    own = copy_of(made, tmp_path)
    (own.root / ".gitignore").write_text("*.secret\n__pycache__/\n*.swp\n")
    (own.root / "Dockerfile").write_text("FROM scratch\n")
    git(own.root, "init", "--quiet")
    git(own.root, "add", "--all")
    git(own.root, "commit", "--quiet", "-m", "all")
    names = {
        "untracked": "scripts/token.txt",
        "ignored": "scripts/a.secret",
        "ignored-patch": "patches/greeter/a.secret",
    }
    stray = own.root / names[kind]
    stray.write_text("a token")
    out = tmp_path / "out.tar"
    done = own.patchctl("bundle", "create", "-p", "full", "-o", str(out))
    if kind == "ignored":
        assert done.returncode == 0, done.stderr
        assert not [m for m in shown(out, "--members")["members"] if "secret" in m["name"] or "Dockerfile" in m["name"]]
    else:
        assert done.returncode == 2 and str(stray) in done.stderr and "git add" in done.stderr and not out.exists()


@pytest.mark.parametrize("index", ["damaged", "gone"])
def test_where_git_cannot_tell_what_it_keeps_nothing_is_bundled(made: Made, index: str, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    git(own.root, "init", "--quiet")
    git(own.root, "add", "--all")
    git(own.root, "commit", "--quiet", "-m", "all")
    (own.root / "docs").mkdir(exist_ok=True)
    (own.root / "docs/secret.md").write_text("a token")
    file = own.root / ".git/index"
    if index == "gone":
        file.unlink()
    else:
        file.write_bytes(b"1234" + file.read_bytes()[4:])
    out = tmp_path / "out.tar"
    done = own.patchctl("bundle", "create", "-p", "full", "-o", str(out))
    said = "git does not track this file" if index == "gone" else "git cannot list the files of the distribution"
    assert done.returncode == 2 and said in done.stderr and not out.exists()


def test_a_file_that_the_checkout_s_own_list_ignores_is_left_out(made: Made, tmp_path: Path) -> None:
    own = copy_of(made, tmp_path)
    git(own.root, "init", "--quiet")
    git(own.root, "add", "--all")
    git(own.root, "commit", "--quiet", "-m", "all")
    (own.root / ".git/info/exclude").write_text("*.secret\n")
    (own.root / "scripts/a.secret").write_text("a token")
    out = tmp_path / "out.tar"
    done = own.patchctl("bundle", "create", "-p", "full", "-o", str(out))
    assert done.returncode == 0, done.stderr
    assert not [m for m in shown(out, "--members")["members"] if "secret" in m["name"]]


def test_without_a_network_more_mirrors_are_no_way_out(behind: Behind, bundle: Path) -> None:
    line = ("apply", "--bundle", str(bundle), "--profile", "full", "--workspace", str(behind.home / "ws"))
    alone = behind.run(*line, "--source", "sdist")
    assert alone.returncode == 3 and "create a bundle of this profile" in alone.stderr
    away = behind.home / "none.tar"
    shutil.copy(bundle, away)
    root = Path(json.loads(behind.good("fetch", "--bundle", str(bundle), "-p", "full", "--json"))["root"])
    shutil.copytree(root, behind.home / "moved")
    for name in ("greeter/v1", "clock/v2"):
        file = behind.home / "moved/manifests/stacks" / f"{name}.yaml"
        file.write_text(file.read_text().replace(git_commit(bundle, name.partition("/")[0]), "1" * 40))
    shutil.rmtree(behind.home / ".cache")
    both = behind.run("--root", str(behind.home / "moved"), *line, "--source", "git")
    assert both.returncode == 3 and "create a bundle of this profile" in both.stderr, both.stderr
    assert "--mirror NAME=URL adds places" not in both.stderr


def test_what_is_no_bundle(tmp_path: Path, made: Made) -> None:
    (archive,) = made.index.glob("*.tar.gz")
    other = tmp_path / "other.tar"
    with tarfile.open(other, "w") as tar:
        tar.add(archive, "a")
    (tmp_path / "empty").write_bytes(b"")
    for path in (archive, other, tmp_path / "empty", tmp_path, tmp_path / "nowhere", Path(os.devnull)):
        done = run_patchctl("bundle", "verify", str(path), home=tmp_path / "home")
        assert done.returncode == 2 and "Traceback" not in done.stderr, f"{path}: {done.stderr}"


def test_the_example_distribution_from_its_bundle_alone(tmp_path: Path, closed_port: int) -> None:
    (tmp_path / "made").mkdir()
    example = Example(tmp_path / "made")
    example.good("python make.py")
    example.good(f"patchctl --root stations bundle create --profile harbour --out {tmp_path}/harbour.tar")
    shutil.rmtree(tmp_path / "made")
    behind = Behind(tmp_path / "home", closed_port, without_network())
    bundle = ("--bundle", str(tmp_path / "harbour.tar"))
    assert behind.good("apply", *bundle, "--profile", "harbour").count("as locked") == 2
    assert behind.good("status").count("as locked") == 2
    behind.good("verify", *bundle)
    behind.good("verify", "--workspace", "workspace")


def test_what_is_wrong_with_a_bundle_in_chinese(made: Made, bundle: Path, tmp_path: Path) -> None:
    """English JSON, and on standard error the language of the run."""
    data = bundle.read_bytes()
    files = {"cut": data[:-600], "longer": data + b"x", "other": b"no bundle\n" * 100}
    (tmp_path / "allowed").write_text("")
    home, said = tmp_path / "home", []
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    asked = [(tmp_path / name,) for name in files]
    asked += [(bundle, "--sha256", "0" * 64), (bundle, "--allowed-signers", tmp_path / "allowed")]
    for args in asked:
        command = ("apply", "-p", "full", "-w", str(tmp_path / "ws"), "--bundle", *map(str, args))
        done = run_patchctl(*command, home=home, env=IN_CHINESE)
        assert done.returncode in (2, 3) and english_in(done.stderr) == [], done.stderr
        said.append(done.stderr)
        json_in = [run_patchctl(*command, "--json", home=home, env=env).stdout for env in ({}, IN_CHINESE)]
        assert json_in[0] == json_in[1] and json_in[0].isascii()
    assert "离线包被修改过：在 末尾的两个全零块 处截断" in said[0] and "末尾之后多出 1 字节" in said[1], said
    assert "不是 patchctl 的离线包" in said[2] and "离线包的 sha256 为 " in said[3] and "离线包没有签名：" in said[4], (
        said
    )
