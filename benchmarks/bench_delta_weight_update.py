#!/usr/bin/env python3
"""What `delta_weight_update` sends beside a whole update, and how long either takes, over gloo at 1, 2 and 4 ranks of a trainer.

Each step of verl's FSDP2 engine (AdamW, on random tokens), and of its Megatron engine (with mbridge, on random gradients), is followed by an
update of what changed and one of all weights, from the same weights in the same run, to one receiver on the same machine. Bytes are those that
the trainer's rank 0 broadcasts; seconds are the manager's, of the whole update. The one of all weights has no digests, as upstream's. Engine and
loaders are left out: both updates end in them. The model has layers of Qwen3-0.6B's sizes, fewer of them, and 16384 tokens.

Usage: bench_delta_weight_update.py --trees DIR [--layers N] [--steps N] [--out docs/benchmarks.md]; PATCHCTL_TORCH_PYTHON names a torch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from in_torch import torch_python
from markers import write_between_markers

REPO = Path(__file__).resolve().parents[1]
PROBE = next(REPO.glob("patches/verl/*/delta_weight_update/tests/probe_delta_bytes.py")).relative_to(REPO)
# Trainers: how the table names each, its ranks, and the sizes of verl's Megatron engine.
TRAINERS = [*(("FSDP2", ranks, {}) for ranks in (1, 2, 4)), ("Megatron", 2, {"tensor_model_parallel_size": 2})]
RATES = (1e-6, 1e-5)
STANDINS = ["torch_npu", "npu_training", "npu_training_0_9", "torchvision"]
MODEL = """
import sys, torch
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
from tiny_model import CHARACTERS, CHAT_TEMPLATE, character_tokenizer
torch.manual_seed(0)
config = Qwen3Config(hidden_size=1024, intermediate_size=3072, num_hidden_layers=int(sys.argv[2]), num_attention_heads=16,
    num_key_value_heads=8, head_dim=128, vocab_size=16384, tie_word_embeddings=False)
model = Qwen3ForCausalLM(config)
model.save_pretrained(sys.argv[1])
character_tokenizer(CHARACTERS, CHAT_TEMPLATE).save_pretrained(sys.argv[1])
print(sum(weight.numel() for weight in model.parameters()))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trees", type=Path, required=True, help="patched trees (DIR/verl)")
    parser.add_argument("--layers", type=int, default=2, help="[2]")
    parser.add_argument("--steps", type=int, default=3, help="[3]")
    parser.add_argument("--out", type=Path, help="a page to write the table to, between its markers")
    args = parser.parse_args()
    text = table(*measured(args.trees, args.layers, args.steps))
    print(text)
    if args.out:
        write_between_markers(args.out, "bench-delta-weight-update", text + "\n")


def measured(trees: Path, layers: int, steps: int) -> tuple[int, list[tuple[str, int, float, dict[str, Any]]]]:
    """The number of weights, and what rank 0 found, by trainer, its ranks and learning rate."""
    sys.path[:0] = [str(REPO / "tests/behaviour"), str(REPO / "tests")]
    from harness import Upstream
    from trees import given_trees

    found = []
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        environment = os.environ | {"PYTHONPATH": str(REPO / "scripts/demo")}
        words = [torch_python(), "-c", MODEL, str(model), str(layers)]
        made = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        upstream = Upstream(given_trees(trees), Path(scratch))
        for trainer, ranks, sizes in TRAINERS:
            for rate in RATES:
                one = upstream.run(
                    str(PROBE),
                    model,
                    rate,
                    steps,
                    *([json.dumps(sizes)] if sizes else []),
                    procs=ranks + 1,
                    need=["verl", *(["megatron-lm", "mindspeed"] if sizes else [])],
                    standins=[*STANDINS, *(["megatron_cpu", "npu_attention"] if sizes else [])],
                    timeout=900,
                )
                found.append((trainer, ranks, rate, one[0]))
                print(f"{trainer}, {ranks} ranks, {rate}: done", file=sys.stderr)
        return int(made.stdout.split()[-1]), found


def median(found: dict[str, Any], kind: str, figure: str) -> float:
    return float(statistics.median(one[figure] for one in found[kind]))


def row(trainer: str, ranks: int, rate: float, found: dict[str, Any], weights: int) -> str:
    changes, everything = ([median(found, kind, one) for one in ("bytes", "seconds")] for kind in ("changes", "all"))
    ratios = [f"{part / whole:.3g}" for part, whole in zip(changes, everything, strict=True)]
    share = f"{100 * median(found, 'changes', 'share'):.3g} %"
    held = f"{max(found['held']) / (2 * weights):.3g}"
    return f"| {' | '.join([trainer, str(ranks), str(rate), share, *ratios, f'{everything[1]:.3g} s', held])} |"


def table(weights: int, found: list[tuple[str, int, float, dict[str, Any]]]) -> str:
    head = [
        "trainer",
        "ranks",
        "rate",
        "elements that changed",
        "bytes",
        "seconds",
        "of a whole update",
        "held by a rank",
    ]
    lines = [f"{weights:,} weights; {platform.machine()}, {os.cpu_count()} cores, CPU, gloo on one machine.", ""]
    lines += [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join(lines + [row(*one, weights) for one in found])


if __name__ == "__main__":
    main()
