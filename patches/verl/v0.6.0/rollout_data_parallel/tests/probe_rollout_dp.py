"""Probe: verl's workers and vLLMRollout with several data parallel ranks. Usage: probe_rollout_dp.py MODEL CASES

CASES is a JSON list of {"procs", "worker", "settings"}: a world of that many processes, whose ranks are verl's own
workers ("fsdp" or "megatron") with `settings` of the rollout. The prompts go through the dispatch and collect functions
that `generate_sequences` is registered with, as in verl's single controller. Prints a list, by case, of lists by rank.
"""

import dataclasses
import json
import os
import socket
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in the rank's process, which is prepared
npu_engine.prepare(device="A2")

import ray  # noqa: E402  (what imports vllm comes after the preparation)
import rollout_config  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import verl.workers.rollout.vllm_rollout.vllm_rollout_spmd as spmd  # noqa: E402
from probe_rollout_dp_ranks import run_world  # noqa: E402
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto  # noqa: E402
from verl.single_controller.base.decorator import MAGIC_ATTR  # noqa: E402
from verl.single_controller.base.worker_group import WorkerGroup  # noqa: E402

MODEL = sys.argv[1]
CASES = json.loads(sys.argv[2])
# Eight for every shard count that is tested, and five, which verl pads; no two begin alike.
PROMPTS = [[10 + 3 * index, 11, 12, 13 + index] * (1 + index % 3) for index in range(8)]
FEW = 5
VOCABULARY = 512
VARIABLES = ("VLLM_DP_SIZE", "VLLM_DP_RANK", "VLLM_DP_MASTER_IP", "VLLM_DP_MASTER_PORT")
# The first of the ports that vllm and seed 004 have for data parallel engines.
DEFAULT_PORT = 29500


class Recorder:
    """What this rank's LLM was given: names of arguments, the environment meanwhile, and the prompts of each call."""

    def __init__(self):
        self.arguments, self.environment, self.prompts, self.dummy_steps = [], {}, [], 0

    def install(self):
        recorder, llm = self, spmd.LLM

        class RecordedLLM(llm):
            def __init__(self, **arguments):
                recorder.arguments = sorted(arguments)
                recorder.environment = {key: os.environ[key] for key in VARIABLES if key in os.environ}
                super().__init__(**arguments)
                core = self.llm_engine.engine_core.engine_core
                execute = core.execute_dummy_batch

                def counted():
                    recorder.dummy_steps += 1
                    return execute()

                core.execute_dummy_batch = counted

            def generate(self, prompts, *args, **kwargs):
                recorder.prompts.append([list(one["prompt_token_ids"]) for one in prompts])
                return super().generate(prompts, *args, **kwargs)

        spmd.LLM = RecordedLLM


def quiet_padding():
    """Gives the rows that pad a rank to the longest one a defined content, zero.

    vllm makes attention's output with torch.empty and vllm-ascend fills the rows of real tokens only. What is left in
    the others reaches real tokens as 0 * x, when experts are exchanged by all-gather, which matters if x is NaN or
    infinite. It is the engine's own, whatever starts it, and not what is tested here; the feature's header names it
    under Risk.
    """
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackendImpl

    forward = AscendAttentionBackendImpl.forward

    def forward_into_zeros(self, layer, query, key, value, kv_cache, attn_metadata, output=None, *args, **kwargs):
        return forward(self, layer, query, key, value, kv_cache, attn_metadata, output.zero_(), *args, **kwargs)

    AscendAttentionBackendImpl.forward = forward_into_zeros


class SpmdGroup(WorkerGroup):
    """The ranks of this world as verl's single controller sees them; the controller is rank 0."""

    def __init__(self, worker):
        super().__init__(resource_pool=None)
        self._workers = list(range(dist.get_world_size()))
        self._shards = gathered(worker._query_dispatch_info("rollout"))
        self._collects = gathered(worker._query_collect_info("rollout"))

    def _query_dispatch_info(self, mesh_name):
        return self._shards

    def _query_collect_info(self, mesh_name):
        return self._collects


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def through_the_controller(worker, group, prompts):
    """Calls generate_sequences on all ranks; the collected output is on rank 0, None elsewhere."""
    mode = getattr(type(worker).generate_sequences, MAGIC_ATTR)["dispatch_mode"]
    sent, received = [None] * group.world_size, [None]
    if dist.get_rank() == 0:
        (shards,), _ = mode["dispatch_fn"](group, prompts)
        sent = [ray.get(one) for one in shards]
    dist.scatter_object_list(received, sent)
    outputs = gathered(worker.generate_sequences(received[0]))
    return mode["collect_fn"](group, outputs) if dist.get_rank() == 0 else None


def batch_of(prompts):
    rollout_config.PROMPTS = prompts
    return rollout_config.padded_prompts()


def fsdp_worker(config):
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    dist.init_process_group("gloo")  # the worker would ask for "cpu:gloo,cpu:nccl"
    worker = ActorRolloutRefWorker(config=config, role="rollout")
    worker.actor_module_fsdp = torch.nn.Identity()  # asked only whether it is sharded; nothing is trained here
    return worker


def megatron_worker(config):
    import verl.workers.megatron_workers as megatron_workers

    megatron_workers.get_nccl_backend = lambda: "gloo"
    worker = megatron_workers.ActorRolloutRefWorker(config=config, role="rollout")
    worker.bridge = True  # no weights are converted here
    return worker


