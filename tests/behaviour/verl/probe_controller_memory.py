"""Probe: what verl's controller receives in a step, over a real Ray with four workers, in bytes a call.

Usage: probe_controller_memory.py MODEL fsdp|megatron [KEY=VALUE ...]

Real: Ray, RayWorkerGroup, the dispatch and collect functions that the workers' methods are registered with, the worker classes'
own generate_sequences, compute_log_prob, compute_ref_log_prob and update_actor, DataProto's serialisation, Megatron's
groups of ranks. FSDP: verl's actor over a tiny model. Megatron: a stand-in of the actor answers with the tensors that
MegatronPPOActor has on every stage (log-probabilities and entropies are broadcast to all, an update's entropies are on the
last). Bytes are those of the objects in Ray's store. Written as JSON: for each call the replies' bytes and those of their
tensors, and the sizes of the run.
"""

import json
import os
import sys

import ray
import torch

DEVICES, INNER = 4, 2  # devices, and how many of them work on one part of the batch
PROMPT, RESPONSE, ROWS = 32, 256, 32
RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def in_process():
    """trainer_in_process, which names one process and its rank when it is imported: Ray's workers keep their own."""
    own = {name: os.environ[name] for name in RANKS if name in os.environ}
    import trainer_in_process

    for name in RANKS:
        os.environ.pop(name)
    os.environ.update(own)
    return trainer_in_process


def without_a_device(base):
    """What a worker asks of its device and of HCCL beside the answers: memory for the log, and timings over all ranks."""
    torch.cpu.mem_get_info = lambda: (0, 1)
    module = sys.modules[base.__module__]
    module.reduce_timing = lambda timing: timing
    module.topk_reduce_ratio_min_max = lambda seconds: (0.0, seconds, seconds)


def mixin(base):
    """verl's worker class on a CPU: its own methods, with what `__init__` and `init_model` set where those need a device."""

    class OnCpu(base):
        def __init__(self, config):
            from verl.single_controller.base import Worker

            in_process()
            without_a_device(base)
            Worker.__init__(self)
            torch.distributed.init_process_group("gloo")
            self.make_groups()
            rollout_dp = self.rank // INNER
            self._register_dispatch_collect_info("rollout", dp_rank=rollout_dp, is_collect=self.rank % INNER == 0)
            self.prepare(config)

        async def rollout_mode(self):
            pass

        async def trainer_mode(self):
            pass

    return OnCpu


