"""Makes a small distribution and the upstream repositories that it patches, with git, for tests that need no network.

    made = make_distribution(tmp_path)
    made.patchctl("lock").returncode
    made.patchctl("apply", "--profile", "full", "--workspace", str(tmp_path / "ws"))

Two upstreams with a pin each: `greeter` (a bugfix, a feature with a carried file, a feature on top) and `clock` (one
feature, which requires one of greeter). Both come from git; with `sdist` a source distribution holds some of the files too,
found through PIP_FIND_LINKS. Profile `full` has everything, `plain` leaves `polite` and `loud` out. Pass other
`Upstream`s for other trees. The same arguments give the same commits, patches and locks on every machine.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from forks import FORKS, Forks

# What patchctl imports as it goes.
PRELOADED = [
    "yaml",
    "click",
    "difflib",
    "tarfile",
    "zipfile",
    "tempfile",
    "shutil",
    "ast",
    "csv",
    "unidiff",
    "http.client",
    "unearth",
]
REPO = Path(__file__).resolve().parents[1]
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


class Link(str):
    """In place of a file's text: a symbolic link to there."""


class Program(str):
    """The text of a file that is executable, whatever its name."""


@dataclass(frozen=True)
class Patch:
    """One patch: the whole new text of each file that it changes (None deletes it), and the files that it carries."""

    feature: str
    edits: Mapping[str, str | None]
    subject: str
    switch: str = "none"
    requires: str = ""
    carries: Mapping[str, str] = field(default_factory=dict)

    def file(self, number: int) -> str:
        kind = "bugfix" if self.switch == "none" else "feature"
        return f"{number:04d}-{kind}-{self.feature}.patch"


@dataclass(frozen=True)
class Upstream:
    """One upstream: the files of its pin, the name of its stack and the patches, in order."""

    name: str
    stack: str
    files: Mapping[str, str]
    patches: Sequence[Patch] = ()
    sdist: Sequence[str] = ()  # the files that its source distribution holds; none for no distribution
    submodules: Sequence[str] = ()
    untracked: Mapping[str, str] = field(default_factory=dict)  # what the source distribution holds that git does not


_HELLO = '''"""Says hello."""

import os


def hello(name):
    text = "Helo, " + name
    return text


def shout(name):
    return hello(name).upper()


def main():
    print(hello(os.environ.get("USER", "you")))
'''
_FIXED = _HELLO.replace("Helo", "Hello")
_POLITE = _FIXED.replace(
    "    return text\n",
    '    if os.environ.get("GREETER_POLITE") == "1":\n        from greeter.manners import polite\n\n'
    "        text = polite(text)\n    return text\n",
)
_LOUD = _POLITE.replace("    return hello(name).upper()\n", "    return LOUD * hello(name).upper()\n").replace(
    "import os\n", 'import os\n\nLOUD = int(os.environ.get("GREETER_LOUD", "1"))\n', 1
)
_TICK = '"""Tells the time."""\n\n\ndef tick(count):\n    return count + 1\n'

GREETER = Upstream(
    "greeter",
    "v1",
    {"README.md": "greeter\n", "greeter/__init__.py": "", "greeter/hello.py": _HELLO, "run.sh": "#!/bin/sh\n"},
    (
        Patch("typo", {"greeter/hello.py": _FIXED}, "hello: spell the greeting right"),
        Patch(
            "polite",
            {"greeter/hello.py": _POLITE},
            "hello: add a polite form",
            switch="env GREETER_POLITE=1",
            carries={"greeter/manners.py": 'def polite(text):\n    return text + ", please"\n'},
        ),
        Patch(
            "loud", {"greeter/hello.py": _LOUD}, "hello: repeat a shout", switch="env GREETER_LOUD=3", requires="typo"
        ),
    ),
)
CLOCK = Upstream(
    "clock",
    "v2",
    {"clock/__init__.py": "", "clock/tick.py": _TICK},
    (
        Patch(
            "step",
            {"clock/tick.py": _TICK.replace("tick(count):", "tick(count, step=1):").replace("+ 1", "+ step")},
            "tick: take the size of a step",
            switch="config clock.step=2",
            requires="typo@greeter",
        ),
    ),
)


