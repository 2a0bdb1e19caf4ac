#!/usr/bin/env python3
"""The trainer's half of a GRPO run in one process, with skip_old_log_prob off and on; scripts/demo/gpu.py starts it.

Upstream's own, from the patched tree on PYTHONPATH: verl's configuration and its check, RLHFDataset, PPOTrainerSync.fit with
its replay buffer, advantages and metrics, ActorRolloutRefWorker with the FSDP2 engine, the reward manager, HFRollout; the model
is transformers' Qwen3. Three small classes are not: `Queue` takes the place of TransferQueue's servers, `Workers` that of Ray's
worker group, `AgentLoop` that of verl's agent loops and the inference servers behind them. No stand-in is loaded, on a GPU or a CPU.

It is given its settings as JSON, and writes OUT/result.json. Exit status: 0; 1 where something that has to be equal is not.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import os
import resource
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")

import numpy as np
import torch

if os.environ.get("VERL_PLATFORM") == "cpu":
    import cpu_platform  # noqa: F401  (before all else of verl's)

import transfer_queue
import verl
from hydra import compose, initialize_config_dir
from tensordict import NonTensorStack, TensorDict
from tiny_model import CHARACTERS, CHAT_TEMPLATE, character_tokenizer
from transfer_queue import KVBatchMeta
from transformers import Qwen3Config, Qwen3ForCausalLM
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.trainer.ppo.reward import load_reward_manager
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.skip_old_log_prob import check_configuration
from verl.workers.engine_workers import ActorRolloutRefWorker
from verl.workers.rollout.hf_rollout import HFRollout
from verl.workers.utils.padding import response_from_nested

REWARDS = Path(__file__).resolve().parents[1] / "rewards" / "sums.py"
PHASES = {"gen": "rollout", "old_log_prob": "old log-probabilities", "update_actor": "update of the actor"}
# Compared after the first step, relative to the value, with the tolerance on a CPU and on a GPU. bfloat16 has eight bits: 0.016 of 3.
# A CPU computes the same twice; a GPU takes sums in another order from run to run, and Adam's first step makes a whole step of the
# sign of what is near 0. The entropy is averaged by another function with the switch on, in another order.
CHECKED = {
    "log_probs_bfloat16": ("log-probabilities, verl's from transformers' in bfloat16, the farthest", 0.02, 0.05),
    "log_probs_float32": ("log-probabilities, verl's from transformers' in float32, the mean", 0.01, 0.02),
    "answers": ("tokens of the answers, off from on", 0.0, 0.0),
    "grad_norm": ("gradient norm, off from on", 0.0, 0.01),
    "entropy": ("entropy, off from on", 1e-5, 0.01),
    "weights": ("weights after the step, off from on, as a part of the step", 0.0, 0.1),
}


def settings(args: argparse.Namespace, skip: bool, folder: Path) -> list[str]:
    """Overrides of verl's ppo_trainer: those of the recipe demo/grpo, except for its engine and its two workers."""
    data = f"""
        train_files={args.out}/data/train.parquet val_files={args.out}/data/test.parquet train_batch_size={args.prompts}
        max_prompt_length=8 max_response_length={args.answer} truncation=error dataloader_num_workers=0 seed={args.seed}"""
    # flash_attn is not needed without padding removal and with torch's own attention.
    parts = f"""
        model.path={folder} model.use_remove_padding=False rollout.name=vllm rollout.n={args.samples}
        rollout.log_prob_micro_batch_size_per_gpu={args.micro} rollout.calculate_log_probs=False actor.strategy=fsdp2
        actor.optim.lr={args.lr} actor.ppo_mini_batch_size={args.prompts} actor.ppo_micro_batch_size_per_gpu={args.micro}
        actor.use_torch_compile=False actor.skip_old_log_prob={skip}"""
    trainer = f"""
        device={args.device} nnodes=1 n_gpus_per_node=1 logger=[file] total_epochs=1000 total_training_steps={args.steps}
        val_before_train=False test_freq=-1 save_freq=-1 resume_mode=disable"""
    words = [f"reward.custom_reward_function.path={REWARDS}", "reward.custom_reward_function.name=compute_score"]
    words += ["algorithm.adv_estimator=grpo", "+actor_rollout_ref.model.override_config.attn_implementation=sdpa"]
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