def fsdp_worker():
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    class FsdpReplies(mixin(ActorRolloutRefWorker)):
        def make_groups(self):
            from torch.distributed import init_device_mesh

            mesh = init_device_mesh("cpu", (DEVICES // INNER, INNER), mesh_dim_names=["dp", "sp"])
            is_collect = mesh["sp"].get_local_rank() == 0
            self._register_dispatch_collect_info("actor", dp_rank=mesh["dp"].get_local_rank(), is_collect=is_collect)

        def prepare(self, config):
            from transformers import AutoModelForCausalLM

            config.actor.ppo_mini_batch_size = config.actor.ppo_mini_batch_size // (DEVICES // INNER)
            model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
            made = in_process()._fsdp_worker(config, model)
            self.__dict__.update({k: v for k, v in vars(made).items() if k not in self.__dict__})
            self._is_rollout = True
            self.generation_config = None
            self.tokenizer = Tokenizer
            self.rollout = in_process()._hf_rollout(config.rollout, model)
            self.rollout.generate_sequences = lambda prompts: self.rollout._generate_minibatch(prompts)

    return FsdpReplies


def megatron_worker():
    from verl.workers.megatron_workers import ActorRolloutRefWorker

    class MegatronReplies(mixin(ActorRolloutRefWorker)):
        def make_groups(self):
            from megatron.core import parallel_state as mpu

            mpu.initialize_model_parallel(pipeline_model_parallel_size=INNER)
            last = mpu.get_pipeline_model_parallel_rank() == INNER - 1
            self._register_dispatch_collect_info("actor", dp_rank=mpu.get_data_parallel_rank(), is_collect=last)
            self.last_stage = last

        def prepare(self, config):
            from transformers import AutoModelForCausalLM

            self.config, self.generation_config, self.tokenizer = config, None, Tokenizer
            self._is_actor = self._is_rollout = self._is_ref = True
            self._is_offload_param = self._is_offload_optimizer = self._ref_is_offload_param = False
            model = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
            self.rollout = in_process()._hf_rollout(config.rollout, model)
            self.rollout.generate_sequences = lambda prompts: self.rollout._generate_minibatch(prompts)
            self.actor = self.ref_policy = MegatronActor(self.last_stage, config.actor.get("skip_old_log_prob", False))
            self.flops_counter = Flops
            self.actor_optimizer = Optimizer
            self.actor_optimizer_scheduler = Optimizer

    return MegatronReplies


class Tokenizer:
    eos_token_id, pad_token_id = 2, 0


class Flops:
    @staticmethod
    def estimate_flops(tokens, seconds):
        return 1.0, 1.0


class Optimizer:
    """What update_actor asks of a Megatron optimizer and its scheduler."""

    param_groups = ({"lr": 1e-6},)

    @staticmethod
    def step(count):
        pass


class MegatronActor:
    """MegatronPPOActor's answers, by shape and kind."""

    def __init__(self, last_stage, skips):
        self.last_stage, self.skips = last_stage, skips

    def compute_log_prob(self, data, calculate_entropy=False):
        shape = data.batch["responses"].shape
        return torch.zeros(shape), torch.zeros(shape) if calculate_entropy else torch.Tensor()

    def make_minibatch_iterator(self, data):
        self.data = data
        return []

    def update_policy(self, dataloader):
        entropys = torch.zeros(self.data.batch["responses"].shape)
        return {"actor/pg_loss": [0.0], **({"entropys": entropys} if self.skips and self.last_stage else {})}


class Watched:
    """Counts what `ray.get` of a worker group's call brings."""

    def __init__(self):
        self.get, self.calls, self.now = ray.get, {}, None
        ray.get = self

    def __call__(self, refs, **options):
        no_call = self.now is None or not isinstance(refs, list)
        if no_call or not hasattr(self.get(refs[0]), "batch"):  # no call, or one that asks who has which part
            return self.get(refs, **options)
        ray.wait(refs, num_returns=len(refs), fetch_local=True)
        told = ray.experimental.get_object_locations(refs)
        found = self.get(refs, **options)
        self.calls[self.now] = {
            "replies": len(refs),
            "bytes": sum(told[ref]["object_size"] for ref in refs),
            "tensors": sum(_tensor_bytes(reply) for reply in found),
        }
        return found

    def call(self, name, function, data):
        self.now = name
        try:
            return function(data)
        finally:
            self.now = None


def _tensor_bytes(reply):
    if reply.batch is None:
        return 0
    return sum(t.element_size() * t.numel() for t in reply.batch.values())


def prompts():
    from verl import DataProto

    ids = torch.randint(3, 400, (ROWS, PROMPT))
    positions = torch.arange(PROMPT).expand(ROWS, -1).contiguous()
    tensors = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": positions}
    return DataProto.from_dict(tensors)


def step(group, watched, skip):
    """The calls of a step in the trainer's order, with what it puts into the batch between them."""
    batch = watched.call("generate_sequences", group.generate_sequences, prompts())
    batch.meta_info.pop("timing", None)
    batch.batch["response_mask"] = batch.batch["attention_mask"][:, PROMPT:]
    batch.meta_info["global_token_num"] = [PROMPT + RESPONSE] * ROWS
    if skip:
        batch.meta_info["temperature"] = 1.0
    else:
        batch = batch.union(watched.call("compute_log_prob", group.compute_log_prob, batch))
        batch.batch.pop("entropys")
    batch = batch.union(watched.call("compute_ref_log_prob", group.compute_ref_log_prob, batch))
    scores = torch.zeros((ROWS, RESPONSE))
    for name in ("token_level_scores", "token_level_rewards", "advantages", "returns"):
        batch.batch[name] = scores
    watched.call("update_actor", group.update_actor, batch)


def main():
    from omegaconf import OmegaConf
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.single_controller.ray.base import create_colocated_worker_cls

    model, kind, *overrides = sys.argv[1:]
    rows = f"actor_rollout_ref.actor.ppo_mini_batch_size={ROWS}"
    response = f"data.max_response_length={RESPONSE}"
    config = in_process().compose_config(
        model,
        rows,
        response,
        "actor_rollout_ref.rollout.n=1",
        *overrides,
        name="ppo_trainer" if kind == "fsdp" else "ppo_megatron_trainer",
    )
    OmegaConf.resolve(config)
    worker = fsdp_worker() if kind == "fsdp" else megatron_worker()
    ray.init(num_cpus=DEVICES, include_dashboard=False, log_to_driver=False, object_store_memory=200 << 20)
    try:
        made = RayClassWithInitArgs(ray.remote(worker), config=config.actor_rollout_ref)
        pool = RayResourcePool([DEVICES], use_gpu=False, max_colocate_count=1)
        colocated = create_colocated_worker_cls({"actor": made})  # as the trainer makes it: no actor of asyncio's
        group = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=colocated).spawn(["actor"])["actor"]
        watched = Watched()
        skip = bool(config.actor_rollout_ref.actor.get("skip_old_log_prob", False))
        step(group, watched, skip)
    finally:
        ray.shutdown()
    sizes = {"devices": DEVICES, "inner": INNER, "prompt": PROMPT, "response": RESPONSE, "rows": ROWS}
    print(json.dumps({"calls": watched.calls, **sizes}))


if __name__ == "__main__":
    main()
