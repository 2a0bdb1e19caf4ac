#!/usr/bin/env python3
"""What `ep_alltoallv_reshard` sends and holds, beside verl's all-gather of all experts: counted, not timed.

Counted: a tiny model on gloo (probe_reshard.py of ep_alltoallv_reshard), bytes that collectives bring a rank and the most
memory that expert weights take at once. It needs a torch: `--trees DIR` and PATCHCTL_TORCH_PYTHON.

Planned: the same figures for models of real size, from the patch's own plan (verl/utils/ep_reshard.py, which needs no
torch). The formulas are those that the tests compare with what is counted. An expert has fc1 of 2 * ffn * hidden and
fc2 of ffn * hidden values of two bytes. Received by a rank, a layer:

    all-gather:  (experts - own) * expert, and own * expert more where another pipeline stage trains the layer
    exchange:    experts that its engine keeps and it does not train there * expert

Memory beside the models while an fc1 is on its way, with EP ranks in training:

    all-gather:  with EP > 1, (2 * EP + 1) * fc1, + 1 with pipeline stages: what is gathered, what was gathered before
                 (the list lives until the next is made), the copies into gate and up, and what was broadcast
    exchange:    two receive buffers (the consumer still refers to the one before), and one to send from when several
                 experts go in a round; a buffer holds as many fc1 as fit into 64 MiB, at least one

Usage: bench_ep_reshard.py [--trees DIR] [--plan FILE] [--out docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from markers import write_between_markers

REPO = Path(__file__).resolve().parents[1]
PLAN = min(REPO.glob("patches/verl/*/*/files/verl/utils/ep_reshard.py"))
PROBE = next(REPO.glob("patches/verl/*/ep_alltoallv_reshard/tests/probe_reshard.py")).relative_to(REPO)
ROUND_BYTES = 64 * 2**20  # as in verl/utils/ep_reshard_exchange.py
RANKS_PER_NODE = 16
GIB = 2**30
# FAMILY:EXPERTS:TP:PP:VPP:EP_TRAIN:EP_ROLLOUT:ROUND_BYTES of the probe, by the number of processes.
CASES = {
    4: [
        f"{family}:8:1:{pp}:1:{train}:{rollout}:1"
        for family in ("qwen3_moe", "deepseek_v3")
        for pp, train, rollout in ((1, 2, 4), (1, 4, 4), (1, 4, 2), (1, 1, 4), (2, 2, 4), (2, 1, 4))
    ],
    8: [f"qwen3_moe:8:1:2:1:{train}:{rollout}:1" for train, rollout in ((2, 4), (4, 4), (4, 2), (1, 4), (4, 8))],
}


@dataclass(frozen=True)
class Shape:
    """A model's experts: how many in a layer, in how many layers, and their sizes."""

    name: str
    layers: int
    experts: int
    hidden: int
    ffn: int

    @property
    def fc1_bytes(self) -> int:
        return 2 * 2 * self.ffn * self.hidden

    @property
    def expert_bytes(self) -> int:
        return self.fc1_bytes + 2 * self.ffn * self.hidden


QWEN3_235B = Shape("Qwen3-235B-A22B", 94, 128, 4096, 1536)
DEEPSEEK_R1 = Shape("DeepSeek-R1", 58, 256, 7168, 2048)
# Model, ranks, pipeline stages, EP in training, EP in rollout. The first is the practice's own example (seed 004).
PLANNED = [
    (QWEN3_235B, 8, 2, 4, 8),
    (QWEN3_235B, 64, 4, 16, 16),
    (QWEN3_235B, 64, 4, 8, 32),
    (QWEN3_235B, 64, 1, 16, 16),
    (DEEPSEEK_R1, 256, 8, 32, 64),
    (DEEPSEEK_R1, 256, 8, 32, 32),
    (DEEPSEEK_R1, 256, 8, 16, 128),
]


