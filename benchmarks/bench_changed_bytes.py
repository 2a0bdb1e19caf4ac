#!/usr/bin/env python3
"""What share of a model's weights changes from one optimizer step to the next, and what sending only that would save.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_changed_bytes.py [--models tiny 0.6b ...] [--out docs/benchmarks.md]

Inference engines hold weights in 16 bits; the optimizer adds about the learning rate to masters in 32. What is less than half the
distance between two neighbours in 16 bits leaves the sent weight as it was. Counted here, by step, learning rate, type and kind of
tensor: elements and bytes whose bits differ after the step, in masters cast to each type.

Training is RL-like: AdamW with verl's defaults (weight decay 0.01, gradients clipped at 1, no warm-up), bfloat16 autocast, and a
policy gradient with advantages normalized within a group of samples of one state. For `tiny` (the demo's model) states are the
demo's sums with its reward; for the others, whose weights have the usual deviation of 0.02, they are positions in random tokens,
and an even token is rewarded. A state has one action, so there is no generation. Random weights are not trained ones: they have
about the same size, and noisier gradients.

Ratios, except for the seconds of the copy that the cost of finding the changes is compared with. It runs on a GPU where torch sees
one; PATCHCTL_TORCH_PYTHON names the interpreter.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from in_torch import run_in_torch
from markers import write_between_markers

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ROOT / "scripts"
RATES = (1e-7, 1e-6, 1e-5)
TYPES = ("bfloat16", "float16", "float32")
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
MOST_STEPS = 20
SHOWN = (1, 2, 5, 10, 20)
SAMPLES = 16
ROUNDS = 25
POSITION = 4  # bytes of one, as in verl's delta_sync
DENSE = {"num_key_value_heads": 8, "head_dim": 128, "num_attention_heads": 16, "vocab_size": 151936}
SPARSE = {"num_key_value_heads": 2, "head_dim": 64, "norm_topk_prob": True}
# Those of Qwen3-0.6B, and two small mixtures of experts.
SHAPES = {
    "0.6b": DENSE
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "tie_word_embeddings": True},
    "moe": SPARSE
    | {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "moe_intermediate_size": 512}
    | {"num_experts": 32, "num_experts_per_tok": 4, "vocab_size": 32768},
    "tiny-moe": SPARSE
    | {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "moe_intermediate_size": 128}
    | {"num_experts": 8, "num_experts_per_tok": 2, "vocab_size": 1024},
}
# The first that a parameter's name holds.
KINDS = {"norm": "norms", "embed": "embedding", "lm_head": "embedding", "self_attn": "attention", "experts": "experts"}
KINDS |= {"mlp.gate.": "router", "mlp": "MLP"}
# A step's states and the positions that count, and the rewards of actions in them.
Actions = tuple[Callable[[], Any], Callable[[Any], Any]]
# By kind of tensor: changed elements, changed bytes, elements.
Counts = dict[str, list[int]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--models", nargs="+", choices=("tiny", *SHAPES), default=["tiny", "tiny-moe"], help="[tiny tiny-moe]"
    )
    parser.add_argument(
        "--steps", type=int, choices=range(1, MOST_STEPS + 1), default=MOST_STEPS, metavar="N", help="[20]"
    )
    parser.add_argument("--out", type=Path, help="a page to write the tables to, between its markers")
    parser.add_argument("--in-torch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        print(json.dumps({name: measure(name, args.steps) for name in args.models}))
        return
    command = [Path(__file__).resolve(), "--in-torch", "--steps", args.steps, "--models", *args.models]
    path = os.pathsep.join(filter(None, (str(SCRIPTS), str(SCRIPTS / "demo"), os.environ.get("PYTHONPATH"))))
    tables = [table(name, found) for name, found in run_in_torch(command, os.environ | {"PYTHONPATH": path}).items()]
    print("\n\n".join(tables))
    if args.out:
        write_between_markers(args.out, "bench-changed-bytes", "\n\n".join(tables) + "\n")


def measure(name: str, steps: int) -> dict[str, Any]:
    """Changes of every step at every learning rate, and the cost of finding those of the last step at 1e-6."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(
        1
    )  # on a busy CPU threads wait for one another, a thousand times as long as a small copy takes
    on = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()}, {os.cpu_count()} cores, CPU"
    found: dict[str, Any] = {"machine": f"{on}, torch {torch.__version__}", "rates": {}}
    for rate in RATES:
        model, actions = made(name, device)
        found["weights"] = sum(weight.numel() for weight in model.parameters())
        found["rates"][rate], before, now = train(model, actions, rate, steps)
        if rate == 1e-6:
            found["cost"] = cost(before, now)
        del model, before, now
        print(f"{name}, {rate}: done", file=sys.stderr)
    return found


