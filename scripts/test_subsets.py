#!/usr/bin/env python3
"""The behaviour tests on what a machine has that lacks some of the upstreams' sources: of every subset of those in the cache.

A subset whose trees are the same bytes in a larger one that was tested is not tested again: its tests ran there. Patches that require
one of an upstream that lacks are left out, and so make trees of their own. Sources are taken from the cache alone.

example:
  scripts/test_subsets.py --release NAME --plan
  scripts/test_subsets.py --without megatron-lm -- --share 1/8 patches tests/behaviour
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from patchctl.source.cache import cache_root

REPO = Path(__file__).resolve().parents[1]
UPSTREAMS = ("verl", "vllm", "vllm-ascend", "megatron-lm", "mindspeed")
TESTS = ("patches", "tests/behaviour")
PATCHCTL = [sys.executable, "-m", "patchctl", "--root", str(REPO)]
NONE = 3  # patchctl's exit code where no source at all can be had


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", help="the release [default: the one that apply takes]")
    parser.add_argument("--profile", default="qwen3-235b", help="[default: %(default)s]")
    parser.add_argument(
        "--without", action="append", choices=UPSTREAMS, metavar="UPSTREAM", help="this subset alone (repeatable)"
    )
    parser.add_argument("--plan", action="store_true", help="say which subsets would be tested, and test none")
    parser.add_argument("--out", type=Path, default=REPO / "build" / "subsets", help="[default: %(default)s]")
    parser.add_argument("pytest", nargs="*", metavar="-- ARGUMENT", help=f"for pytest [default: {' '.join(TESTS)}]")
    args = parser.parse_args()
    profile = ["--profile", args.profile, *(["--release", args.release] if args.release else [])]
    tested: list[dict[str, str]] = []
    failed: list[str] = []
    same = 0
    for upstreams in _asked_for(args.without):
        name = "+".join(upstreams) or "none"
        trees = plan(upstreams, profile, args.out / "cache")
        if any(trees.items() <= larger.items() for larger in tested):
            same += 1
            continue
        tested.append(trees)
        print(f"{name}: {'to be tested' if args.plan else 'tested'}; has {', '.join(trees) or 'no tree'}", flush=True)
        if not args.plan and not test(upstreams, profile, args.out, args.pytest or TESTS):
            failed.append(name)
    print(f"{len(tested)} {'to be ' if args.plan else ''}tested, {same} whose trees are all in one of them")
    if failed:
        print(f"FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def _asked_for(without: Collection[str] | None) -> Iterator[tuple[str, ...]]:
    """The subset, or all of them, larger ones first."""
    if without:
        yield tuple(name for name in UPSTREAMS if name not in without)
        return
    for size in range(len(UPSTREAMS), -1, -1):
        yield from itertools.combinations(UPSTREAMS, size)


def plan(upstreams: Collection[str], profile: Sequence[str], cache: Path) -> dict[str, str]:
    """The tree that each upstream would get where these sources alone can be had."""
    done = _apply(upstreams, [*profile, "--dry-run", "--json", "--workspace", str(cache / "nowhere")], cache)
    trees = json.loads(done.stdout).get("trees", {})
    return {name: tree["tip_tree"] for name, tree in trees.items()}


def test(upstreams: Collection[str], profile: Sequence[str], out: Path, words: Sequence[str]) -> bool:
    """Whether pytest ends well on the trees of these sources."""
    workspace = out / ("+".join(upstreams) or "none")
    if workspace.exists():
        shutil.rmtree(workspace)
    workspace.mkdir(parents=True)
    _apply(upstreams, [*profile, "--workspace", str(workspace)], out / "cache")
    line = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile", f"--trees={workspace}", *words]
    return subprocess.run(line, cwd=REPO, check=False).returncode == 0


def _apply(upstreams: Collection[str], words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Apply from a cache that holds the sources of these upstreams alone. Raises CalledProcessError where it fails otherwise
    than for the lack of all."""
    cache = folder / ("+".join(upstreams) or "none")
    for form, name in itertools.product(("git", "sdist"), UPSTREAMS):
        link, kept = cache / form / name, cache_root() / form / name
        if name in upstreams and kept.is_dir() and not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(kept)
    cache.mkdir(parents=True, exist_ok=True)
    line = [*PATCHCTL, "--cache", str(cache), "apply", "--offline", "--skip-unavailable", *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    if done.returncode not in (0, NONE):
        print(done.stdout, done.stderr, sep="\n", file=sys.stderr)
        done.check_returncode()
    return done


if __name__ == "__main__":
    sys.exit(main())
