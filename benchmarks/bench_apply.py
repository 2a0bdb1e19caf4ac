#!/usr/bin/env python3
"""What `patchctl apply` costs, against `git am` and a loop of `git apply` over the same patches in the same run.

With --repo, the patches are real: a run of commits of that repository, newest first, whose every patch a stack may hold
(no links, no submodules). Without it they come from a seeded generator, and the table says so. Every tool begins with a
checkout of the base and ends with the patched files on disk; patchctl and `git am` make a commit a patch as well.
Rounds of all tools alternate, and the table holds the fastest round of each, since other work on a machine only adds.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from markers import write_between_markers  # noqa: E402

from patchctl.errors import BadPatch  # noqa: E402
from patchctl.patch.parse import parse_patch  # noqa: E402
from patchctl.patch.policy import check_patch  # noqa: E402

SIZES = (35, 200, 1000)
GIT_ENV = {
    "PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_COMMITTER_NAME": "patchctl", "GIT_COMMITTER_EMAIL": "patchctl@localhost", "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
    "GIT_AUTHOR_DATE": "1700000000 +0000", "GIT_COMMITTER_DATE": "1700000000 +0000",
}  # fmt: skip


@dataclass
class Series:
    """Patches on a base: where they come from, how many, and what they touch."""

    source: str
    repo: Path
    base: str
    tip_tree: str
    files: list[Path]
    tracked: int


@dataclass
class Run:
    """Seconds of every round, and the peak memory of the last one in MiB."""

    seconds: list[float] = field(default_factory=list)
    peak: float = 0.0

    @property
    def best(self) -> float:
        return min(self.seconds)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repo", type=Path, help="a git repository whose history gives the patches")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    args = parser.parse_args()
    lines = [machine(), ""]
    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        lines += apply_table(Path(scratch), args.repo, args.sizes, args.rounds)
        lines += ["", *startup_table(Path(scratch))]
    text = "\n".join(lines) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "bench", text)
    return 0


def machine() -> str:
    model = next(
        (x.split(":")[1].strip() for x in Path("/proc/cpuinfo").read_text().splitlines() if x.startswith("model name")),
        "?",
    )
    git = subprocess.run(["git", "--version"], capture_output=True, text=True, check=True).stdout.split()[2]
    load = os.getloadavg()[0]
    return (
        f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, git {git}, load {load:.1f} at the start. "
        f"Command: `make bench{' REPO=DIR' if '--repo' in sys.argv else ''}`."
    )


def apply_table(scratch: Path, repo: Path | None, sizes: list[int], rounds: int) -> list[str]:
    out = [
        "| patches | from | files in the tree | `git am` | loop of `git apply` | patchctl apply | ratio to `git am` "
        "| remembered result | peak memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size in sizes:
        series = find_series(scratch / f"s{size}", repo, size)
        runs = compare(scratch / f"w{size}", series, rounds)
        am, loop, ours, warm = (runs[k] for k in ("am", "loop", "patchctl", "remembered"))
        out.append(
            f"| {size} | {series.source} | {series.tracked:,} | {am.best:.2f} s | {loop.best:.2f} s ({am.best / loop.best:.1f}×) | {ours.best:.2f} s "
            f"| **{ours.best / am.best:.2f}** | {warm.best:.2f} s | {ours.peak:.0f} MiB |"
        )
        print(out[-1], file=sys.stderr)
    return [f"Fastest of {rounds} rounds. The aim is half of `git am`'s time, a ratio of 0.5, at every size.", "", *out]


def find_series(folder: Path, repo: Path | None, size: int) -> Series:
    """Real history where there is a long enough run of it, else a synthetic one."""
    found = real_series(folder, repo, size) if repo else None
    return found or made_series(folder.with_name(f"{folder.name}-made"), size)


def real_series(folder: Path, repo: Path, size: int) -> Series | None:
    """The newest run of `size` commits that one stack can hold (no links, no submodules, no merges), or None."""
    log = git("log", "--first-parent", "--no-merges", "--format=%H %P", "-n", str(size * 3), "HEAD", repo=repo).split(
        "\n"
    )
    commits = [line.split() for line in log if line]
    folder.mkdir(parents=True)
    good: list[tuple[str, bytes]] = []
    for position, (commit, *parents) in enumerate(commits):
        if good and commits[position - 1][1:] != [commit]:
            good = []
        data = git_bytes(
            "format-patch",
            "--stdout",
            "--full-index",
            "--binary",
            "--no-renames",
            "--no-signature",
            "-1",
            commit,
            repo=repo,
        )
        good = [*good, (commit, data)] if len(parents) == 1 and usable(data) else []
        if len(good) == size:
            return write_series(folder, repo, parents[0], good[0][0], [d for _, d in reversed(good)])
    return None


def usable(data: bytes) -> bool:
    try:
        check_patch(parse_patch(data, "patch"))
    except BadPatch:
        return False
    return True


def write_series(folder: Path, repo: Path, base: str, tip: str, patches: list[bytes]) -> Series:
    files = []
    for number, data in enumerate(patches, 1):
        file = folder / f"{number:04d}-bugfix-p{number}.patch"
        file.write_bytes(data)
        files.append(file)
    name = next((p for p in reversed(repo.resolve().parts) if p not in ("repo", ".git")), "history")
    tracked = len(git("ls-tree", "-r", "--name-only", base, repo=repo).split("\n"))
    tree = git("rev-parse", f"{tip}^{{tree}}", repo=repo).strip()
    return Series(f"{name}'s history up to {tip[:12]}", repo, base, tree, files, tracked)


def made_series(folder: Path, size: int, seed: int = 20261121) -> Series:
    """A seeded history: 2,000 files of about 200 lines; every commit edits two files, some add one."""
    rng = random.Random(seed)
    repo = folder / "repo"
    repo.mkdir(parents=True)
    git("init", "-q", ".", repo=None, cwd=repo)
    names = [f"pkg{i % 40}/mod{i}.py" for i in range(2000)]
    for name in names:
        (repo / name).parent.mkdir(exist_ok=True)
        (repo / name).write_text(
            "".join(f"value_{rng.randrange(10**6)} = {rng.randrange(10**6)}\n" for _ in range(200))
        )
    git("add", "-A", repo=None, cwd=repo)
    git("commit", "-qm", "base", repo=None, cwd=repo)
    base = git("rev-parse", "HEAD", repo=None, cwd=repo).strip()
    for number in range(size):
        for name in rng.sample(names, 2):
            lines = (repo / name).read_text().splitlines(keepends=True)
            at = rng.randrange(len(lines))
            lines[at : at + rng.randrange(3)] = [f"edited_{number}_{j} = {j}\n" for j in range(rng.randrange(1, 6))]
            (repo / name).write_text("".join(lines))
        if number % 10 == 0:
            (repo / f"pkg0/new{number}.py").write_text("new = True\n" * 50)
        git("add", "-A", repo=None, cwd=repo)
        git("commit", "-qm", f"change {number}", repo=None, cwd=repo)
    made = [
        git_bytes(
            "format-patch", "--stdout", "--full-index", "--binary", "--no-signature", "-1", commit, repo=repo / ".git"
        )
        for commit in git("rev-list", "--reverse", f"{base}..HEAD", repo=repo / ".git").split()
    ]
    (folder / "patches").mkdir()
    series = write_series(folder / "patches", repo / ".git", base, "HEAD", made)
    series.source = f"synthetic history, seed {seed}"
    return series


def compare(work: Path, series: Series, rounds: int) -> dict[str, Run]:
    """All tools in turn, `rounds` times; every result is checked against the tree of the real history."""
    work.mkdir(parents=True)
    ours = Workspace(work / "ours", series)
    checkout = work / "checkout"
    git("clone", "-q", "--shared", "--no-checkout", str(series.repo), str(checkout), repo=None)
    runs = {name: Run() for name in ("am", "loop", "patchctl", "remembered")}
    for _ in range(rounds):
        timed(runs["am"], lambda: am(checkout, series), lambda: reset(checkout, series))
        assert git("rev-parse", "HEAD^{tree}", repo=None, cwd=checkout).strip() == series.tip_tree
        timed(runs["loop"], lambda: loop(checkout, series), lambda: reset(checkout, series))
        timed(runs["patchctl"], ours.apply, ours.forget)
        assert ours.tip_tree() == series.tip_tree
        timed(runs["remembered"], ours.apply, ours.revert)
        ours.revert()
    return runs


def timed(run: Run, work: Callable[[], float], before: Callable[[], None]) -> None:
    before()
    began = time.perf_counter()
    peak = work()
    run.seconds.append(time.perf_counter() - began)
    run.peak = max(run.peak, peak)


def reset(checkout: Path, series: Series) -> None:
    git("checkout", "-q", "-f", "--detach", series.base, repo=None, cwd=checkout)
    git("reset", "-q", "--hard", series.base, repo=None, cwd=checkout)
    git("clean", "-qfdx", repo=None, cwd=checkout)


def am(checkout: Path, series: Series) -> float:
    return child(["git", "am", "-q", "--keep-cr", "--committer-date-is-author-date", *map(str, series.files)], checkout)


def loop(checkout: Path, series: Series) -> float:
    """What the shell loop of a patch folder does, less its shell: one `git apply` a patch, no commits."""
    return max(child(["git", "apply", "--whitespace=nowarn", str(file)], checkout) for file in series.files)


def child(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> float:
    """Run to the end; returns its peak memory in MiB (the largest of it and its own children)."""
    process = subprocess.Popen(command, cwd=cwd, env=env or GIT_ENV, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    errors = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}: {errors.decode()[-2000:]}")
    return usage.ru_maxrss / 1024


class Workspace:
    """A distribution with one stack, and a workspace of it."""

    def __init__(self, folder: Path, series: Series) -> None:
        self.folder = folder
        self.cache = folder / "cache"
        manifests = folder / "manifests"
        target = folder / "patches" / "history" / "v1"
        for sub in (manifests / "stacks" / "history", manifests / "profiles", target):
            sub.mkdir(parents=True)
        for file in series.files:
            shutil.copy(file, target)
        listed = "".join(f"  - {f.name}\n" for f in series.files)
        url = series.repo.resolve().as_uri()
        head = "schema: 1\nupstreams:\n  history:\n    summary: A history.\n    license: Apache-2.0\n"
        (manifests / "upstreams.yaml").write_text(f"{head}    git: [{url}]\n")
        stack = f'schema: 1\nupstream: history\nname: v1\npin:\n  commit: "{series.base}"\npatches:\n{listed}'
        (manifests / "stacks" / "history" / "v1.yaml").write_text(stack)
        (manifests / "profiles" / "bench.yaml").write_text(
            "schema: 1\nname: bench\nsummary: One stack.\nstacks:\n  history: v1\n"
        )
        self.apply()
        self.revert()

    def run(self, *args: str) -> float:
        env = {**GIT_ENV, "HOME": str(self.folder), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "patchctl", "--root", str(self.folder), "--cache", str(self.cache), *args]
        return child(command, self.folder, env)

    def apply(self) -> float:
        return self.run("apply", "--profile", "bench", "--workspace", "ws")

    def revert(self) -> None:
        self.run("revert", "--workspace", "ws")

    def forget(self) -> None:
        """Back to the base, and no remembered result: the stack function is evaluated, the source is in the cache."""
        self.revert()
        shutil.rmtree(self.cache / "stacks", ignore_errors=True)
        for pack in (self.folder / "ws" / "history" / ".git" / "objects" / "pack").glob("pack-*"):
            if not list((self.cache / "git").rglob(pack.name)):
                pack.unlink()

    def tip_tree(self) -> str:
        return git("rev-parse", "HEAD^{tree}", repo=None, cwd=self.folder / "ws" / "history").strip()


def startup_table(scratch: Path) -> list[str]:
    """`--help` and `status`, the fastest of 20 starts each, and what Python itself costs."""
    made = Workspace(scratch / "startup", made_series(scratch / "startup-series", 5))
    made.apply()
    rows = ["| start-up | seconds |", "|---|---|"]
    python = best(lambda: child([sys.executable, "-c", "pass"], scratch))
    rows.append(f"| `python -c pass` | {python:.3f} |")
    rows.append(f"| `patchctl --help` | {best(lambda: made.run('--help')):.3f} |")
    rows.append(f"| `patchctl status` (2,000 files) | {best(lambda: made.run('status', '--workspace', 'ws')):.3f} |")
    return rows


def best(work: Callable[[], object], rounds: int = 20) -> float:
    seconds = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def git(*args: str, repo: Path | None, cwd: Path | None = None) -> str:
    return git_bytes(*args, repo=repo, cwd=cwd).decode()


def git_bytes(*args: str, repo: Path | None, cwd: Path | None = None) -> bytes:
    where = [f"--git-dir={repo}"] if repo else []
    return subprocess.run(["git", *where, *args], cwd=cwd, env=GIT_ENV, capture_output=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
