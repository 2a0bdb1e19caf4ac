#!/usr/bin/env python3
"""What `chunked_moe` saves and costs in the experts' part of a layer: bytes counted and seconds taken on a CPU.

A layer of vllm-ascend with experts spread over ranks (gloo), its operators computed by the stand-in torch_npu
(probe_chunked_memory.py of chunked_moe, which says what is counted). Imbalance is the rows that rank 0's
experts compute, in parts of the mean over ranks. Bytes do not depend on the device but for what its operators need
inside; seconds do: launches and collectives of a small chunk are a larger part of an NPU's time than of a CPU's.

Usage: bench_chunked_moe.py --trees DIR [--out docs/benchmarks.md]     (PATCHCTL_TORCH_PYTHON: a python with torch)
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from markers import write_between_markers

REPO = Path(__file__).resolve().parents[1]
PROBE = min(REPO.glob("patches/vllm-ascend/*/chunked_moe/tests/probe_chunked_memory.py")).relative_to(REPO)
RANKS = 4
SETTINGS: dict[str, Any] = {
    "tokens": 1024,
    "hidden": 512,
    "width": 192,
    "experts": 64,
    "k": 8,
    "picks": [2, 4, 6, 8],
    "chunks": [0, 512, 256, 128],
    "rounds": 3,
}
STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]
MIB = 2**20


def measured(trees: Path) -> list[list[dict[str, Any]]]:
    """Of each rank what the probe prints: a row for each exchange, imbalance and chunk size."""
    sys.path[:0] = [str(REPO / "tests/behaviour"), str(REPO / "tests")]
    from harness import Upstream
    from models import make_tiny_models
    from trees import given_trees

    with tempfile.TemporaryDirectory() as scratch:
        upstream = Upstream(given_trees(trees), Path(scratch))
        model = make_tiny_models(upstream, Path(scratch) / "models").qwen3_moe
        run = {"need": ["vllm-ascend", "vllm"], "standins": STANDINS, "env": {"VLLM_ASCEND_ENABLE_NZ": "0"}}
        ranks: list[list[dict[str, Any]]] = upstream.run(
            str(PROBE), model, json.dumps(SETTINGS), procs=RANKS, timeout=900, **run
        )
        return ranks


def rows(ranks: list[list[dict[str, Any]]]) -> list[str]:
    lines = []
    for cases in zip(*ranks, strict=True):
        busiest = cases[0]
        whole = next(one for one in ranks[0] if (one["kind"], one["picks"]) == (busiest["kind"], busiest["picks"]))
        if max(case["difference"] for case in cases) > 1e-6:
            raise SystemExit(f"{busiest}: not what the whole gives")
        imbalance = busiest["rows"] / (sum(case["rows"] for case in cases) / len(cases))
        cells = [
            busiest["kind"].lower(),
            f"{imbalance:.1f}",
            f"{busiest['rows']:,}",
            busiest["size"] or "all",
            f"{busiest['peak'] / MIB:.1f} MiB",
            f"**{busiest['peak'] / whole['peak']:.2f}**",
            f"{busiest['seconds']:.3f} s",
            f"{busiest['seconds'] / whole['seconds']:.2f}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def report(ranks: list[list[dict[str, Any]]]) -> str:
    of = SETTINGS
    lines = [
        f"{RANKS} ranks on gloo, {of['experts']} experts, {of['k']} a token, hidden size {of['hidden']}, width",
        f"{of['width']}, float32; {of['tokens']:,} tokens a rank with all-to-all, as many in all with all-gather.",
        "Rank 0, which computes most. Bytes counted between operators; seconds: the median of",
        f"{of['rounds']} on a CPU whose cores the ranks share. Chunks in tokens. Command:",
        "`python benchmarks/bench_chunked_moe.py --trees DIR`.",
        "",
        "| exchange | imbalance | rows | chunk | peak | ratio | time | ratio |",
        "|---|---|---|---|---|---|---|---|",
        *rows(ranks),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="upstream trees, patched")
    parser.add_argument("--out", type=Path, help="page to write into, between the markers of bench-chunked-moe")
    args = parser.parse_args()
    text = report(measured(args.trees))
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-chunked-moe", text)


if __name__ == "__main__":
    main()
