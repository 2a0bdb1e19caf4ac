#!/usr/bin/env python3
"""Fits what a ring costs to measured updates, for hybrid data parallelism's cost model (docs/hdp.md).

    scripts/hdp_calibrate.py --model config.json 8,4608,1654,lengths-8.txt 4,9216,1057,lengths-4.txt

A RUN is an update of a real run with plain context parallelism: its ranks, its ppo_max_token_len_per_gpu, the seconds that it
took (timing_s/update_actor of the log, the optimizer left out where it can be), and a file with the lengths of the sequences
of one data parallel rank, prompt and response together. Runs of the same model on the same devices, with two context parallel
sizes or more. Seconds are taken for a time a token, times what each token costs by the cost model; that time and the ring's
share in it are what fits best (least squares). Attention comes from --model or --quadratic-length.

Exit codes: 0 it was computed; 2 wrong use, or runs that no ring explains.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hdp_pays import PACKING, WRONG_USE, WrongUse, add_costs, costs_of, load_packing, plain_time, read_lengths

SETTING = "actor_rollout_ref.actor.megatron.hybrid_data_parallel_costs"
VARIABLE = "MEGATRON_DYNAMIC_CP_COSTS"


@dataclass(frozen=True)
class Measured:
    """`work` without a ring's share and `ring` with all of it, in the time of one token; `seconds` were measured."""

    name: str
    ranks: int
    seconds: float
    work: float
    ring: float


@dataclass(frozen=True)
class Fit:
    """`seconds` a token of a rank, attention left out; `misses`: by run, what the model takes more, as a share."""

    ring_share: float
    seconds: float
    misses: dict[str, float]


def fit(runs: Sequence[Measured]) -> Fit:
    """Seconds = a (work + share x ring) by least squares of what each run misses, in shares of its seconds.

    Raises WrongUse where runs do not tell the two apart, or tell that a ring costs less than nothing.
    """
    rows = [(run.work / run.seconds, run.ring / run.seconds) for run in runs]
    ww, wr, rr = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    w, r = (sum(row[i] for row in rows) for i in (0, 1))
    determinant = ww * rr - wr * wr
    if len({run.ranks for run in runs}) < 2 or determinant <= 0:
        raise WrongUse(
            "runs of one size have about the same part of a ring: measure with another context parallel size"
        )
    each, ring = (w * rr - r * wr) / determinant, (r * ww - w * wr) / determinant
    if each <= 0 or ring < 0:
        raise WrongUse(f"no cost of a ring explains these runs: {each:.3g} s a token, {ring:.3g} s in a ring's step")
    misses = {run.name: (each * run.work + ring * run.ring) / run.seconds - 1 for run in runs}
    return Fit(ring / each, each, misses)


def measured(run: str, packing: Any, args: argparse.Namespace, cost: Any) -> Measured:
    """The run of an argument."""
    parts = run.split(",", 3)
    try:
        ranks, most, seconds = int(parts[0]), int(parts[1]), float(parts[2])
        lengths = read_lengths([parts[3]])
    except (IndexError, ValueError):
        raise WrongUse(f"{run}: a run is RANKS,MAX_TOKENS,SECONDS,LENGTHS") from None
    if min(ranks, most) < 1 or not 0 < seconds < float("inf"):
        raise WrongUse(f"{run}: ranks, tokens and seconds have to be above 0")

    def time(share: float) -> float:
        setting = packing.Packing(ranks, most, args.tensor_parallel, replace(cost, ring_share=share))
        return plain_time(lengths, packing, setting, len(lengths))

    work = time(0.0)
    return Measured(run, ranks, seconds, work, time(1.0) - work)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN", help="RANKS,MAX_TOKENS,SECONDS,LENGTHS")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="sequences are padded for it (default 1)")
    add_costs(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")
    args = parser.parse_args(arguments)
    try:
        if args.tensor_parallel < 1:
            raise WrongUse(f"--tensor-parallel {args.tensor_parallel}: at least 1")
        packing = load_packing(PACKING)
        cost = costs_of(args, packing)
        found = fit([measured(run, packing, args, cost) for run in args.runs])
    except WrongUse as wrong:
        print(f"hdp_calibrate: {wrong}", file=sys.stderr)
        return WRONG_USE
    if args.json:
        print(json.dumps({"ring_share": found.ring_share, "seconds": found.seconds, "misses": found.misses}))
        return 0
    for run, miss in found.misses.items():
        print(f"{run}: the model takes {miss:+.1%}")
    print(f"{SETTING}.ring_share={found.ring_share:.3f}")
    print(f"{VARIABLE}=ring_share={found.ring_share:.3f}    # for dynamic_context_parallel, on all ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