@dataclass(frozen=True)
class Made:
    """A distribution in `root`, its upstreams' repositories in `origins`, and a cache of its own."""

    root: Path
    origins: Path
    cache: Path

    @property
    def index(self) -> Path:
        """The folder of source distributions."""
        return self.origins.parent / "index"

    def patchctl(
        self, *args: str, env: Mapping[str, str] | None = None, timeout: float = 120
    ) -> subprocess.CompletedProcess[str]:
        """Runs the tool on this distribution, in an empty home; the caller looks at the exit code."""
        # Named twice, so that hints show commands without --root, as to a user inside it.
        env = {"PIP_FIND_LINKS": str(self.index), "PATCHCTL_ROOT": str(self.root), **(env or {})}
        home = self.cache.parent / "home"
        return run_patchctl(f"--root={self.root}", f"--cache={self.cache}", *args, home=home, env=env, timeout=timeout)

    def good(self, *args: str, env: Mapping[str, str] | None = None) -> str:
        """The standard output of a run that must end with 0."""
        done = self.patchctl(*args, env=env)
        assert done.returncode == 0, f"{args} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def patch(self, name: str) -> Path:
        """The patch file of a feature, or of FEATURE@UPSTREAM."""
        feature, _, upstream = name.partition("@")
        found = list((self.root / "patches").glob(f"{upstream or '*'}/*/{feature}/*.patch"))
        assert len(found) == 1, f"{len(found)} patches are called {name}"
        return found[0]

    def edit(self, file: Path | str, old: str, new: str) -> None:
        """Replaces a text that stands exactly once in a file (a path below the root, or a path)."""
        path = self.root / file
        text = path.read_bytes().decode()
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {path}"
        path.write_bytes(text.replace(old, new).encode())


def run_patchctl(
    *args: str, home: Path, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Runs the tool in the folder `home`, which is its home too, with nothing of this machine's configuration."""
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_"))}
    own = {
        "HOME": str(home),
        "PYTHONPATH": str(REPO),
        "PIP_NO_INDEX": "1",
        "PATCHCTL_NO_PROGRESS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # `prove` runs pytest: hypothesis's plugin takes four fifths of a start
    }
    return run_python(["-m", "patchctl", *args], {**kept, **own, **(env or {})}, home, timeout)


@functools.cache
def _forks() -> Forks:
    """A process with patchctl and what it brings, which a run of it is forked from."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PATCHCTL_", "XDG_", "PIP_"))}
    environment |= {"PYTHONPATH": str(REPO), "PYTHONDONTWRITEBYTECODE": "1"}
    return Forks(sys.executable, environment, ["patchctl.*", *PRELOADED])


def run_python(
    arguments: Sequence[str], environment: Mapping[str, str], cwd: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS...` with nothing on standard input, forked from a process that has patchctl imported where that is the same."""
    if not FORKS or environment["PYTHONPATH"] != str(REPO) or not _forks().fits(environment):
        return subprocess.run(
            [sys.executable, *arguments], env=environment, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout, check=False,
        )  # fmt: skip
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = _forks().start(arguments, environment, cwd, out, err)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        texts = [_text(stream) for stream in (out, err)]
    return subprocess.CompletedProcess([sys.executable, *arguments], code, *texts)


def _text(stream: IO[bytes]) -> str:
    """With line ends as subprocess gives them."""
    stream.seek(0)
    return io.TextIOWrapper(stream, encoding="utf-8").read()


def make_distribution(folder: Path, upstreams: Sequence[Upstream] = (GREETER, CLOCK), *, lock: bool = False) -> Made:
    """Makes everything in `folder`; with `lock`, runs `patchctl lock` (which fills the cache) as well."""
    made = Made(folder / "distribution", folder / "origins", folder / "cache")
    made.index.mkdir(parents=True)
    pins = {u.name: _make_upstream(made, u) + _make_sdist(made, u) for u in upstreams}
    _write_manifests(made, upstreams, pins)
    if lock:
        made.good("lock")
    return made


def git(repo: Path, *args: str) -> str:
    """The output of one git command in `repo`, without this machine's configuration."""
    done = subprocess.run(["git", "-C", str(repo), *args], env=GIT_ENV, capture_output=True, check=True)
    return done.stdout.decode()


def write_files(folder: Path, files: Mapping[str, str | None]) -> None:
    """Writes each text; None takes the file away. Names that end in .sh become executable."""
    for name, text in files.items():
        path = folder / name
        if text is None:
            path.unlink()
            if path.parent != folder and not any(path.parent.iterdir()):
                path.parent.rmdir()  # git knows no empty folders, and a file may take its place
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, Link):
            path.symlink_to(text)
            continue
        path.write_bytes(text.encode())
        path.chmod(0o755 if name.endswith(".sh") or isinstance(text, Program) else 0o644)


