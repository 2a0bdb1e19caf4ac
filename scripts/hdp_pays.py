#!/usr/bin/env python3
"""Whether hybrid data parallelism pays for a file of sequence lengths: a simulation with the patch's own packing.

    scripts/hdp_pays.py lengths.txt --ranks 8 --max-tokens 4096
    jq '.[].tokens' rollouts.json | scripts/hdp_pays.py - --ranks 4 --max-tokens 8192 --model config.json --json

LENGTHS holds numbers of tokens (prompt and response together), separated by white space or commas; `-` is standard
input. They are taken in order, --batch of them at a time: what one data parallel rank gets for one update. Each batch is
cut into micro-batches and each of these laid out by the functions that the patch calls (hdp, docs/hdp.md), with the
costs that it takes from the model (--model) or that hybrid_data_parallel_costs sets (--quadratic-length and the others).
The time, by the same costs, is compared with that of plain context parallelism for upstream's micro-batches.
It is a model: no kernel is run, and what is not forward and backward pass (optimizer, pipeline bubbles, reference,
rollout) takes no time in it.

Exit codes: 0 it was computed, whatever the answer; 2 wrong use or a file that holds no lengths.
"""

from __future__ import annotations

import argparse
import heapq
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

REPO = Path(__file__).resolve().parents[1]
# What the patch hdp carries in each stack of verl that has it.
PACKINGS = "patches/verl/*/*/files/verl/utils/hybrid_data_parallel/packing.py"
PACKING = min(REPO.glob(PACKINGS), default=REPO / PACKINGS)
WRONG_USE = 2
# Below this a run is not worth another code path: the packing's own spread between batches is as large.
WORTH_IT = 0.03


class WrongUse(Exception):
    """What is wrong with the arguments or the file, and what to try."""


@dataclass(frozen=True)
class Answer:
    """Times are in those of one token on one rank without attention, summed over all micro-batches.

    `imbalance` is the slowest group over the mean of the ranks, `ring` what of plain context parallelism's time is the
    ring's by the cost model, `sequences` how many are on 1, 2, ... ranks.
    """

    batches: int
    micro_batches: int
    plain: float
    hybrid: float
    imbalance: float
    ring: float
    sequences: dict[int, int]

    @property
    def gain(self) -> float:
        """The share of plain context parallelism's time that is saved."""
        return 1 - self.hybrid / self.plain


def load_packing(path: Path = PACKING) -> ModuleType:
    """The packing module of the patch, which is plain Python."""
    if not path.is_file():
        raise WrongUse(f"{path}: no such file; the packing of the patch hdp of verl is needed (--packing FILE)")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def karmarkar_karp(weights: Sequence[float], parts: int) -> list[list[int]]:
    """Indices in `parts` parts of similar weight, by the largest differencing method, which upstream uses too."""
    heap: list[tuple[float, int, list[tuple[float, list[int]]]]] = []
    for order, weight in enumerate(weights):
        sums: list[tuple[float, list[int]]] = [(weight, [order]), *((0.0, []) for _ in range(parts - 1))]
        heap.append((-weight if parts > 1 else 0.0, order, sums))
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        _, _, left = heapq.heappop(heap)
        _, _, right = heapq.heappop(heap)
        # The heaviest of one joins the lightest of the other.
        merged = [(a + b, one + other) for (a, one), (b, other) in zip(left, reversed(right), strict=True)]
        merged.sort(key=lambda part: (-part[0], part[1][:1]))
        heapq.heappush(heap, (merged[-1][0] - merged[0][0], order, merged))
        order += 1
    return [sorted(indices) for _, indices in heap[0][2]]