class Queue:
    """In place of TransferQueue's servers: tags and fields of every key, in this process."""

    def __init__(self) -> None:
        self.tags: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
        self.fields: dict[str, dict[str, Any]] = defaultdict(dict)
        for name in ("kv_batch_get", "kv_batch_put", "kv_list", "kv_clear"):
            setattr(transfer_queue, name, getattr(self, name))

    def kv_batch_put(
        self,
        keys: list[str],
        partition_id: str,
        fields: TensorDict | None = None,
        tags: list[dict[str, Any]] | None = None,
    ) -> KVBatchMeta:
        for key, tag in zip(keys, tags or [{}] * len(keys), strict=True):
            self.tags[partition_id].setdefault(key, {}).update(tag)
        for name, values in fields.items() if fields is not None else ():
            rows = values.unbind() if isinstance(values, torch.Tensor) else values.tolist()
            for key, row in zip(keys, rows, strict=True):
                self.fields[key][name] = row
        return KVBatchMeta(keys=keys, tags=[self.tags[partition_id][key] for key in keys], partition_id=partition_id)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> TensorDict:
        first = self.fields[keys[0]]
        names = [name for name in select_fields or first if name in first]
        return in_one([{name: self.fields[key][name] for name in names} for key in keys])

    def kv_list(self, partition_id: str | None = None) -> dict[str, dict[str, dict[str, Any]]]:
        return {name: dict(tags) for name, tags in self.tags.items()}

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.tags[partition_id].pop(key, None)
            self.fields.pop(key, None)


def in_one(rows: list[dict[str, Any]]) -> TensorDict:
    """As TransferQueue returns rows: sequences are nested, also where all have one length."""

    def column(values: list[Any]) -> Any:
        if not isinstance(values[0], torch.Tensor):
            return NonTensorStack(*values)
        return torch.nested.as_nested_tensor(values, layout=torch.jagged) if values[0].dim() else torch.stack(values)

    return TensorDict({name: column([row[name] for row in rows]) for name in rows[0]}, batch_size=len(rows))


class Workers:
    """In place of Ray's worker group: the worker of this process. `seen` has what is compared afterwards."""

    def __init__(self, config: Any, args: argparse.Namespace, tokens: Any, queue: Queue) -> None:
        self.args, self.tokens, self.queue = args, tokens, queue
        self.worker = ActorRolloutRefWorker(config.actor_rollout_ref, "actor")
        self.worker.init_model()
        self.module = self.worker.actor.engine.module
        self._dispatch_info = {"actor": [0]}
        self.seen: dict[str, Any] = {}
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.peaks: dict[str, list[float]] = defaultdict(list)

    def compute_log_prob(self, batch: KVBatchMeta) -> KVBatchMeta:
        data = self._data(batch)
        with self.phase("old_log_prob"):
            output = self.worker.compute_log_prob(data)
        if "log_probs" not in self.seen:
            self.seen["log_probs"] = from_hugging_face(self.args, self.tokens, data, output["log_probs"])
        return self.queue.kv_batch_put(batch.keys, batch.partition_id, output.select("log_probs", "entropy"))

    def update_actor(self, batch: KVBatchMeta) -> TensorDict:
        data = self._data(batch)
        with self.phase("update_actor"):
            output = self.worker.update_actor(data)
        if "weights" not in self.seen:
            self.seen["weights"] = in_one_row(value.full_tensor() for value in self.module.state_dict().values())
        return output

    def _data(self, batch: KVBatchMeta) -> TensorDict:
        data = self.queue.kv_batch_get(batch.keys, batch.partition_id)
        tu.assign_non_tensor(data, **batch.extra_info)
        return data

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Its seconds, and its peak in GiB: what torch allocated on the GPU; on a CPU the process's largest resident size so far."""
        on_gpu = self.args.device == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        yield
        if on_gpu:
            torch.cuda.synchronize()
        self.seconds[name].append(time.perf_counter() - began)
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        self.peaks[name].append(torch.cuda.max_memory_allocated() / 2**30 if on_gpu else resident)


class Rollout(HFRollout):
    """HFRollout is abstract: its base class got methods, and an __init__, that it was not given. It generates with the actor's
    own weights, so they have nothing to do."""

    def __init__(self, module: Any, config: Any) -> None:
        self.module, self.config = module, config

    async def resume(self, tags: list[str]) -> None: ...

    async def update_weights(self, weights: Any, wire_format: str = "named_tensors", **settings: Any) -> None: ...

    async def release(self) -> None: ...