def _make_upstream(made: Made, upstream: Upstream) -> list[str]:
    """The repository and the patches; returns the pin's lines of the manifest."""
    repo = made.origins / upstream.name
    repo.mkdir(parents=True)
    git(repo, "init", "--quiet", "--initial-branch=main")
    write_files(repo, upstream.files)
    git(repo, "add", "--all")
    for submodule in upstream.submodules:  # as in a clone without its submodules: a commit id and an empty folder
        git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{submodule}")
        (repo / submodule).mkdir(parents=True)
    git(repo, "commit", "--quiet", "-m", "the pin")
    for number, patch in enumerate(upstream.patches, 1):
        write_files(repo, patch.edits)
        before, after = git(repo, "write-tree").strip(), _added(repo)
        diff = git(repo, "diff", "--binary", "--full-index", "--no-renames", "--no-color", "-U3", before, after)
        folder = made.root / "patches" / upstream.name / upstream.stack
        own = folder / patch.feature
        own.mkdir(parents=True, exist_ok=True)
        (own / patch.file(number)).write_bytes(patch_text(patch, diff).encode())
        write_files(own / "files", patch.carries)
    git(repo, "reset", "--quiet", "--hard")
    commit, tree = git(repo, "rev-parse", "HEAD", "HEAD^{tree}").split()
    return [f'  commit: "{commit}"', f'  tree: "{tree}"']


def _added(repo: Path) -> str:
    """The tree of what lies there."""
    git(repo, "add", "--all")
    return git(repo, "write-tree").strip()


def _make_sdist(made: Made, upstream: Upstream) -> list[str]:
    """NAME-1.0.tar.gz with the same bytes every time; returns its lines of the manifest's pin."""
    if not upstream.sdist:
        return []
    members = {name: upstream.files[name].encode() for name in upstream.sdist}
    members.update({name: text.encode() for name, text in upstream.untracked.items()})
    members["PKG-INFO"] = f"Metadata-Version: 2.1\nName: {upstream.name}\nVersion: 1.0\n".encode()
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, data in sorted(members.items()):
            info = tarfile.TarInfo(f"{upstream.name}-1.0/{name}")
            info.size, info.mode = len(data), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(data))
    packed = gzip.compress(plain.getvalue(), mtime=0)
    (made.index / f"{upstream.name}-1.0.tar.gz").write_bytes(packed)
    return ["  sdist:", '    version: "1.0"', f'    sha256: "{hashlib.sha256(packed).hexdigest()}"']


def patch_text(patch: Patch, diff: str) -> str:
    """A patch file as a distribution holds it, from what `git diff --full-index` printed."""
    trailers = [f"Feature: {patch.feature}", f"Switch: {patch.switch}"]
    trailers += [f"Requires: {patch.requires}"] if patch.requires else []
    trailers += [f"Carries: {', '.join(patch.carries)}"] if patch.carries else []
    trailers += ["Upstream-Status: Pending", "Drop-When: upstream does it itself"]
    head = (
        "From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001\n"
        "From: patchctl <patchctl@localhost>\n"
        "Date: Sat, 21 Nov 2026 00:00:00 +0000\n"
        f"Subject: [PATCH] {patch.subject}\n\n"
        f"Need: people ask for {patch.feature}, and upstream does not have it.\n\n"
        "The code does it now.\n\n"
        "Risk: a caller that counts on the old behaviour.\n\n"
    )
    return head + "\n".join(trailers) + "\n---\n" + re.sub(r"(?m)^(@@ -\S+ \+\S+ @@) .*$", r"\1", diff)


def _write_manifests(made: Made, upstreams: Sequence[Upstream], pins: Mapping[str, Sequence[str]]) -> None:
    lines = ["schema: 1", "upstreams:"]
    for u in upstreams:
        origin = (made.origins / u.name).as_uri()
        lines += [f"  {u.name}:", f"    summary: The {u.name}.", "    license: MIT", f'    git: ["{origin}"]']
        lines += [f"    packages: {{{u.name}: {u.name}}}"]
        lines += [f"    sdist: {u.name}"] if u.sdist else []
        stack = ["schema: 1", f"upstream: {u.name}", f"name: {u.stack}", "pin:", *pins[u.name], "patches:"]
        stack[-1] += "" if u.patches else " []"
        stack += [f"  - {p.file(n)}" for n, p in enumerate(u.patches, 1)]
        write_files(made.root, {f"manifests/stacks/{u.name}/{u.stack}.yaml": "\n".join(stack) + "\n"})
    write_files(made.root, {"manifests/upstreams.yaml": "\n".join(lines) + "\n"})
    features = {p.feature for u in upstreams for p in u.patches}
    left_out = [f for f in ("polite", "loud") if f in features]
    for name, without in (("full", []), ("plain", left_out)):
        profile = ["schema: 1", f"name: {name}", f"summary: The profile {name}.", "stacks:"]
        profile += [f"  {u.name}: {u.stack}" for u in upstreams]
        profile += [f"without: [{', '.join(without)}]"] if without else []
        write_files(made.root, {f"manifests/profiles/{name}.yaml": "\n".join(profile) + "\n"})