def simulate(lengths: Sequence[int], packing: Any, setting: Any, batch: int, by_time: bool = False) -> Answer:
    """Divides and lays out all batches as `setting`, a packing.Packing, does; times are by its costs too.

    Plain context parallelism has upstream's division, without room for padding. Raises ValueError for a sequence that
    fits nowhere.
    """
    hybrid = busy = 0.0
    counts: Counter[int] = Counter()
    micro_batches = 0
    for one in _batches(lengths, batch):
        for part in (setting.fastest if by_time else setting.partition)(one, _least(one, setting), karmarkar_karp):
            chosen = [one[index] for index in part]
            groups = setting.layout(chosen)
            costs = packing.group_costs(groups, chosen, setting.tensor_parallel, setting.cost)
            hybrid += max(costs)
            busy += sum(spent * group.ranks for spent, group in zip(costs, groups, strict=True)) / setting.ranks
            counts.update(_by_ranks(groups))
            micro_batches += 1
    plain = plain_time(lengths, packing, setting, batch)
    no_ring = replace(setting, cost=packing.CostModel(setting.cost.quadratic_length, 0.0, 0.0))
    share = 1 - plain_time(lengths, packing, no_ring, batch) / plain
    batches = -(-len(lengths) // batch)
    return Answer(batches, micro_batches, plain, hybrid, hybrid / busy, share, dict(sorted(counts.items())))


def plain_time(lengths: Sequence[int], packing: Any, setting: Any, batch: int) -> float:
    """What plain context parallelism takes for all batches, divided as upstream divides them."""
    found = 0.0
    for one in _batches(lengths, batch):
        for part in karmarkar_karp(one, _least(one, setting)):
            chosen = [one[index] for index in part]
            whole = packing.plain(chosen, setting.ranks)
            found += packing.slowest(whole, chosen, setting.tensor_parallel, setting.cost)
    return found


def _batches(lengths: Sequence[int], batch: int) -> list[list[int]]:
    return [list(lengths[start : start + batch]) for start in range(0, len(lengths), batch)]


def _least(batch: Sequence[int], setting: Any) -> int:
    """Upstream's number of micro-batches, which counts no padding."""
    tokens: int = setting.ranks * setting.max_tokens
    return min(len(batch), -(-sum(batch) // tokens))


def transformer(path: Path) -> SimpleNamespace:
    """A model's config.json of Hugging Face with the names of Megatron's TransformerConfig, as far as costs need them.

    Raises WrongUse for a file that is none, and for latent attention, which the patch refuses.
    """
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        if "kv_lora_rank" in config:
            raise WrongUse(f"{path}: latent attention, which hybrid data parallelism refuses")
        layers, heads, width = (
            int(config[name]) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        )
        experts = config.get("num_experts") or config.get("num_local_experts")
        every = config.get("decoder_sparse_step", 1)
        dense = set(config.get("mlp_only_layers", []))
        return SimpleNamespace(
            num_layers=layers,
            hidden_size=width,
            num_attention_heads=heads,
            num_query_groups=config.get("num_key_value_heads", heads),
            kv_channels=config.get("head_dim") or width // heads,
            ffn_hidden_size=config["intermediate_size"],
            gated_linear_unit=True,
            num_moe_experts=experts,
            moe_layer_freq=[int((layer + 1) % every == 0 and layer not in dense) for layer in range(layers)],
            moe_router_topk=config.get("num_experts_per_tok"),
            moe_ffn_hidden_size=config.get("moe_intermediate_size", config["intermediate_size"]),
            moe_shared_expert_intermediate_size=config.get("shared_expert_intermediate_size"),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise WrongUse(f"{path}: no config.json of a model: {type(error).__name__}: {error}") from None


def costs_of(args: argparse.Namespace, packing: Any) -> Any:
    """The CostModel of the arguments, by the functions that the patch calls."""
    given = {"quadratic_length": args.quadratic_length, "ring_share": args.ring_share, "ring_step": args.ring_step}
    try:
        if args.model is not None:
            return packing.CostModel.of(transformer(args.model), given)
        return packing.CostModel(**packing.known_costs(given))
    except ValueError as error:
        raise WrongUse(f"--{error}") from None


def _by_ranks(groups: Sequence[Any]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for group in groups:
        counts[group.ranks] += len(group.sequences)
    return counts


def read_lengths(names: Sequence[str]) -> list[int]:
    """All lengths of the files, in order; raises WrongUse and names the place of what is no length."""
    found: list[int] = []
    for name in names:
        try:
            text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise WrongUse(f"{name}: cannot be read: {error}") from None
        for number, line in enumerate(text.splitlines(), 1):
            for word in re.split(r"[\s,;\[\]]+", line.strip()):
                if word and not re.fullmatch("0*[1-9][0-9]{0,8}", word):
                    raise WrongUse(
                        f"{name}:{number}: {word[:40]!r} is no number of tokens; one positive integer a sequence"
                    )
                found += [int(word)] if word else []
    if not found:
        raise WrongUse(f"{', '.join(names)}: no lengths; one positive integer a sequence")
    return found


def verdict(answer: Answer) -> str:
    """One sentence for the end of the report."""
    if answer.gain < WORTH_IT:
        return f"It hardly pays: {answer.gain:.1%} of the forward and backward passes."
    return f"It pays, by this model: {answer.gain:.1%} of the forward and backward passes."


def report(answer: Answer, lengths: Sequence[int], ranks: int) -> str:
    ordered = sorted(lengths)
    spread = ", ".join(f"{name} {ordered[int(at * (len(ordered) - 1))]:,}" for name, at in QUANTILES.items())
    places = ", ".join(f"{count:,} on {size}" for size, count in answer.sequences.items())
    return "\n".join(
        [
            f"{len(lengths):,} sequences ({spread} tokens) in {answer.batches:,} batches, {answer.micro_batches:,} micro-batches",
            f"context parallel ranks       {ranks}",
            f"the ring's share of plain    {answer.ring:.1%}",
            f"sequences by ranks           {places}",
            f"slowest group over the mean  {answer.imbalance:.3f}",
            f"time, plain = 1              {answer.hybrid / answer.plain:.3f}",
            verdict(answer),
        ]
    )


QUANTILES = {"shortest": 0.0, "median": 0.5, "90 %": 0.9, "longest": 1.0}


def add_costs(made: argparse.ArgumentParser) -> None:
    """The arguments of `costs_of`."""
    made.add_argument(
        "--model", type=Path, metavar="CONFIG", help="the model's config.json, whose sizes say what attention costs"
    )
    made.add_argument("--quadratic-length", type=float, help="tokens at which attention costs as much as the rest")
    made.add_argument("--ring-share", type=float, help="what a token costs more in each step of a ring (default 0.3)")
    made.add_argument("--ring-step", type=float, help="what each step of a ring costs, in tokens (default 50)")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("lengths", nargs="+", metavar="LENGTHS", help="files of numbers of tokens; - is standard input")
    made.add_argument("--ranks", type=int, required=True, help="the context parallel size")
    made.add_argument("--max-tokens", type=int, required=True, help="tokens a rank at most: ppo_max_token_len_per_gpu")
    made.add_argument("--tensor-parallel", type=int, default=1, help="sequences are padded for it (default 1)")
    made.add_argument("--batch", type=int, default=64, help="sequences a data parallel rank and update (default 64)")
    add_costs(made)
    made.add_argument(
        "--by-time", action="store_true", help="micro-batches as with hybrid_data_parallel_by_time, not upstream's"
    )
    made.add_argument("--packing", type=Path, default=PACKING, help=argparse.SUPPRESS)
    made.add_argument("--json", action="store_true", help="one JSON object instead of text")
    return made


def answer_for(args: argparse.Namespace, lengths: Sequence[int]) -> Answer:
    if min(args.ranks, args.max_tokens, args.tensor_parallel, args.batch) < 1:
        raise WrongUse("--ranks, --max-tokens, --tensor-parallel and --batch have to be 1 or more")
    packing = load_packing(args.packing)
    setting = packing.Packing(args.ranks, args.max_tokens, args.tensor_parallel, costs_of(args, packing))
    try:
        return simulate(lengths, packing, setting, args.batch, args.by_time)
    except ValueError as error:
        raise WrongUse(f"{error} (--max-tokens, --ranks)") from None


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    try:
        lengths = read_lengths(args.lengths)
        answer = answer_for(args, lengths)
    except WrongUse as wrong:
        print(f"hdp_pays: {wrong}", file=sys.stderr)
        return WRONG_USE
    if args.json:
        print(json.dumps(asdict(answer) | {"gain": answer.gain, "pays": answer.gain >= WORTH_IT}))
    else:
        print(report(answer, lengths, args.ranks))
    return 0


if __name__ == "__main__":
    sys.exit(main())
