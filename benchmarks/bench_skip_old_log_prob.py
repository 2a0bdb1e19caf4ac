#!/usr/bin/env python3
"""What skip_old_log_prob saves of a step, without generation: RayPPOTrainer.fit with and without the forward pass.

    PATCHCTL_TORCH_PYTHON=... benchmarks/bench_skip_old_log_prob.py --tree build/trees/RELEASE/patched/verl

The trainer, verl's FSDP worker and its actor run for real on a CPU (tests/behaviour/verl/trainer_in_process.py), with a
Qwen3 model of random weights. Responses are random tokens, so that a step holds only what is not generation: rewards,
old log-probabilities, advantages, update. Runs with the switch and without it alternate in one process; the table has
the fastest step of each, since other work on a machine only adds. It shows the ratio of two passes over a small model
on a CPU, which is near that of their floating-point operations; it says nothing about the speed of an accelerator.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
from pathlib import Path

from in_torch import run_in_torch
from markers import write_between_markers

ROOT = Path(__file__).resolve().parent.parent
BEHAVIOUR = ROOT / "tests" / "behaviour"
ROUNDS = 3
LAYERS, HIDDEN, RESPONSE = 4, 256, 96
SWITCH = "actor_rollout_ref.actor.skip_old_log_prob"
SETTINGS = [
    f"data.max_response_length={RESPONSE}",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True, help="a patched tree of verl")
    parser.add_argument("--out", type=Path, help="a page to write the table to, between its markers")
    parser.add_argument("--in-torch", metavar="MODEL", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.in_torch:
        print(json.dumps(measure(larger_model(args.in_torch))))
        return
    found = table(run_with_torch(args.tree.resolve()))
    print(found)
    if args.out:
        write_between_markers(args.out, "bench-skip-old-log-prob", found + "\n")


def run_with_torch(tree: Path) -> dict:
    """Makes a model folder, and runs this script under the interpreter that has torch."""
    path = os.pathsep.join(map(str, [tree, BEHAVIOUR / "verl"]))
    environment = os.environ | {"PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        models = run_in_torch([BEHAVIOUR / "make_tiny_models.py", folder], environment, Path(folder))
        command = [Path(__file__).resolve(), "--tree", tree, "--in-torch", models["qwen3"]]
        return run_in_torch(command, environment, Path(folder))


def larger_model(tiny: str) -> str:
    """A model of LAYERS layers beside the tiny one's tokenizer: in the tiny one what is not a pass would count."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    values = Qwen3Config.from_pretrained(tiny).to_dict()
    values.pop("layer_types")  # one entry a layer; Qwen3Config makes it anew
    values |= {"num_hidden_layers": LAYERS, "hidden_size": HIDDEN, "intermediate_size": 4 * HIDDEN}
    Qwen3ForCausalLM(Qwen3Config(**values)).save_pretrained(tiny)
    return tiny


def measure(model: str) -> dict:
    """Seconds of every step: of the whole step, the old log-probabilities and the update, by the switch."""
    import torch
    import trainer_in_process as tip

    torch.manual_seed(0)

    class RandomResponses(tip.Workers):
        def generate(self, shard, rank):
            return with_random_responses(shard)

    steps: dict[str, list] = {"False": [], "True": []}
    for _ in range(ROUNDS + 1):
        for switch, seen in steps.items():
            config = tip.compose_config(model, *SETTINGS, f"{SWITCH}={switch}")
            seen += tip.fit(config, RandomResponses(config))
    # The first round also pays for what torch does once.
    names = ("step", "old_log_prob", "update_actor")
    return {
        switch: [
            {name: step.get(f"timing_s/{name}", 0.0) for name in names} for step in seen[len(seen) // (ROUNDS + 1) :]
        ]
        for switch, seen in steps.items()
    }


def with_random_responses(shard):
    """The prompts with RESPONSE random tokens each, none of them the end: as a rollout returns them."""
    import torch
    from verl import DataProto

    prompts, mask, positions = (shard.batch[key] for key in ("input_ids", "attention_mask", "position_ids"))
    responses = torch.randint(4, 100, (len(prompts), RESPONSE))
    after = positions[:, -1:] + torch.arange(1, RESPONSE + 1)
    tensors = {
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses], dim=1),
        "attention_mask": torch.cat([mask, torch.ones_like(responses)], dim=1),
        "position_ids": torch.cat([positions, after], dim=1),
    }
    return DataProto.from_dict(tensors)


def table(steps: dict) -> str:
    off, on = (
        {name: min(step[name] for step in steps[switch]) for name in steps[switch][0]} for switch in ("False", "True")
    )
    passes = off["old_log_prob"] + off["update_actor"]
    lines = [
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"Qwen3 with {LAYERS} layers of {HIDDEN}, 8 responses of {RESPONSE} tokens; fastest of "
        f"{len(steps['True'])} steps each.",
        "",
        "| | with the pass | without it | ratio |",
        "|---|---|---|---|",
        f"| old log-probabilities | {off['old_log_prob']:.3f} s | - | |",
        f"| update of the actor | {off['update_actor']:.3f} s | {on['update_actor']:.3f} s | "
        f"{on['update_actor'] / off['update_actor']:.2f} |",
        f"| both | {passes:.3f} s | {on['update_actor']:.3f} s | {on['update_actor'] / passes:.2f} |",
        f"| step without generation | {off['step']:.3f} s | {on['step']:.3f} s | **{on['step'] / off['step']:.2f}** |",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
