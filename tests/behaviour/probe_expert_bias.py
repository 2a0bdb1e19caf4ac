"""Probe: the bias of a router's experts in a bf16 model that has not gone forward: loaded from a state dict, and given away."""

import json

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
from megatron.core.transformer.module import Float16Module

BIAS = [14.0, 14.001, 14.002, 13.999]  # bf16 holds the first of them


def model(seed):
    made = tiny_megatron.config(
        bf16=True,
        params_dtype=torch.bfloat16,
        num_moe_experts=len(BIAS),
        moe_router_topk=2,
        moe_router_load_balancing_type="none",
        moe_router_enable_expert_bias=True,
        moe_router_score_function="sigmoid",
    )
    return Float16Module(made, tiny_megatron.gpt(made, seed))


def biases(state):
    return {name: value for name, value in state.items() if name.endswith("expert_bias")}


def main():
    tiny_megatron.initialise()
    source, target = model(1), model(2)
    given = source.state_dict()
    saved = given | {name: torch.tensor(BIAS) for name in biases(given)}
    target.load_state_dict(saved)
    loaded = biases(target.state_dict())
    result = {
        "given away": sorted({str(value.dtype) for value in biases(given).values()}),
        "loaded": [(str(value.dtype), value.tolist()) for value in loaded.values()],
        "saved": torch.tensor(BIAS).tolist(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
