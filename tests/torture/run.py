"""`make torture`: stops every scenario at every point, or at a share of them, and counts.

    python tests/torture/run.py [--only apply,switch] [--kinds all,EIO] [--share 8] [--resume] [--out build/torture]

What each point came to goes into the folder --out, a line a point; --table writes the counts of a whole run into a page. Exit
code 1 when anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parents[1])]

import scenarios  # noqa: E402
from box import load_everything  # noqa: E402
from scenario import Lacking, Scenario  # noqa: E402
from seccomp import why_not  # noqa: E402
from torture import KINDS, Torture  # noqa: E402

_BEGIN, _END = "<!-- counts:begin -->", "<!-- counts:end -->"


def main() -> int:
    options = _options()
    if (reason := why_not()) is not None:
        print(f"torture: skipped: {reason}")
        return 0
    if options.part is not None:
        return _part(options)
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.resume:
        for file in options.out.glob("*.jsonl"):
            file.unlink()
    line = [sys.executable, str(HERE / "run.py"), *sys.argv[1:]]
    parts = [subprocess.Popen([*line, "--part", str(n)]) for n in range(options.jobs)]
    code = max(part.wait() for part in parts)
    if options.table is not None:
        _write_table(options.table, options.out)
    return code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default=",".join(s.name for s in scenarios.ALL), metavar="NAMES")
    parser.add_argument("--kinds", default=",".join(k.name for k in KINDS))
    parser.add_argument("--share", type=int, metavar="N", help="of each kind, N points that lie evenly over the run")
    parser.add_argument("--out", type=Path, default=Path("build/torture"))
    parser.add_argument("--resume", action="store_true", help="leave out the points that were right already")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no more points after that many")
    parser.add_argument("--table", type=Path, metavar="PAGE")
    parser.add_argument("--part", type=int, help=argparse.SUPPRESS)
    return parser.parse_args()


def _part(options: argparse.Namespace) -> int:
    """One of --jobs processes: its own folder, and every n-th point."""
    began = time.monotonic()
    load_everything()
    place = _place() / f"torture-of-patchctl-{os.getpid()}"
    wrong = 0
    try:
        for scenario in (s for s in scenarios.ALL if s.name in options.only.split(",")):
            if time.monotonic() - began < options.seconds:
                wrong += _scenario(scenario, place, options, began)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 1 if wrong else 0


def _scenario(scenario: Scenario, place: Path, options: argparse.Namespace, began: float) -> int:
    done = {point for point, verdict in _verdicts(options.out, scenario.name).items() if not verdict["wrong"]}
    try:
        torture = Torture(scenario, place)
    except Lacking as reason:
        print(f"{scenario.name}: skipped: {reason}", flush=True)
        return 0
    chosen = [
        (kind, number)
        for kind in KINDS
        if kind.name in options.kinds.split(",")
        for number in _spread(torture.points[kind.name], options.share, scenario.weight)
    ]
    # By the number, and not by the place in the list: how often a child is started or writes differs a little between two countings.
    mine = [p for p in chosen if p[1] % options.jobs == options.part and (p[0].name, p[1]) not in done]
    start, wrong, tried = time.monotonic(), 0, 0
    with (options.out / f"{scenario.name}.{options.part}.jsonl").open("a", encoding="utf-8") as out:
        out.write(json.dumps({"calls": torture.changes, "points": torture.points}) + "\n")
        for kind, number in mine:
            if time.monotonic() - began > options.seconds:
                break
            verdict = torture.stop_at(kind, number)
            out.write(json.dumps(asdict(verdict)) + "\n")
            out.flush()
            tried += 1
            if verdict.wrong:
                wrong += 1
                print(f"{scenario.name}, {kind.name} {number}, {verdict.call}:", *verdict.wrong, sep="\n  ", flush=True)
    seconds = time.monotonic() - start
    print(f"{scenario.name}: {tried} of {len(mine)} points, {wrong} wrong, {seconds:.0f} s", flush=True)
    return wrong


def _spread(count: int, share: int | None, weight: int) -> list[int]:
    """The numbers of the points, from 1: all, or `share` of them, fewer of those that take long.

    Each from the middle of its part: the very last call is not reached where a run makes one call less than the run that was counted.
    """
    share = count if share is None else min(count, -(-share // weight))
    return [1 + int((i + 0.5) * count / share) for i in range(share)]


def _read(folder: Path, name: str) -> Iterable[dict[str, Any]]:
    for file in sorted(folder.glob(f"{name}.*.jsonl")):
        for line in file.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def _verdicts(folder: Path, name: str) -> dict[tuple[str, int], dict[str, Any]]:
    """The last verdict on each point."""
    return {(r["kind"], r["number"]): r for r in _read(folder, name) if "kind" in r}


def _write_table(page: Path, folder: Path) -> None:
    """The counts of the runs that were stopped everywhere, between the page's marks, and which were not."""
    heads = ["run", "calls", *(k.name for k in KINDS), "wrong"]
    lines = ["| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1)]
    total: Counter[str] = Counter()
    lacking = []
    for scenario in scenarios.ALL:
        begun = [r for r in _read(folder, scenario.name) if "points" in r]
        verdicts = _verdicts(folder, scenario.name)
        counts = Counter(kind for kind, _ in verdicts)
        if not begun or any(counts[k.name] < begun[0]["points"][k.name] for k in KINDS):
            lacking.append(scenario.title)
            continue
        counts["calls"] = begun[0]["calls"]
        counts["wrong"] = sum(bool(v["wrong"]) for v in verdicts.values())
        total += counts
        lines.append(f"| {scenario.title} | " + " | ".join(str(counts[h]) for h in heads[1:]) + " |")
    lines.append("| together | " + " | ".join(str(total[h]) for h in heads[1:]) + " |")
    if lacking:
        lines += ["", f"Not stopped at every call yet, at a share of them only: {'; '.join(lacking)}."]
    before, _, rest = page.read_text(encoding="utf-8").partition(_BEGIN)
    after = rest.partition(_END)[2]
    page.write_text(before + "\n".join([_BEGIN, *lines, _END]) + after, encoding="utf-8")


def _place() -> Path:
    """Memory where there is some: a disk that has to sync is ten times as slow."""
    memory = Path("/dev/shm")
    return memory if os.access(memory, os.W_OK) else Path(os.environ.get("TMPDIR", "/tmp"))


if __name__ == "__main__":
    sys.exit(main())