class AgentLoop:
    """In place of verl's agent loops and their servers: a whole batch at once, by HFRollout with the actor's own weights."""

    def __init__(self, config: Any, workers: Workers, tokens: Any) -> None:
        self.config, self.workers, self.tokens = config, workers, tokens
        self.rollout = Rollout(workers.module, config.actor_rollout_ref.rollout)
        self.reward_manager = load_reward_manager(config, tokens)

    def generate_sequences(self, batch: TensorDict) -> None:
        """Answer each prompt, score the answers, and put both into the queue, under verl's keys and tags."""
        samples = self.config.actor_rollout_ref.rollout.n
        prompts = [
            prompt
            for prompt in batch.select("uid", "raw_prompt", "reward_model", "data_source")
            for _ in range(samples)
        ]
        texts = [self.tokens.apply_chat_template(prompt["raw_prompt"], tokenize=False) for prompt in prompts]
        inputs = self.tokens(texts, padding=True, padding_side="left", add_special_tokens=False, return_tensors="pt")
        positions = (inputs["attention_mask"].cumsum(1) - 1).clamp(min=0)
        made = self._answers(TensorDict({**inputs, "position_ids": positions}, batch_size=len(prompts)))
        self.workers.seen.setdefault("answers", made.batch["responses"])
        scores = self._scores(made, prompts)
        rows = [as_queued(*one) for one in zip(made.batch, prompts, scores, strict=True)]
        keys = [f"{prompt['uid']}_{number % samples}_0" for number, prompt in enumerate(prompts)]
        step = batch["global_steps"]
        tags = [
            {"seq_len": len(one["input_ids"]), "min_global_steps": step - 1, "max_global_steps": step - 1}
            for one in rows
        ]
        queue = self.workers.queue
        queue.kv_batch_put(keys, "train", in_one(rows), tags)
        queue.kv_batch_put(list(batch["uid"]), "train", tags=[{"status": "finished"}] * len(batch))

    def _answers(self, inputs: TensorDict) -> DataProto:
        ends = {"eos_token_id": self.tokens.eos_token_id, "pad_token_id": self.tokens.pad_token_id}
        with self.workers.phase("gen"):
            return self.rollout.generate_sequences(DataProto(inputs, meta_info=ends).to(self.workers.args.device)).to(
                "cpu"
            )

    def _scores(self, made: DataProto, prompts: list[Any]) -> list[float]:
        """The reward manager's, which takes one answer at a time."""
        for name in ("data_source", "reward_model"):
            made.non_tensor_batch[name] = objects([prompt[name] for prompt in prompts])
        manager = self.reward_manager

        async def all_of_them() -> Any:
            return await asyncio.gather(*(manager.run_single(made[at : at + 1]) for at in range(len(made))))

        return [found["reward_score"] for found in manager.loop.run_until_complete(all_of_them())]


def objects(values: list[Any]) -> Any:
    """One-dimensional, whatever the values are."""
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


def as_queued(answer: TensorDict, prompt: TensorDict, score: float) -> dict[str, Any]:
    """The fields that verl's agent loop puts into the queue: nothing is padded."""
    is_token, length = answer["attention_mask"].bool(), len(answer["prompts"])
    prompt_ids, response_ids = answer["prompts"][is_token[:length]], answer["responses"][is_token[length:]]
    output = AgentLoopOutput(
        prompt_ids=prompt_ids.tolist(),
        response_ids=response_ids.tolist(),
        response_mask=[1] * len(response_ids),
        reward_score=score,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={},
    )
    fields = {name: torch.as_tensor(value) for name, value in output.as_dict().items() if not isinstance(value, dict)}
    input_ids = torch.cat([prompt_ids, response_ids])
    more = {"input_ids": input_ids, "position_ids": torch.arange(len(input_ids)), "loss_mask": fields["response_mask"]}
    return fields | more | {"uid": prompt["uid"]}


