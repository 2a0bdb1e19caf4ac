"""Probe: three rollouts of vLLMRollout between updates, experts spread over two ranks. Usage: MODEL on|off

The ranks are data parallel, with loads of their own: the second has one prompt, ends early, and takes part with dummy
batches from then on. The rollout, its engine, planner processes and the exchange of experts are real; calls of the rollout to the engine are
recorded on their way. Weights change before each rollout, and sleep discards what sleep mode at level 2 discards.
"""

import asyncio
import json
import os
import sys
from dataclasses import fields

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from omegaconf import OmegaConf, open_dict  # noqa: E402
from probe_eplb_common import Engine, children, gather_as_hccl, refusal  # noqa: E402
from rollout_config import EOS, PROMPTS, compose_config, disturbed, model_config, padded_prompts  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402

MODEL, ON = sys.argv[1], sys.argv[2] == "on"
RANKS = int(os.environ["WORLD_SIZE"])
RANK = int(os.environ["RANK"])
RESPONSE = 40
LENGTH = RESPONSE if RANK == 0 else 11
MINE = PROMPTS[RANK:]
# The user's own: two intervals of the balancing, and a key that has nothing to do with it.
ADDITIONAL = {
    "enable_cpu_binding": False,
    "eplb_config": {"expert_heat_collection_interval": 4, "algorithm_execution_interval": 2},
}


def make_rollout():
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import RolloutConfig
    from verl.workers.rollout.base import get_rollout_class

    settings = {"tensor_model_parallel_size": 1, "data_parallel_size": RANKS, "expert_parallel_size": RANKS}
    settings |= {"response_length": RESPONSE}
    settings |= {"eplb_lifecycle": True} if ON else {}
    settings |= {"moe_update_weights": True} if processes_experts() else {}
    config = compose_config(MODEL, **settings).actor_rollout_ref.rollout
    with open_dict(config):
        config.engine_kwargs.vllm = {"additional_config": ADDITIONAL}
    config = omega_conf_to_dataclass(config, dataclass_type=RolloutConfig)
    rollout = get_rollout_class("vllm", "sync")(config, model_config(MODEL), device_mesh=None)
    rollout.sampling_params.max_tokens = LENGTH
    return rollout


def processes_experts():
    """Whether the rollout itself processes expert weights after an update: the patch moe_update_weights."""
    from verl.workers.config import RolloutConfig

    return "moe_update_weights" in {field.name for field in fields(RolloutConfig)}


class Recorded:
    """Records an engine's calls, with the answer when there is one; each is made."""

    def __init__(self, rollout):
        self.calls = []
        self.engine = Engine(rollout.inference_engine)
        for name in ("collective_rpc", "generate", "sleep", "wake_up"):
            setattr(rollout.inference_engine, name, self._recorded(name, getattr(rollout.inference_engine, name)))

    def _recorded(self, name, call):
        def recorded(*args, **kwargs):
            index = len(self.calls)
            self.calls.append(args[0] if name == "collective_rpc" else name)
            answer = call(*args, **kwargs)
            if name == "collective_rpc" and answer[0]:
                self.calls[index] = [args[0], sorted(answer[0]), answer[0].get("moved_experts", 0) > 0]
            if name == "sleep" and ON:
                self.engine.discard_what_sleep_discards()
            return answer

        # inspect.signature must find wake_up's own parameters: the rollout asks for them.
        recorded.__wrapped__ = call
        return recorded


async def update(rollout, hf, engine):
    """As the workers do between training and generation."""
    await rollout.resume(tags=["weights"])
    await rollout.update_weights(iter(hf.state_dict().items()))
    if not processes_experts():
        engine.process_weights()
    await rollout.resume(tags=["kv_cache"])


def responses(rollout):
    ids = rollout.generate_sequences(padded_prompts()[RANK:]).batch["responses"].tolist()
    return [row[: row.index(EOS) + 1] if EOS in row else row[:LENGTH] for row in ids]


def greedy(hf):
    out = []
    for prompt in MINE:
        ids = hf.generate(torch.tensor([prompt]), max_new_tokens=LENGTH, do_sample=False, eos_token_id=EOS)
        out.append(ids[0, len(prompt) :].tolist())
    return out


def one_rollout(rollout, recorded, hf):
    disturbed(hf)
    asyncio.run(update(rollout, hf, recorded.engine))
    out = {"tokens": responses(rollout), "hf": greedy(hf)}
    asyncio.run(rollout.release())  # training begins
    return out | {"resources": recorded.engine.resources(), "balancing": recorded.engine.runner.dynamic_eplb}


def failing_generation(rollout, recorded, hf):
    asyncio.run(update(rollout, hf, recorded.engine))

    def fail(*args, **kwargs):
        raise RuntimeError(f"generation fails with {children()} processes")

    generate, rollout.inference_engine.generate = rollout.inference_engine.generate, fail
    raised = refusal(responses, rollout)
    rollout.inference_engine.generate = generate
    return {"raised": raised, "children": children(), "balancing": recorded.engine.runner.dynamic_eplb}


def main():
    dist.init_process_group("gloo")
    gather_as_hccl()
    before = children()
    rollout = make_rollout()
    recorded = Recorded(rollout)
    seen = rollout.inference_engine.llm_engine.vllm_config.additional_config
    result = {"additional_config": OmegaConf.to_container(OmegaConf.create(seen)), "given": ADDITIONAL}
    asyncio.run(rollout.release())  # as the worker does once its engine is there
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    result["rollouts"] = [one_rollout(rollout, recorded, hf) for _ in range(3)]
    result |= {"calls": list(recorded.calls), "children_before": before}
    result["module"] = "verl.workers.rollout.eplb_lifecycle" in sys.modules
    result["failing"] = failing_generation(rollout, recorded, hf)
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
