"""Probe: which experts ep_reshard_setup reads from a real vllm engine, and that vllm loads without the others.

Usage: probe_reshard_engine.py MODEL, on data parallel ranks over which experts are spread.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers.fused_moe.layer import determine_expert_map  # noqa: E402
from vllm.model_executor.model_loader.utils import initialize_model  # noqa: E402

MODEL = sys.argv[1]
RANKS = int(os.environ["WORLD_SIZE"])


def checkpoint():
    from transformers import AutoModelForCausalLM

    return list(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.bfloat16).state_dict().items())


def loaded(config, weights):
    """Parameters of a new model of the engine's kind after `weights` came; what did not come keeps its NaN."""
    config.compilation_config.static_forward_context.clear()
    with set_current_vllm_config(config):
        model = initialize_model(vllm_config=config)
    for parameter in model.parameters():
        parameter.data.fill_(float("nan"))
    model.load_weights(iter(weights))
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def same_without_the_others(config, held):
    weights = checkpoint()
    own = [(name, value) for name, value in weights if ".experts." not in name or expert_of(name) in held]
    all_loaded, own_loaded = loaded(config, weights), loaded(config, own)
    return {
        "sent": [len(own), len(weights)],
        "differ": [name for name, value in all_loaded.items() if not torch.equal(value, own_loaded[name])],
        "nan": [name for name, value in own_loaded.items() if value.isnan().any()],
    }


def expert_of(name):
    return int(name.split(".experts.")[1].split(".")[0])


def refusals(model):
    """What is said of an engine that balances its experts, and of one whose layers differ."""
    from verl.utils.ep_reshard_setup import engine_experts

    first = model.model.layers[0].mlp.experts
    said = {}
    for name, change in {"dynamic_eplb": True, "_expert_map": first._expert_map.flip(0)}.items():
        before = getattr(first, name)
        setattr(first, name, change)
        try:
            engine_experts(model)
        except ValueError as error:
            said[name] = str(error)
        setattr(first, name, before)
    return said


def one_rank_failed():
    """What every rank is told when one of them fails in another way than by a refusal."""
    from verl.utils.ep_reshard_setup import gather_records

    try:
        gather_records(lambda: {"experts": 0} if dist.get_rank() == 0 else {}["experts"])
    except ValueError as error:
        return str(error)


def placement():
    """vllm's own linear placement, for layouts that divide and that do not."""
    placed = {}
    for experts, size in ((8, 4), (6, 4), (128, 48), (256, 32)):
        maps = [determine_expert_map(size, rank, experts)[1].tolist() for rank in range(size)]
        placed[f"{experts} on {size}"] = [[expert for expert, local in enumerate(one) if local >= 0] for one in maps]
    return placed


def main():
    dist.init_process_group("gloo")
    llm = npu_engine.small_llm(MODEL, dtype="bfloat16", data_parallel_size=RANKS, enable_expert_parallel=True)
    from verl.utils.ep_reshard_setup import engine_experts

    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()
    held, ranks = engine_experts(model)
    result = {
        "held": held,
        "ranks": ranks,
        "layer": type(model.model.layers[0].mlp.experts).__name__,
        "local": model.model.layers[0].mlp.experts.w13_weight.shape[0],
        "loading": same_without_the_others(llm.llm_engine.vllm_config, held),
        "refused": refusals(model),
        "one rank failed": one_rank_failed(),
        "placement": placement(),
    }
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