class Trainer(PPOTrainerSync):
    """verl's trainer, with the three above where it would start Ray, servers and TransferQueue."""

    def __init__(self, config: Any, args: argparse.Namespace) -> None:
        super().__init__(config)
        self._init_tokenizer()
        self._init_dataloader()
        self._init_dump_executor()
        self.actor_rollout_wg = Workers(self.config, args, self.tokenizer, Queue())
        # Rewards come with the answers, as with a reward function in verl's agent loop.
        self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
        self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 1)
        self.global_steps = 0

    def on_sample_end(self) -> None:
        """No server has to sleep."""

    def on_step_end(self) -> None:
        """Nothing to send: the rollout has the actor's own weights."""


def in_one_row(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.cpu().flatten() for tensor in tensors])


@torch.no_grad()
def from_hugging_face(
    args: argparse.Namespace, tokens: Any, data: TensorDict, log_probs: torch.Tensor
) -> dict[str, float]:
    """How far verl's log-probabilities are from those of the same weights in a plain transformers model, relative to them: with
    bfloat16 where verl has it, the farthest; wholly in float32, the mean."""
    off, found = {}, response_from_nested(log_probs, data["response_mask"]).values()
    for kind in (torch.bfloat16, torch.float32):
        model = made_model(args, tokens).to(args.device)
        for weight in model.parameters():  # not the buffers: FSDP2 leaves them alone as well
            weight.data = weight.data.to(kind)
        rows: list[torch.Tensor] = []
        for part in batches(data["input_ids"].unbind(), args.micro):
            lengths = torch.tensor([len(row) for row in part])
            padded = torch.nn.utils.rnn.pad_sequence(part, batch_first=True, padding_value=tokens.pad_token_id).to(
                args.device
            )
            mask = (torch.arange(padded.shape[1]) < lengths[:, None]).long().to(args.device)
            with torch.autocast(args.device, dtype=torch.bfloat16, enabled=kind is torch.bfloat16):
                logits = model(input_ids=padded, attention_mask=mask).logits.float()
            theirs = logits[:, :-1].log_softmax(-1).gather(-1, padded[:, 1:, None]).squeeze(-1).cpu()
            rows += [
                torch.cat([row[: length - 1], row.new_zeros(1)]) for row, length in zip(theirs, lengths, strict=True)
            ]
        whole = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
        theirs = response_from_nested(whole, data["response_mask"]).values()
        off[kind] = (theirs - found).abs() / theirs.abs().clamp(min=1)
    return {"bfloat16": off[torch.bfloat16].max().item(), "float32": off[torch.float32].mean().item()}


def batches(rows: Sequence[torch.Tensor], size: int) -> list[Sequence[torch.Tensor]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


def train(args: argparse.Namespace, skip: bool) -> dict[str, Any]:
    """One run: the mean reward of each step, medians of the steps after the first, which pays for what is done once, and what the
    workers have seen of the first."""
    folder = args.out / ("on" if skip else "off")
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["VERL_FILE_LOGGER_PATH"] = str(folder / "metrics.jsonl")
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        config = compose("ppo_trainer", overrides=settings(args, skip, args.out / "model"))
    check_configuration(config)
    torch.manual_seed(args.seed)
    trainer = Trainer(config, args)
    workers = trainer.actor_rollout_wg
    trainer.fit(AgentLoop(trainer.config, workers, trainer.tokenizer))
    steps = [json.loads(line)["data"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    later = steps[1:] or steps
    seconds = {**workers.seconds, "step": [step["timing_s/step"] for step in steps]}
    seen = workers.seen | {name: steps[0][f"actor/{name}"] for name in ("grad_norm", "entropy")}
    return {
        "reward": [step["critic/score/mean"] for step in steps],
        "seconds": {name: statistics.median(values[1:] or values) for name, values in seconds.items()},
        "peak_gib": {name: statistics.median(values[1:] or values) for name, values in workers.peaks.items()},
        "tokens_per_s": statistics.median(step["perf/throughput"] for step in later),
        "seen": seen | {"count": workers.module.num_parameters()},
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
    tokens = character_tokenizer(CHARACTERS, CHAT_TEMPLATE)
    tokens.save_pretrained(args.out / "model")
    made_model(args, tokens).save_pretrained(args.out / "model")
    backend = {"cuda": "cpu:gloo,cuda:nccl", "cpu": "gloo"}[args.device]
    torch.distributed.init_process_group(backend, init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    gc.freeze()  # on a CPU the engine collects garbage after every pass, and would look through all that is imported
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
