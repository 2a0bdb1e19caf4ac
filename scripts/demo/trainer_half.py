#!/usr/bin/env python3
"""The trainer's half of a GRPO run in one process, with skip_old_log_prob off and on; scripts/demo/gpu.py starts it.

Upstream's own, from the patched tree on PYTHONPATH: verl's configuration, RLHFDataset, RayPPOTrainer.fit with its advantages and
metrics, the reward manager, FSDP2's wrapping, DataParallelPPOActor, HFRollout; the model is transformers' Qwen3. `Workers` is what
is not: it takes the place of Ray's worker group, in this process. No stand-in is loaded, on a GPU or on a CPU.

It is given its settings as JSON, and writes OUT/result.json. Exit status: 0; 1 where something that has to be equal is not.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import os
import resource
import statistics
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

import torch
from tiny_model import CHARACTERS, CHAT_TEMPLATE, character_tokenizer
from transformers import Qwen3Config, Qwen3ForCausalLM

if not torch.cuda.is_available():
    torch.cpu.empty_cache = lambda: None  # HFRollout asks its device for it, and torch.cpu has none

REWARDS = Path(__file__).resolve().parents[1] / "rewards" / "sums.py"
PHASES = {"gen": "rollout", "old_log_prob": "old log-probabilities", "update_actor": "update of the actor"}
# What is compared in the first step, as a part of what it is, and how far it may be apart on a CPU and on a GPU. bfloat16 has eight
# bits: 0.016 of 3. A CPU computes the same twice; a GPU takes sums in another order from run to run, and Adam's first step makes a
# whole step of the sign of what is near 0.
CHECKED = {
    "log_probs_bfloat16": ("log-probabilities, verl's from transformers' in bfloat16, the farthest", 0.02, 0.05),
    "log_probs_float32": ("log-probabilities, verl's from transformers' in float32, the mean", 0.01, 0.02),
    "answers": ("tokens of the answers, off from on", 0.0, 0.0),
    "grad_norm": ("gradient norm, off from on", 0.0, 0.01),
    "entropy": ("entropy, off from on", 0.0, 0.01),
    "weights": ("weights after the step, off from on, as a part of the step", 0.0, 0.1),
}


def settings(args: argparse.Namespace, skip: bool, folder: Path) -> list[str]:
    """Overrides of verl's ppo_trainer: those of the recipe demo/grpo, but for its engine and its two workers."""
    data = f"""
        train_files={args.out}/data/train.parquet val_files={args.out}/data/test.parquet train_batch_size={args.prompts}
        max_prompt_length=8 max_response_length={args.answer} truncation=error dataloader_num_workers=0"""
    # Without padding it would need flash_attn on CUDA.
    parts = f"""
        model.path={folder} model.use_remove_padding=False rollout.name=hf rollout.mode=sync rollout.n={args.samples}
        rollout.log_prob_micro_batch_size_per_gpu={args.micro} actor.strategy=fsdp2 actor.optim.lr={args.lr}
        actor.ppo_mini_batch_size={args.prompts} actor.ppo_micro_batch_size_per_gpu={args.micro}
        actor.use_torch_compile=False actor.skip_old_log_prob={skip}"""
    trainer = f"""
        device={args.device} nnodes=1 n_gpus_per_node=1 logger=[file] total_epochs=1000 total_training_steps={args.steps}
        val_before_train=False test_freq=-1 save_freq=-1 resume_mode=disable"""
    words = [f"custom_reward_function.path={REWARDS}", "custom_reward_function.name=compute_score"]
    words += ["algorithm.adv_estimator=grpo", f"+data.seed={args.seed}"]
    for prefix, text in (("data", data), ("actor_rollout_ref", parts), ("trainer", trainer)):
        words += [f"{prefix}.{word}" for word in text.split()]
    return words