def made(name: str, device: str) -> tuple[Any, Actions]:
    """The model, with float32 masters, and two functions: the states of a step, and the rewards of actions in them."""
    import torch

    torch.manual_seed(0)
    if name == "tiny":
        return sums(device)
    from transformers import AutoConfig, AutoModelForCausalLM

    kind = "qwen3_moe" if "num_experts" in SHAPES[name] else "qwen3"
    config = AutoConfig.for_model(kind, **SHAPES[name])
    with torch.device(device):
        # Experts in a loop: their grouped kernel takes no float32 masters under autocast.
        experts = {"experts_implementation": "eager"} if "num_experts" in SHAPES[name] else {}
        model = AutoModelForCausalLM.from_config(config, **experts).float()

    def states() -> tuple[Any, slice]:
        return torch.randint(config.vocab_size, (8, 64), device=device), slice(None)

    return model, (states, lambda tokens: (tokens % 2 == 0).float())


def sums(device: str) -> tuple[Any, Actions]:
    """The demo's model, and its sums."""
    import torch
    from rewards.sums import compute_score
    from tiny_model import CHARACTERS, CHAT_TEMPLATE, character_tokenizer
    from tiny_model import model as tiny

    tokenizer = character_tokenizer(CHARACTERS, CHAT_TEMPLATE)
    pairs = [(first, second) for first in range(4) for second in range(4)]
    states = torch.tensor([tokenizer(f"{first}+{second}=")["input_ids"] for first, second in pairs], device=device)

    def reward(tokens: Any) -> Any:
        rows = zip(tokens.reshape(len(pairs), SAMPLES).tolist(), pairs, strict=True)
        scores = [
            [compute_score("", tokenizer.decode([one]), str(sum(pair)))["score"] for one in row] for row, pair in rows
        ]
        return torch.tensor(scores, device=device).reshape(tokens.shape)

    return tiny(tokenizer, 0).to(device), (lambda: (states, slice(-1, None)), reward)


