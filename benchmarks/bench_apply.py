#!/usr/bin/env python3
"""What `patchctl apply` costs beside `git am` and a loop of `git apply` over the same patches, all in one run.

Patches are real with --repo (a run of commits of that repository whose every patch a stack may hold), seeded without it and
where no run is long enough; with --profile also those of a profile of this distribution, all trees together. Every tool begins
with checkouts of the bases and ends with the patched files on disk; patchctl and `git am` make a commit a patch as well. CPU is
user and system time of a process and all of its children. Rounds of all tools alternate, and the fastest of each counts: other
work on a machine only adds.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from apply_plot import Times, draw
from apply_series import GIT_ENV, Series, find_series, git, made_series
from markers import write_between_markers

from patchctl.manifest.series import feature_of, place_of

ROOT = Path(__file__).resolve().parent.parent
OURS = ("computed", "remembered", "nothing to do", "revert", "verify -w", "status")
TOOLS = ("git am", "git apply", *OURS)


@dataclass
class Runs:
    """The rounds of one tool: CPU and wall in seconds, and the most memory in MiB."""

    cpu: list[float] = field(default_factory=list)
    wall: list[float] = field(default_factory=list)
    peak: float = 0.0


@dataclass
class Case:
    """What is compared: its name, patches, files, and what every tool took."""

    name: str
    patches: int
    files: int
    runs: dict[str, Runs]

    def ratio(self, tool: str) -> float:
        """CPU in that of `git am`."""
        return min(self.runs[tool].cpu) / min(self.runs["git am"].cpu)


class Clock:
    """Adds up what the children of one round take."""

    def __init__(self) -> None:
        self.cpu = self.wall = self.peak = 0.0

    def run(self, command: list[str], cwd: Path, env: dict[str, str] = GIT_ENV) -> None:
        began = time.perf_counter()
        process = subprocess.Popen(command, cwd=cwd, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.wall += time.perf_counter() - began
        self.cpu += usage.ru_utime + usage.ru_stime
        self.peak = max(self.peak, usage.ru_maxrss / 1024)
        if process.returncode != 0:
            raise SystemExit(f"{command[:3]} ended with {process.returncode}: {errors.decode()[-2000:]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, help="a git repository whose history gives the patches")
    parser.add_argument("--sizes", type=int, nargs="*", default=[35, 200, 1000])
    parser.add_argument(
        "--made", type=int, nargs="*", default=[], metavar="N", help="synthetic series of so many patches"
    )
    parser.add_argument(
        "--trees", type=int, nargs="*", default=[], metavar="N", help="35 patches on trees of so many files"
    )
    parser.add_argument("--profile", help="a profile of this distribution, its sources from --mirror or the network")
    parser.add_argument("--release", metavar="NAME", help="the profile's release, where it is not the newest")
    parser.add_argument("--mirror", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    parser.add_argument("--plot", type=Path, help="an SVG of cost against patches and against files")
    args = parser.parse_args()
    lines = [machine(), ""]
    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        cases = []
        charts: dict[str, dict[int, Times]] = {"profile": {}, "patches": {}, "files": {}}
        for chart, case in all_cases(Path(scratch), args):
            print(row(case), file=sys.stderr)
            cases.append(case)
            charts[chart][case.files if chart == "files" else case.patches] = times(case)
    lines += table(cases, args.rounds)
    if args.plot:
        args.plot.write_text(draw(charts["patches"], charts["files"]), encoding="utf-8")
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench", text)
    return 0


def times(case: Case) -> Times:
    return {tool: min(runs.cpu) for tool, runs in case.runs.items() if tool in TOOLS[:5]}


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "?")
    version = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    return (
        f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, git {version}, load {os.getloadavg()[0]:.1f} at the start. "
        "Command: `make bench`, with REPO=DIR for real history."
    )


def all_cases(scratch: Path, args: argparse.Namespace) -> Iterable[tuple[str, Case]]:
    """Each case, and the chart that it is a point of."""
    if args.profile:
        yield "profile", profile_case(scratch / "profile", args)
    for size in args.sizes:
        series = find_series(scratch / f"s{size}", args.repo, size)
        yield "patches", series_case(scratch / f"w{size}", series, args.rounds)
    for size in args.made:
        yield "patches", series_case(scratch / f"m{size}", made_series(scratch / f"made{size}", size), args.rounds)
    for files in args.trees:
        yield "files", series_case(scratch / f"t{files}", made_series(scratch / f"tree{files}", 35, files), args.rounds)


def table(cases: list[Case], rounds: int) -> list[str]:
    head = ["from", "patches", "files", "`git am`", "loop of `git apply`", *OURS, "peak memory"]
    out = [
        f"CPU seconds of `git am` (wall in brackets); all else in that: **CPU** (wall). Fastest of {rounds} rounds.",
        "",
        f"| {' | '.join(head)} |",
        "|" + "---|" * len(head),
    ]
    return [*out, *map(row, cases)]


def row(case: Case) -> str:
    am = case.runs["git am"]
    cells = [case.name, f"{case.patches:,}", f"{case.files:,}", f"{min(am.cpu):.3f} ({min(am.wall):.2f})"]
    for tool in TOOLS[1:]:
        cells.append(f"**{case.ratio(tool):.2f}** ({min(case.runs[tool].wall) / min(am.wall):.2f})")
    return f"| {' | '.join(cells)} | {case.runs['computed'].peak:.0f} MiB |"


def measured(runs: dict[str, Runs], tool: str, work: Callable[[Clock], None]) -> None:
    clock = Clock()
    work(clock)
    found = runs.setdefault(tool, Runs())
    found.cpu.append(clock.cpu)
    found.wall.append(clock.wall)
    found.peak = max(found.peak, clock.peak)


@dataclass
class Checkout:
    """A tree for git's own tools, and the patches that are for it."""

    folder: Path
    base: str
    files: list[Path]

    def reset(self) -> None:
        git("checkout", "-q", "-f", "--detach", self.base, repo=None, cwd=self.folder)
        git("reset", "-q", "--hard", self.base, repo=None, cwd=self.folder)
        git("clean", "-qfdx", repo=None, cwd=self.folder)

    def am(self, clock: Clock) -> None:
        """What patchctl does, with git's own means."""
        command = ["git", "am", "-q", "--keep-cr", "--committer-date-is-author-date"]
        clock.run([*command, *map(str, self.files)], self.folder)

    def loop(self, clock: Clock) -> None:
        """What the shell loop of a patch folder does, less its shell: one `git apply` a patch, no commits."""
        for file in self.files:
            clock.run(["git", "apply", "--whitespace=nowarn", str(file)], self.folder)


