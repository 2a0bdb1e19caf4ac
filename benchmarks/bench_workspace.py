#!/usr/bin/env python3
"""What a workspace costs as a user has it, beside git on the same trees, all in one run: made new, asked and applied again as it was
left by `apply`, and the same of a copy of it, as an image's layer or a backup has.

A bench that runs git in the trees between two commands measures an index that git has refreshed, which a user's is not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from apply_series import git
from bench_apply import ROOT, Clock, Runs, Workspace, machine, measured
from markers import write_between_markers

TITLES = {
    "clone": "`git clone --shared` of each tree",
    "fresh": "`apply`, a new workspace of known stacks",
    "status": "`status`, as applied",
    "again": "`apply` with nothing to do, as applied",
    "copied status": "`status` of a copied workspace",
    "copied again": "`apply` with nothing to do there, the first",
    "copied then": "`status` after it",
    "git status": "`git status` in each tree",
    "verify": "`verify -w`",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--profile", default="qwen3-235b")
    parser.add_argument("--release", metavar="NAME", help="the profile's release, where it is not the newest")
    parser.add_argument("--mirror", action="append", default=[], metavar="NAME=URL")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="a markdown file whose part between the markers is replaced")
    args = parser.parse_args()
    head = machine()
    with tempfile.TemporaryDirectory(prefix="patchctl-bench-") as scratch:
        ours = Workspace(Path(scratch), ROOT, args.profile, args.mirror, args.release)
        ours.apply(Clock())
        ours.run(Clock(), "status", "--workspace", "ws")
        runs: dict[str, Runs] = {}
        for number in range(args.rounds):
            one_round(ours, runs, ours.folder / str(number))
        folders = [ours.folder / "ws" / name for name in ours.state["trees"]]
        files = sum(git("ls-files", repo=None, cwd=tree).count("\n") for tree in folders)
    text = "\n".join([head, "", *table(runs, args, ours, files)]) + "\n"
    print(text)
    if args.out:
        write_between_markers(args.out, "workspace", text)
    return 0


def one_round(ours: Workspace, runs: dict[str, Runs], place: Path) -> None:
    """Everything once, each on what the one before has left. Nothing is deleted in between: for a while after, ext4 takes a
    millisecond to make a file."""
    place.mkdir()
    fresh, copy = str(place / "fresh"), str(place / "copy")
    measured(runs, "clone", lambda clock: clones(ours, place / "clones", clock))
    measured(runs, "fresh", lambda clock: ours.apply_to(fresh, clock))
    measured(runs, "status", asking(ours, "status", fresh))
    measured(runs, "again", lambda clock: ours.apply_to(fresh, clock))
    subprocess.run(["cp", "-a", fresh, copy], check=True)
    measured(runs, "copied status", asking(ours, "status", copy))
    measured(runs, "copied again", lambda clock: ours.apply_to(copy, clock))
    measured(runs, "copied then", asking(ours, "status", copy))
    measured(runs, "verify", asking(ours, "verify", copy))
    measured(runs, "git status", lambda clock: git_status(ours, place / "copy", clock))


def asking(ours: Workspace, verb: str, workspace: str) -> Callable[[Clock], None]:
    return lambda clock: ours.run(clock, verb, "--workspace", workspace)


def clones(ours: Workspace, place: Path, clock: Clock) -> None:
    """The patched trees, from repositories that lie beside: git writes the same files."""
    for name in ours.state["trees"]:
        clock.run(["git", "clone", "-q", "--shared", str(ours.folder / "ws" / name), str(place / name)], ours.folder)


def git_status(ours: Workspace, workspace: Path, clock: Clock) -> None:
    for name in ours.state["trees"]:
        clock.run(["git", "status"], workspace / name)


def table(runs: dict[str, Runs], args: argparse.Namespace, ours: Workspace, files: int) -> list[str]:
    clone = min(runs["clone"].cpu)
    title = f"{args.profile} on release {ours.state['release']}, {len(ours.state['trees'])} trees, {files:,} files"
    out = [
        f"{title}. Fastest of {args.rounds} rounds.",
        "",
        "| what | CPU s | of `git clone --shared` | wall s | peak MiB |",
    ]
    out.append("|---|---|---|---|---|")
    for name, shown in TITLES.items():
        cpu, run = min(runs[name].cpu), runs[name]
        out.append(f"| {shown} | {cpu:.2f} | {cpu / clone:.2f} | {min(run.wall):.2f} | {run.peak:.0f} |")
    return out


if __name__ == "__main__":
    sys.exit(main())