def load_plan(path: Path) -> ModuleType:
    """The patch's planner, which imports the standard library only."""
    spec = importlib.util.spec_from_file_location("ep_reshard", path)
    if not spec or not spec.loader or not path.exists():
        raise SystemExit(f"{path}: no such file; name the patch's verl/utils/ep_reshard.py with --plan")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def layouts(plan: ModuleType, shape: Shape, ranks: int, stages: int, train: int, rollout: int) -> list[Any]:
    """Ranks as Megatron (expert parallel innermost, stages outermost) and vllm (consecutive ranks) place them."""
    own, kept = shape.experts // train, shape.experts // rollout
    made = []
    for rank in range(ranks):
        first, place = rank % train * own, rank % rollout
        made.append(
            plan.RankLayout(
                stage=rank // (ranks // stages),
                owns=tuple(range(first, first + own)),
                holds=tuple(range(place * kept, (place + 1) * kept)),
                engine=tuple(range(rank - place, rank - place + rollout)),
                node=str(rank // RANKS_PER_NODE),
            )
        )
    plan.check_layouts(made, shape.experts)
    return made


def planned_row(plan: ModuleType, shape: Shape, ranks: int, stages: int, train: int, rollout: int) -> str:
    made = layouts(plan, shape, ranks, stages, train, rollout)
    layers = shape.layers / stages  # of a stage; a model whose layers do not divide is off by part of one layer
    own = shape.experts // train
    transfers = [transfer for stage in range(stages) for transfer in plan.route(made, stage)]
    come, go = (Counter(getattr(transfer, end) for transfer in transfers) for end in ("target", "source"))
    rounds = len(plan.single_rounds(transfers))  # for a layer of every stage
    width = max(1, ROUND_BYTES // shape.fc1_bytes)
    gathered = shape.layers * (shape.experts - own) + (shape.layers - layers) * own
    received, sent = (layers * max(ends.values(), default=0) for ends in (come, go))
    peaks = (
        (2 * train + 1 + (stages > 1)) * shape.fc1_bytes / GIB,
        min(width, rounds) * (2 + (width > 1)) * shape.fc1_bytes / GIB,
    )
    volumes = [count * shape.expert_bytes / GIB for count in (gathered, received, sent)]
    return (
        f"| {shape.name} | {ranks} | {stages} | {train} → {rollout} | {volumes[0]:,.1f} GiB | {volumes[1]:,.1f} GiB | "
        f"**{received / gathered:.3f}** | {volumes[2]:,.1f} GiB | {peaks[0]:.2f} GiB | {peaks[1]:.3f} GiB | **{peaks[1] / peaks[0]:.3f}** | "
        f"{-(-rounds // width)} |"
    )


def counted_rows(trees: Path) -> list[str]:
    sys.path[:0] = [str(REPO / "tests/behaviour"), str(REPO / "tests")]
    from harness import Upstream
    from trees import given_trees

    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        upstream = Upstream(given_trees(trees), Path(scratch))
        for procs, cases in CASES.items():
            need = {"need": ["verl", "megatron-lm"], "standins": ["megatron_cpu"]}
            ranks = upstream.run(str(PROBE), *cases, procs=procs, timeout=900, **need)
            rows += [counted_row(case, [rank[case] for rank in ranks]) for case in cases]
    return rows


def counted_row(case: str, ranks: list[dict[str, Any]]) -> str:
    family, _, _, stages, _, train, rollout, _ = case.split(":")
    if any(rank["missing"] or rank["differ"] or rank["wrong"] for rank in ranks):
        raise SystemExit(f"{case}: the weights are not those of the all-gather")
    expert = ranks[0]["planned"]["expert_bytes"]  # fc1
    # Weights that are no experts come in the same way on both paths; their bytes are not counted here.
    gathered = max(
        sum(rank["all_gather"]["received"].values())
        - sum(count for name, count in rank["all_to_all"]["received"].items() if name != "all_to_all_single")
        for rank in ranks
    )
    sent = max(rank["all_to_all"]["received"]["all_to_all_single"] for rank in ranks)
    peaks = [max(rank[path]["peak"] for rank in ranks) / expert for path in ("all_gather", "all_to_all")]
    return (
        f"| {family} | {len(ranks)} | {stages} | {train} → {rollout} | {gathered / 1024:,.0f} KiB | {sent / 1024:,.0f} KiB | "
        f"**{sent / gathered if gathered else 0:.3f}** | {peaks[0]:.1f} | {peaks[1]:.1f} | **{peaks[1] / peaks[0]:.3f}** |"
    )


def report(plan: ModuleType, trees: Path | None) -> str:
    lines = []
    if trees:
        lines += [
            "Counted on gloo, bfloat16, 8 experts, 4 layers, one expert a round; the rank with most. Peaks are in fc1 of an",
            "expert. With EP 1 in training nothing is gathered, and nothing sent, unless there are pipeline stages.",
            "",
            "| model | ranks | PP | EP | received, all-gather | received, exchange | ratio | peak, all-gather | peak, exchange | ratio |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *counted_rows(trees),
            "",
        ]
    lines += [
        f"Planned, not measured: a weight update, {RANKS_PER_NODE} ranks a node; the rank that receives most, and the one that",
        "sends most. Rounds are collectives for one fc1 of every stage:",
        "",
        "| model | ranks | PP | EP | received, all-gather | received, exchange | ratio | sent, exchange | memory, all-gather "
        "| memory, exchange | ratio | rounds an fc1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(planned_row(plan, *case) for case in PLANNED),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, help="upstream trees, patched; without it only what is planned is shown")
    parser.add_argument("--plan", type=Path, default=PLAN, help="the patch's verl/utils/ep_reshard.py")
    parser.add_argument("--out", type=Path, help="page to write into, between the markers of bench-ep-reshard")
    args = parser.parse_args()
    text = report(load_plan(args.plan), args.trees)
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-ep-reshard", text)


if __name__ == "__main__":
    main()