def made_model(args: argparse.Namespace, tokens: Any) -> Qwen3ForCausalLM:
    """The same weights each time, in float32 on the CPU; other random numbers are left as they are."""
    config = Qwen3Config(
        vocab_size=max(args.vocabulary, len(tokens)),
        tie_word_embeddings=False,
        max_position_embeddings=40960,
        initializer_range=0.4 / args.columns["hidden_size"] ** 0.5,
        pad_token_id=tokens.pad_token_id,
        bos_token_id=tokens.bos_token_id,
        eos_token_id=tokens.eos_token_id,
        **args.columns,
    )
    with torch.random.fork_rng():
        torch.manual_seed(args.seed)
        return Qwen3ForCausalLM(config).float()


def wrapped(model: Qwen3ForCausalLM, fsdp_config: Any) -> Qwen3ForCausalLM:
    """In FSDP2, with verl's functions and in verl's types: float32 weights, computed with in bfloat16."""
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from verl.utils.fsdp_utils import apply_fsdp2, fsdp2_load_full_state_dict, get_shard_placement_fn
    from verl.workers.fsdp_workers import create_device_mesh

    mesh, state = create_device_mesh(world_size=1, fsdp_size=-1), model.state_dict()
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=True)
    how = {"mesh": mesh, "mp_policy": precision, "offload_policy": None, "reshard_after_forward": True}
    apply_fsdp2(model, how | {"shard_placement_fn": get_shard_placement_fn(fsdp_size=1)}, fsdp_config)
    fsdp2_load_full_state_dict(model, state, mesh, None)
    return model


def made_rollout(config: Any, model: Qwen3ForCausalLM) -> Any:
    from verl.workers.rollout.hf_rollout import BaseRollout, HFRollout

    class Rollout(HFRollout):
        """HFRollout is abstract in v0.6.0: its base class got methods, and an __init__, that it was not given. The weights that it
        generates with are the actor's own, so that there is nothing to do in them."""

        def __init__(self) -> None:
            BaseRollout.__init__(self, config, None, None)
            self.module = model

        async def resume(self, tags: list[str]) -> None:
            raise NotImplementedError

        release = update_weights = resume

    return Rollout()


class Workers:
    """The worker group that the trainer calls. `seen` has what is looked at afterwards."""

    world_size = 1

    def __init__(self, config: Any, args: argparse.Namespace, tokens: Any) -> None:
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.actor.dp_actor import DataParallelPPOActor

        self.args, self.tokens, self.config = args, tokens, copy.deepcopy(config.actor_rollout_ref)
        self.model = wrapped(made_model(args, tokens), self.config.actor.fsdp_config).train()
        # Of prompts before, of answers afterwards, as in fsdp_workers.
        self.config.actor.ppo_mini_batch_size *= args.samples
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=args.lr)
        self.actor = DataParallelPPOActor(omega_conf_to_dataclass(self.config.actor), self.model, optimizer)
        self.rollout = made_rollout(self.config.rollout, self.model)
        self.seen: dict[str, Any] = {}
        self.peaks: dict[str, list[float]] = {phase: [] for phase in PHASES}

    def generate_sequences(self, batch: Any) -> Any:
        batch.meta_info.update(eos_token_id=self.tokens.eos_token_id, pad_token_id=self.tokens.pad_token_id)
        with self._phase("gen"):
            made = self.rollout.generate_sequences(batch.to(self.args.device)).to("cpu")
        self.seen.setdefault("answers", made.batch["responses"])
        made.meta_info["timing"] = {}
        return made

    def compute_log_prob(self, batch: Any) -> Any:
        from verl import DataProto

        temperature = self.config.rollout.temperature
        batch.meta_info |= {"micro_batch_size": self.args.micro, "temperature": temperature, "use_dynamic_bsz": False}
        with self._phase("old_log_prob"):
            log_probs, entropys = self.actor.compute_log_prob(batch, calculate_entropy=True)
            log_probs, entropys = log_probs.cpu(), entropys.cpu()
        if "log_probs" not in self.seen:
            self.seen["log_probs"] = from_hugging_face(self.args, self.tokens, batch.batch, log_probs)
        tensors = {"old_log_probs": log_probs, "entropys": entropys}
        return DataProto.from_dict(tensors, meta_info={"temperature": temperature})

    def update_actor(self, batch: Any) -> Any:
        from verl import DataProto
        from verl.utils.skip_old_log_prob import move_entropys_to_batch

        with self._phase("update_actor"):
            output = DataProto(meta_info={"metrics": self.actor.update_policy(batch)})
        if "weights" not in self.seen:
            self.seen["weights"] = in_one_row([value.full_tensor() for value in self.model.state_dict().values()])
        return move_entropys_to_batch(output).to("cpu") if self.config.actor.skip_old_log_prob else output

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        """Its peak in GiB: what torch allocated on the GPU; on a CPU what the process has had in memory until then."""
        if self.args.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        yield
        on_cpu = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self.peaks[name].append(torch.cuda.max_memory_allocated() / 2**30 if self.args.device == "cuda" else on_cpu)