def make_worker(kind, settings):
    for name in ("get_rng_state", "set_rng_state", "manual_seed"):
        setattr(torch.cpu, name, getattr(torch, name))  # verl asks the device's module, here torch.cpu
    for name in ("memory_reserved", "memory_allocated", "device_count"):
        setattr(torch.cpu, name, lambda *args: 0)
    torch.cpu.set_device = lambda *args: None
    config = rollout_config.compose_config(MODEL, trainer=TRAINERS[kind], **settings).actor_rollout_ref
    worker = {"fsdp": fsdp_worker, "megatron": megatron_worker}[kind](config)
    # Timings only: it gathers a scalar into one-element tensors, which NCCL and HCCL accept and gloo does not.
    sys.modules[type(worker).__module__].topk_reduce_ratio_min_max = lambda timing: (-1.0, -1.0, -1.0)
    worker.generation_config = None
    worker.tokenizer = rollout_config.model_config(MODEL).tokenizer
    worker._build_rollout()
    return worker


TRAINERS = {"fsdp": "ppo_trainer", "megatron": "ppo_megatron_trainer"}


def placement(recorder, worker):
    """Where verl and vllm put this rank."""
    from vllm import envs
    from vllm.distributed.parallel_state import get_dp_group, get_ep_group, get_tp_group

    parallel = worker.rollout.inference_engine.llm_engine.vllm_config.parallel_config
    moe = worker.rollout.inference_engine.llm_engine.model_executor.driver_worker.worker.model_runner.model.model
    return {
        "shard": worker._query_dispatch_info("rollout"),
        "collect": worker._query_collect_info("rollout"),
        "arguments": recorder.arguments,
        "environment": recorder.environment,
        "left": {key: os.environ[key] for key in VARIABLES if key in os.environ},
        "remembered": envs.VLLM_DP_SIZE,
        "size_rank": [parallel.data_parallel_size, parallel.data_parallel_rank],
        "groups": [list(group().ranks) for group in (get_dp_group, get_tp_group, get_ep_group)],
        "experts": moe.layers[0].mlp.experts.local_num_experts,
        "expert_parallel": parallel.enable_expert_parallel,
        "seed": int(torch.Generator().set_state(worker.gen_random_states).initial_seed()),
    }


def misplaced(worker):
    """What is said of an engine whose ranks are others than those that verl sends prompts to."""
    from verl.workers.rollout import data_parallel

    group = data_parallel.engine_group(worker.config.rollout, dist.get_rank(), dist.get_world_size())
    engine, said = worker.rollout.inference_engine, []
    others = {"dp_rank": (group.dp_rank + 1) % group.dp_size, "dp_size": 2 * group.dp_size, "index": group.index + 1}
    for other in [{}, *({name: value} for name, value in others.items())]:
        try:
            data_parallel.check_engine(engine, dataclasses.replace(group, **other))
            said.append(None)
        except RuntimeError as error:
            said.append(str(error))
    return said


def busy_port():
    """Keeps the first default port in use; it may be somebody else's already, which does as well."""
    try:
        return socket.create_server(("", DEFAULT_PORT))
    except OSError:
        return None


def run_case(case):
    recorder = Recorder()
    recorder.install()
    quiet_padding()
    listener = busy_port()
    worker = make_worker(case["worker"], case["settings"])
    result = placement(recorder, worker) | {"misplaced": misplaced(worker)}
    if listener:
        listener.close()
    groups = len(dist.distributed_c10d._world.pg_map)
    group = SpmdGroup(worker)
    if dist.get_rank() == 0:
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100 << 20)
    output = through_the_controller(worker, group, batch_of(PROMPTS))
    result["prompts"] = recorder.prompts[-1]
    padded, pad_size = pad_dataproto_to_divisor(batch_of(PROMPTS[:FEW]), group.world_size)
    few = through_the_controller(worker, group, padded)
    if dist.get_rank() == 0:
        ray.shutdown()
        few = unpad_dataproto(few, pad_size=pad_size)
        result["tokens"] = [tokens(one) for one in (output, few)]
    result["uneven"] = uneven_load(worker.rollout, recorder)
    result["groups_made_later"] = len(dist.distributed_c10d._world.pg_map) - groups
    dist.barrier()
    dist.destroy_process_group()
    return result


def uneven_load(rollout, recorder):
    """Data parallel rank 0 has one prompt and stops after its first token; the others have three and go on."""
    parallel = rollout.inference_engine.llm_engine.vllm_config.parallel_config
    first = parallel.data_parallel_rank == 0
    mine = [0] if first else [1, 2, 3]
    before = recorder.dummy_steps
    if first:
        rollout.sampling_params.stop_token_ids = list(range(VOCABULARY))
    out = rollout.generate_sequences(batch_of([PROMPTS[index] for index in mine]))
    return {"prompts": mine, "tokens": tokens(out), "dummy_steps": recorder.dummy_steps - before}


def tokens(output):
    """Responses without padding."""
    mask = output.batch["attention_mask"][:, rollout_config.PROMPT_LENGTH :].bool()
    return [ids[kept].tolist() for ids, kept in zip(output.batch["responses"], mask, strict=True)]


def hf_tokens():
    from transformers import AutoModelForCausalLM

    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    return [rollout_config.greedy_tokens(hf, prompt, rollout_config.RESPONSE_LENGTH) for prompt in PROMPTS]


def main():
    worlds = [run_world(case["procs"], lambda rank, case=case: run_case(case)) for case in CASES]
    print(json.dumps({"hf": hf_tokens(), "prompts": PROMPTS, "worlds": worlds}))


main()
