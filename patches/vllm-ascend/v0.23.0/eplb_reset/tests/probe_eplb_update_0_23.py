"""Probe: upstream's dynamic load balancing of experts in an engine on two ranks, and weights that are loaded after experts have moved.

Usage: probe_eplb_update_0_23.py MODEL. Balancing is held after the first answers; new weights are loaded as verl loads them: weights awake, a
checkpoint's names, process_weights_after_loading. Then the map of the start is put back, and nothing else.
"""

import json
import os
import sys

import npu_experts_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_experts_0_23.prepare(device="A2")

import npu_engine  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.model_executor.model_loader.utils import process_weights_after_loading  # noqa: E402

MODEL = sys.argv[1]
STEPS = 40
PROMPTS = [[10, 11, 12, 13, 14], [20, 21, 22]]
BALANCING = {
    "dynamic_eplb": True,
    "eplb_policy_type": 1,
    "expert_heat_collection_interval": 4,
    "algorithm_execution_interval": 2,
}


def hugging_faces(hf):
    made = [
        hf.generate(torch.tensor([one]), max_new_tokens=STEPS, do_sample=False, eos_token_id=None) for one in PROMPTS
    ]
    return [ids[0, -STEPS:].tolist() for ids in made]


def disturb(hf):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in hf.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)


def names_of_a_checkpoint(hf, folder):
    """A checkpoint's names: transformers 5 has an expert's weights in one tensor a layer, and writes one an expert."""
    from safetensors.torch import load_file

    hf.save_pretrained(folder)
    return load_file(f"{folder}/model.safetensors")


def main():
    dist.init_process_group("gloo")
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    llm = npu_engine.small_llm(
        MODEL,
        tensor_parallel_size=int(os.environ["WORLD_SIZE"]),
        enable_expert_parallel=True,
        enable_sleep_mode=True,
        enable_prefix_caching=False,
        additional_config={"eplb_config": BALANCING},
    )
    worker = llm.llm_engine.model_executor.driver_worker.worker
    runner = worker.model_runner
    params = SamplingParams(temperature=0, max_tokens=STEPS, ignore_eos=True)

    def tokens():
        outputs = llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def log2phy():
        return [layer.log2phy.tolist() for layer in runner.eplb_adaptor.moe_layers]

    runner.eplb_warmup()  # which a profile run ends with, and here none is made
    first = [layer.log2phy.clone() for layer in runner.eplb_adaptor.moe_layers]
    seen = {"first": log2phy(), "tokens": tokens(), "hf": hugging_faces(hf), "moved": log2phy()}
    runner.dynamic_eplb = False
    disturb(hf)
    state = names_of_a_checkpoint(hf, f"updated-{os.environ['RANK']}")
    worker.wake_up(["weights"])
    for experts in runner.eplb_adaptor.moe_layers:
        for weight in (experts.w13_weight, experts.w2_weight):  # verl's patch_vllm_moe_model_weight_loader
            weight.weight_loader = experts.weight_loader
    runner.model.load_weights(iter(state.items()))
    process_weights_after_loading(runner.model, llm.llm_engine.vllm_config.model_config, torch.device("cpu"))
    seen |= {"updated": tokens(), "updated hf": hugging_faces(hf)}
    for layer, start in zip(runner.eplb_adaptor.moe_layers, first, strict=True):
        layer.log2phy.copy_(start)
    seen["map of the start"] = tokens()
    dist.barrier()
    runner.eplb_updator.shutdown()
    dist.destroy_process_group()
    print(json.dumps(seen))


main()
