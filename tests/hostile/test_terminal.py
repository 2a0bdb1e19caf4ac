"""What others wrote never steers a terminal or a log: subjects, authors, names, manifests, git's stderr, paths."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

import harmless
from distribution import GREETER, Made, make_distribution
from on_disk import Workspace, copy_of, own, own_ws, small, ws
from watched import run_all

pytestmark = pytest.mark.family("Terminal and CI log injection")

__all__ = ["own", "own_ws", "small", "ws"]

# Name: text that a terminal, or a reader, would act on.
NASTY = {
    "escape": "\x1b[2J\x1b[31m",
    "title": "\x1b]0;owned\x07",
    "c1": "\x9b2J",
    "carriage-return": "fine\rforged",
    "bidirectional": "\u202egnp.exe",
    "zero-width": "a\u200bb",
    "backspace": "abc\x08\x08\x08",
    "line-separator": "a\u2028b",
}
ORDERS = {
    "annotation": "::error file=a::forged",
    "azure": "##vso[task.setvariable variable=x]y",
    "end-of-cdata": "]]><testcase name='forged'/>",
    "percent": "%0A::error::forged%0D",
    "tag": "\U000e0041\U000e0042",
    "private": "\ue000\U000f0000",
    "markup": "<script>alert(1)</script>&amp;",
}
PATCH = "patches/greeter/v1/loud/0003-feature-loud.patch"
FORBIDDEN = {chr(c) for c in (*range(0x20), *range(0x7F, 0xA0))} - {"\n", "\t"} | {
    "\u202e",
    "\u202a",
    "\u202b",
    "\u202d",
    "\u2066",
    "\u2067",
    "\u2068",
    "\u2069",
    "\u200b",
    "\u200e",
    "\u200f",
    "\u2028",
    "\u2029",
}


def assert_harmless(done: subprocess.CompletedProcess[str]) -> None:
    for name, text in (("output", done.stdout), ("error", done.stderr)):
        found = sorted({hex(ord(c)) for c in text if c in FORBIDDEN})
        assert not found, f"{name} holds {found}: {text!r}"
    assert "Traceback" not in done.stderr


def all_verbs(made: Made, workspace: Path) -> list[subprocess.CompletedProcess[str]]:
    """Everything that reads a patch or a manifest and prints of it, as text and as JSON."""
    lines = [
        ["apply", "--profile", "full", "--workspace", str(workspace)],
        ["list"],
        ["verify", "--static", "--json"],
    ]
    return [made.patchctl(*line) for line in lines]


@pytest.mark.parametrize("nasty", ["escape", "c1", "carriage-return", "bidirectional"])
@pytest.mark.parametrize("where", ["subject", "author", "body", "feature"])
def test_in_a_patch(own: Made, tmp_path: Path, where: str, nasty: str) -> None:
    file = own.root / PATCH
    text = file.read_bytes().decode()
    old, new = {
        "subject": ("[PATCH] hello: repeat", f"[PATCH] hello: {NASTY[nasty]} repeat"),
        "author": ("From: patchctl <patch", f"From: patch{NASTY[nasty]}ctl <patch"),
        "body": ("Need: people", f"Need: {NASTY[nasty]} people"),
        "feature": ("Feature: loud", f"Feature: lo{NASTY[nasty]}ud"),
    }[where]
    assert text.count(old) == 1
    file.write_bytes(text.replace(old, new).encode())
    shutil.rmtree(own.root / "manifests/locks")
    for done in all_verbs(own, tmp_path / "ws"):
        assert_harmless(done)
        assert done.returncode in (0, 1, 2, 4), done.stderr


@pytest.mark.parametrize("nasty", ["escape", "c1", "bidirectional"])
def test_in_the_names_of_a_patch(own: Made, tmp_path: Path, nasty: str) -> None:
    file = own.root / PATCH
    quoted = "".join(f"\\{b:03o}" for b in NASTY[nasty].encode())
    text = (
        file.read_bytes()
        .decode()
        .replace("a/greeter/hello.py", f'"a/{quoted}"')
        .replace("b/greeter/hello.py", f'"b/{quoted}"')
    )
    file.write_bytes(text.encode())
    for done in all_verbs(own, tmp_path / "ws"):
        assert_harmless(done)
    raw = (
        file.read_bytes()
        .decode()
        .replace(f'"a/{quoted}"', f"a/{NASTY[nasty]}")
        .replace(f'"b/{quoted}"', f"b/{NASTY[nasty]}")
    )
    file.write_bytes(raw.encode())
    for done in all_verbs(own, tmp_path / "ws2"):
        assert_harmless(done)


@pytest.mark.parametrize("nasty", ["escape", "c1", "carriage-return", "bidirectional", "line-separator"])
@pytest.mark.parametrize("value", ["summary: {}", '"{}": x', "name: {}"])
def test_in_a_manifest(own: Made, value: str, nasty: str) -> None:
    file = own.root / "manifests/profiles/plain.yaml"
    escaped = NASTY[nasty].encode("unicode_escape").decode()
    for text in (NASTY[nasty], f'"{escaped}"'):
        line = value.format(text if not value.startswith('"') else text.strip('"'))
        lines = [row for row in file.read_text().split("\n") if not row.startswith(line.split(":")[0] + ":")]
        (own.root / "manifests/profiles/other.yaml").write_bytes("\n".join([line, *lines]).encode())
        assert_harmless(own.patchctl("list"))


@pytest.mark.parametrize("nasty", ["escape", "c1", "bidirectional", "carriage-return"])
def test_in_the_names_of_edited_files(ws: Workspace, nasty: str) -> None:
    ws.apply()
    (ws.folder / "greeter" / NASTY[nasty]).write_text("x\n")
    env = {"GIT_CONFIG_GLOBAL": os.devnull, "PATH": os.environ["PATH"]}
    subprocess.run(["git", "-C", str(ws.folder / "greeter"), "add", "--all"], env=env, check=True)
    for verb in (["status"], ["status", "--json"], ["revert"], ["revert", "--json"], ["verify"], ["revert", "--stash"]):
        assert_harmless(ws.run(verb[0], *verb[1:]))


def test_in_the_path_of_a_workspace(small: Made, tmp_path: Path) -> None:
    ws = Workspace(small, tmp_path / f"ws{NASTY['escape']}{NASTY['bidirectional']}")
    for verb in (["apply", "--profile", "full"], ["status"], ["status", "--json"], ["revert"]):
        done = ws.run(verb[0], *verb[1:])
        assert done.returncode == 0, done.stderr
        assert_harmless(done)


def test_in_what_git_says(small: Made, tmp_path: Path) -> None:
    """A server's messages come through git's stderr."""
    made = copy_of(small, tmp_path)
    shutil.rmtree(made.cache)
    folder = tmp_path / "bin"
    folder.mkdir()
    real = shutil.which("git")
    said = "fatal: \\033[2J\\033]0;owned\\007 \\302\\233 \\342\\200\\256 ::error::forged\\r\\n"
    (folder / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *fetch*) printf "{said}" >&2; exit 128;; esac\nexec "{real}" "$@"\n'
    )
    (folder / "git").chmod(0o755)
    env = {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for extra in ([], ["--json"], ["--skip-unavailable"]):
        done = made.patchctl("fetch", "--profile", "full", *extra, env=env)
        assert done.returncode == 3, done.stderr
        assert_harmless(done)
        assert "owned" in done.stdout + done.stderr
        assert not any(line.startswith("::") for line in (done.stdout + done.stderr).splitlines())


def test_in_command_line_arguments(small: Made) -> None:
    for line in (
        ["apply", "--profile", NASTY["escape"]],
        [NASTY["title"]],
        ["status", f"--{NASTY['c1']}"],
        ["edit", NASTY["bidirectional"]],
    ):
        done = small.patchctl(*line)
        assert done.returncode == 2
        assert_harmless(done)


def test_in_the_text_that_a_patch_leaves_in_a_workspace(tmp_path: Path) -> None:
    """A reason that names a file which the source lacks comes from a patch's path."""
    made = make_distribution(tmp_path, (GREETER,), lock=True)
    file = made.root / PATCH
    file.write_bytes(file.read_bytes().replace(b"Requires: typo", b"Requires: typo\x1b[2J"))
    done = made.patchctl("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))
    assert done.returncode == 2
    assert_harmless(done)


@pytest.mark.parametrize(
    "nasty", [*NASTY, "annotation", "azure", "end-of-cdata", "percent", "tag", "private", "markup"]
)
def test_in_what_verify_prints_for_a_ci_system(own: Made, nasty: str, tmp_path: Path) -> None:
    """In a subject, a trailer, a file's name and a manifest at once; as JSON, XML and annotations they are parsed too."""
    text = {**NASTY, **ORDERS}[nasty]
    file, folder = own.root / PATCH, own.root / "patches/greeter/v1"
    for feature in ("odd", "named"):
        (folder / feature).mkdir()
    quoted = "".join(f"\\{b:03o}" for b in text.encode())
    old = file.read_bytes()
    file.write_bytes(old.replace(b"[PATCH] hello: repeat", f"[PATCH] hello: {text} repeat".encode()))
    (folder / "odd/0004-feature-odd.patch").write_bytes(old.replace(b"Feature: loud", f"Feature: {text}".encode()))
    named = old.replace(b"a/greeter/hello.py", f'"a/{quoted}"'.encode()).replace(
        b"b/greeter/hello.py", f'"b/{quoted}"'.encode()
    )
    (folder / "named/0005-feature-named.patch").write_bytes(named)
    stack = own.root / "manifests/stacks/greeter/v1.yaml"
    stack.write_text(stack.read_text() + "  - 0004-feature-odd.patch\n  - 0005-feature-named.patch\n")
    forms = ("text", "json", "github", "gitlab", "sarif", "junit")
    lines = [[f"--root={own.root}", f"--cache={own.cache}", "verify", "--static", "--format", form] for form in forms]
    for form, run in zip(forms, run_all(lines, home=tmp_path / "home", results=tmp_path / "results").runs, strict=True):
        assert run.code == 1, run
        harmless.assert_harmless(run.stdout, run.stderr, where=nasty, form=form)
        assert "0005-feature-named.patch" in run.stdout