def in_one_row(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


@torch.no_grad()
def from_hugging_face(args: argparse.Namespace, tokens: Any, batch: Any, log_probs: torch.Tensor) -> dict[str, float]:
    """How far verl's log-probabilities are from those of the same weights in a plain transformers model, as a part of them: with
    bfloat16 where verl has it, the farthest; wholly in float32, the mean."""
    off, mask = {}, batch["response_mask"].bool()
    for kind in (torch.bfloat16, torch.float32):
        model = made_model(args, tokens).to(args.device)
        for weight in model.parameters():  # not the buffers: FSDP2 leaves them alone as well
            weight.data = weight.data.to(kind)
        parts = []
        for part in batch.select("input_ids", "attention_mask", "position_ids", "responses").split(args.micro):
            inputs = part.to(args.device)
            answers = inputs.pop("responses")
            with torch.autocast(args.device, dtype=torch.bfloat16, enabled=kind is torch.bfloat16):
                logits = model(**inputs).logits[:, -answers.shape[1] - 1 : -1].float()
            parts.append(logits.log_softmax(-1).gather(-1, answers.unsqueeze(-1)).squeeze(-1).cpu())
        theirs = torch.cat(parts)[mask]
        off[kind] = (theirs - log_probs[mask]).abs() / theirs.abs().clamp(min=1)
    return {"bfloat16": off[torch.bfloat16].max().item(), "float32": off[torch.float32].mean().item()}


def train(args: argparse.Namespace, skip: bool) -> dict[str, Any]:
    """One run: the mean reward of each step, medians of the steps after the first, which pays for what is done once, and what the
    workers have seen of the first."""
    import verl
    from hydra import compose, initialize_config_dir
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer, ResourcePoolManager
    from verl.trainer.ppo.reward import load_reward_manager
    from verl.trainer.ppo.utils import Role

    folder = args.out / ("on" if skip else "off")
    tokens = character_tokenizer(CHARACTERS, CHAT_TEMPLATE)
    tokens.save_pretrained(folder)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "metrics.jsonl")
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=settings(args, skip, folder))
    workers = Workers(config, args, tokens)
    pools = ResourcePoolManager({"pool": [1]}, {Role.ActorRollout: "pool"})
    trainer = RayPPOTrainer(
        config=config,
        tokenizer=tokens,
        role_worker_mapping={Role.ActorRollout: Workers},
        resource_pool_manager=pools,
        reward_fn=load_reward_manager(config, tokens, num_examine=0),
        device_name=args.device,
    )
    trainer.actor_rollout_wg, trainer.async_rollout_mode = workers, False
    torch.manual_seed(args.seed)
    trainer.fit()
    steps = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    later = steps[1:] or steps
    seconds = {
        name: [step[f"timing_s/{name}"] for step in later if f"timing_s/{name}" in step] for name in (*PHASES, "step")
    }
    seen = workers.seen | {name: steps[0][f"actor/{name}"] for name in ("grad_norm", "entropy")}
    return {
        "reward": [step["critic/score/mean"] for step in steps],
        "seconds": {name: statistics.median(values) for name, values in seconds.items() if values},
        "peak_gib": {name: statistics.median(values[1:] or values) for name, values in workers.peaks.items() if values},
        "tokens_per_s": statistics.median(step["perf/throughput"] for step in later),
        "seen": seen | {"count": workers.model.num_parameters()},
    }