def on_each(work: Callable[[Checkout, Clock], None], checkouts: list[Checkout], clock: Clock) -> None:
    for one in checkouts:
        work(one, clock)


def compare(ours: Workspace, checkouts: list[Checkout], rounds: int, check: Callable[[], None]) -> dict[str, Runs]:
    """All tools in turn, `rounds` times."""
    runs: dict[str, Runs] = {}
    for _ in range(rounds):
        for tool, work in (("git am", Checkout.am), ("git apply", Checkout.loop)):
            for one in checkouts:
                one.reset()
            measured(runs, tool, partial(on_each, work, checkouts))
        ours.forget()
        measured(runs, "computed", ours.apply)
        check()
        measured(runs, "nothing to do", ours.apply)
        measured(runs, "status", lambda clock: ours.run(clock, "status", "--workspace", "ws"))
        measured(runs, "verify -w", lambda clock: ours.run(clock, "verify", "--workspace", "ws"))
        measured(runs, "revert", ours.revert)
        measured(runs, "remembered", ours.apply)
        check()
        ours.revert(Clock())
    return runs


class Workspace:
    """A workspace of a profile, with a cache of its own that has the sources."""

    def __init__(
        self, folder: Path, root: Path, profile: str, mirrors: Iterable[str] = (), release: str | None = None
    ) -> None:
        self.folder, self.root = folder, root
        self.cache = folder / "cache"
        folder.mkdir(parents=True, exist_ok=True)
        self._named = ["--profile", profile, *(["--release", release] if release else []), "--skip-unavailable"]
        self.run(Clock(), "fetch", *self._named, *(word for mirror in mirrors for word in ("--mirror", mirror)))
        self.apply(Clock())
        self.state = json.loads((folder / "ws" / ".patchctl" / "state.json").read_text())
        self.revert(Clock())

    def run(self, clock: Clock, *args: str) -> None:
        kept = {k: v for k, v in os.environ.items() if k.startswith(("PIP_", "SSL_", "http", "HTTP"))}
        env = {**kept, **GIT_ENV, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "patchctl", "--root", str(self.root), "--cache", str(self.cache)]
        clock.run([*command, *args], self.folder, env)

    def apply(self, clock: Clock) -> None:
        self.apply_to("ws", clock)

    def apply_to(self, workspace: str, clock: Clock) -> None:
        self.run(clock, "apply", *self._named, "--workspace", workspace, "--offline")

    def revert(self, clock: Clock) -> None:
        self.run(clock, "revert", "--workspace", "ws")

    def forget(self) -> None:
        """No remembered result, at the base: the stack function is evaluated, the source is in the cache."""
        shutil.rmtree(self.cache / "stacks", ignore_errors=True)
        for pack in (self.folder / "ws").glob("*/.git/objects/pack/pack-*"):
            if not list(self.cache.glob(f"*/*/*/objects/pack/{pack.name}")):
                pack.unlink()

    def trees(self) -> dict[str, str]:
        """The tree of every HEAD."""
        return {name: self._head(name) for name in self.state["trees"]}

    def _head(self, name: str) -> str:
        return git("rev-parse", "HEAD^{tree}", repo=None, cwd=self.folder / "ws" / name).strip()