def train(model: Any, actions: Actions, rate: float, steps: int) -> tuple[list[dict[str, Counts]], Any, Any]:
    """Changes by step, type and kind as [elements, bytes, of elements]; and the bfloat16 weights before and after the last step."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    types = [getattr(torch, kind) for kind in TYPES]
    sent = {kind: cast(model, kind) for kind in types}
    changes = []
    for _ in range(steps):
        optimizer.zero_grad()
        policy_loss(model, *actions).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        before, sent = sent, {kind: cast(model, kind) for kind in types}
        changes.append({name: changed(before[kind], sent[kind]) for name, kind in zip(TYPES, types, strict=True)})
    return changes, *(torch.cat([one.flatten() for one in side[torch.bfloat16].values()]) for side in (before, sent))


def policy_loss(model: Any, states: Callable[[], Any], reward: Callable[[Any], Any]) -> Any:
    """SAMPLES actions in every state, drawn from the model, and their log-probabilities by advantages within the state."""
    import torch

    inputs, where = states()
    with torch.autocast(inputs.device.type, dtype=torch.bfloat16):
        logits = model(input_ids=inputs).logits[:, where].flatten(0, 1).float()
    taken = torch.multinomial(logits.detach().softmax(-1), SAMPLES, replacement=True)
    rewards = reward(taken)
    advantages = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, keepdim=True) + 1e-6)
    return -(advantages * logits.log_softmax(-1).gather(-1, taken)).mean()


def cast(model: Any, kind: Any) -> dict[str, Any]:
    return {name: weight.detach().to(kind, copy=True) for name, weight in model.named_parameters()}


def changed(before: dict[str, Any], now: dict[str, Any]) -> Counts:
    import torch

    found: Counts = defaultdict(lambda: [0, 0, 0])
    for name, weight in now.items():
        other = before[name].view(torch.uint8) != weight.view(torch.uint8)
        elements = other.unflatten(-1, (-1, weight.element_size())).any(-1).sum()
        for at, count in enumerate((int(elements), int(other.sum()), weight.numel())):
            found[kind_of(name)][at] += count
    return dict(found)


def kind_of(name: str) -> str:
    return next(kind for part, kind in KINDS.items() if part in name)


def cost(before: Any, now: Any) -> dict[str, float]:
    """The fastest of ROUNDS, in seconds: a copy of the weights, and the three parts of finding what changed."""
    import torch

    old, new, copy = before.view(torch.int16), now.view(torch.int16), torch.empty_like(now)
    mask = old != new
    places = mask.nonzero()
    parts = {
        "copy": lambda: copy.copy_(now),
        "compare": lambda: old != new,
        "nonzero": lambda: mask.nonzero(),
        "gather": lambda: now[places],
    }
    return {name: min(seconds(part, now.is_cuda) for _ in range(ROUNDS)) for name, part in parts.items()}


def seconds(part: Callable[[], Any], on_gpu: bool) -> float:
    import torch

    if on_gpu:
        torch.cuda.synchronize()
    began = time.perf_counter()
    part()
    if on_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - began


def sparse(share: float, size: int) -> float:
    """Bytes of an update with a position for each changed value, as a part of those of all values."""
    return share * (POSITION + size) / size


def masked(share: float, size: int) -> float:
    """The same with a bit for every value, changed or not."""
    return 1 / (8 * size) + share


def total(changes: Counts) -> tuple[float, float]:
    """Changed elements and changed bytes, of all kinds, per element."""
    elements, of_bytes, of = (sum(column) for column in zip(*changes.values(), strict=True))
    return elements / of, of_bytes / of


def percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def table(name: str, found: dict[str, Any]) -> str:
    steps = len(next(iter(found["rates"].values())))
    shown = [step for step in SHOWN if step <= steps]
    head = ["rate", "type", *(f"elements, step {step}" for step in shown), f"bytes, step {steps}"]
    rows = [[*head, "positions + values", "mask + values"]]
    for rate, changes in found["rates"].items():
        for kind in TYPES:
            elements, of_bytes = total(changes[-1][kind])
            shares = [percent(total(changes[step - 1][kind])[0]) for step in shown]
            update = [percent(one(elements, BYTES[kind])) for one in (sparse, masked)]
            rows.append([rate, kind, *shares, percent(of_bytes / BYTES[kind]), *update])
    return "\n".join(
        [f"**{name}**: {found['weights']:,} weights; {found['machine']}.", "", *lines(rows), "", *details(found, steps)]
    )


def details(found: dict[str, Any], steps: int) -> list[str]:
    """By kind of tensor in bfloat16, and the cost of finding the changes."""
    last = {rate: changes[-1]["bfloat16"] for rate, changes in found["rates"].items()}
    kinds = next(iter(last.values()))
    rows = [[f"bfloat16, step {steps}", *kinds]]
    rows += [[rate, *(percent(elements / of) for elements, _, of in one.values())] for rate, one in last.items()]
    cost = found["cost"]
    copy = cost.pop("copy")
    parts = ", ".join(f"{name} {spent / copy:.2f}" for name, spent in cost.items())
    finding = f"Finding them at 1e-6, in copies of the weights ({copy * 1000:.3g} ms): {parts}; together {sum(cost.values()) / copy:.2f}."
    return [*lines(rows), "", finding]


def lines(rows: list[list[Any]]) -> list[str]:
    text = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [text[0], "|" + "---|" * len(rows[0]), *text[1:]]


if __name__ == "__main__":
    main()