def apart(args: argparse.Namespace, off: dict[str, Any], on: dict[str, Any]) -> dict[str, float]:
    """How far the first step is from itself: what is in CHECKED, and `moved`, the length of the step."""
    first = in_one_row(made_model(args, character_tokenizer(CHARACTERS, CHAT_TEMPLATE)).state_dict().values())
    moved = (off["weights"] - first).norm().item()
    found = {f"log_probs_{kind}": value for kind, value in off["log_probs"].items()}
    found["answers"] = (on["answers"] != off["answers"]).double().mean().item()
    found |= {name: abs(on[name] - off[name]) / (abs(off[name]) or 1.0) for name in ("grad_norm", "entropy")}
    return found | {"weights": (on["weights"] - off["weights"]).norm().item() / (moved or 1.0), "moved": moved}


def show(args: argparse.Namespace, found: dict[str, Any], allowed: dict[str, float]) -> None:
    print(
        f"\nmodel   Qwen3, {args.size}: {found['weights']:,} random weights, a vocabulary of {args.vocabulary}; {found['device']}"
    )
    print(f"a step  {args.prompts} sums, {args.samples} answers each of up to {args.answer} tokens, by {args.micro}\n")
    rows: list[tuple[str, ...]] = [("skip_old_log_prob", "off", "on")]
    off, on = found["off"], found["on"]
    for number, pair in enumerate(zip(off["reward"], on["reward"], strict=True), 1):
        rows.append((f"mean reward of step {number}", *(f"{reward:.3f}" for reward in pair)))
    for phase, name in {**PHASES, "step": "a whole step"}.items():
        rows.append(
            (name, *(f"{way['seconds'][phase]:.3f} s" if phase in way["seconds"] else "-" for way in (off, on)))
        )
        if phase in PHASES:
            peaks = (way["peak_gib"].get(phase) for way in (off, on))
            rows.append(("  its peak of memory", *("-" if peak is None else f"{peak:.2f} GiB" for peak in peaks)))
    rows.append(("tokens a second, with the sums'", *(f"{way['tokens_per_s']:,.0f}" for way in (off, on))))
    for name, *cells in rows:
        print(f"{name:34}{cells[0]:>14}{cells[1]:>14}")
    print("\nthe first step, apart:")
    for name, (text, *_) in CHECKED.items():
        print(f"  {text:74}{found['apart'][name]:.2g}, at most {allowed[name]:.2g}")


def main() -> int:
    args = argparse.Namespace(**json.loads(sys.argv[1]))
    args.out = Path(args.out)
    backend = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}[args.device]
    torch.distributed.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    found: dict[str, Any] = {}
    for name in ("off", "on"):
        found[name] = train(args, skip=name == "on")
        gc.collect()  # the model of the one is not to lie in the other's memory
    off, on = (found[name].pop("seen") for name in ("off", "on"))
    found |= {"apart": apart(args, off, on), "weights": off["count"]}
    threads = f"{torch.get_num_threads()} threads of a CPU"
    found["device"] = torch.cuda.get_device_name() if args.device == "cuda" else threads
    (args.out / "result.json").write_text(json.dumps(found, indent=1))
    allowed = {name: on_cpu if args.device == "cpu" else on_gpu for name, (_, on_cpu, on_gpu) in CHECKED.items()}
    show(args, found, allowed)
    torch.distributed.destroy_process_group()
    beyond = [name for name in CHECKED if not found["apart"][name] <= allowed[name]]
    if beyond:
        print(f"demo-gpu: beyond what is allowed: {', '.join(beyond)}", file=sys.stderr)
    return int(bool(beyond))


if __name__ == "__main__":
    sys.exit(main())