def series_case(work: Path, series: Series, rounds: int) -> Case:
    """A distribution with one stack of the series."""
    root = work / "root"
    manifests, target = root / "manifests", root / "patches" / "history" / "v1"
    for sub in (manifests / "stacks" / "history", manifests / "profiles", target):
        sub.mkdir(parents=True)
    for file in series.files:
        (target / feature_of(file.name)).mkdir()
        shutil.copy(file, target / place_of(file.name))
    listed = "".join(f"- {f.name}\n" for f in series.files)  # no more bytes than needed: a manifest has at most 256 KiB
    url = series.repo.resolve().as_uri()
    head = "schema: 1\nupstreams:\n  history:\n    summary: A history.\n    license: Apache-2.0\n"
    (manifests / "upstreams.yaml").write_text(f"{head}    git: [{url}]\n")
    stack = f'schema: 1\nupstream: history\nname: v1\npin:\n  commit: "{series.base}"\npatches:\n{listed}'
    (manifests / "stacks" / "history" / "v1.yaml").write_text(stack)
    profile = "schema: 1\nname: bench\nsummary: One stack.\nstacks:\n  history: v1\n"
    (manifests / "profiles" / "bench.yaml").write_text(profile)
    ours = Workspace(work / "ours", root, "bench")
    checkout = Checkout(work / "checkout", series.base, series.files)
    git("clone", "-q", "--shared", "--no-checkout", str(series.repo), str(checkout.folder), repo=None)

    def check() -> None:
        assert ours.trees() == {"history": series.tip_tree}

    return Case(series.source, len(series.files), series.tracked, compare(ours, [checkout], rounds, check))


def profile_case(work: Path, args: argparse.Namespace) -> Case:
    """The distribution's own profile: all of its trees in one apply, and a `git am` for each tree."""
    ours = Workspace(work, ROOT, args.profile, args.mirror, args.release)
    expected = {name: tree["tip_tree"] for name, tree in ours.state["trees"].items()}
    checkouts, files = [], 0
    for name, tree in ours.state["trees"].items():
        folder = work / "checkouts" / name
        git("init", "-q", str(folder), repo=None)
        git("fetch", "-q", str(ours.folder / "ws" / name), tree["base_commit"], repo=None, cwd=folder)
        # As patches of git, since a carried file is in none of ours, and a later patch may edit it.
        series = ["format-patch", "-q", "--full-index", "--binary", "-o", str(work / "series" / name)]
        git(*series, f"{tree['base_commit']}..{tree['tip_commit']}", repo=None, cwd=ours.folder / "ws" / name)
        patches = sorted((work / "series" / name).iterdir())
        checkouts.append(Checkout(folder, tree["base_commit"], patches))
        files += len(git("ls-tree", "-r", "--name-only", tree["base_commit"], repo=None, cwd=folder).splitlines())

    def check() -> None:
        assert ours.trees() == expected

    count = sum(len(c.files) for c in checkouts)
    name = f"{args.profile}, {len(checkouts)} trees of release {ours.state['release']}"
    return Case(name, count, files, compare(ours, checkouts, args.rounds, check))


if __name__ == "__main__":
    sys.exit(main())
