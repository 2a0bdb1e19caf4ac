"""Probe: the bias of a router's experts through Megatron's Float16Module, state dicts and checkpoints. Usage: ... FOLDER

Each case saves one model, which has gone forward and has a bias that bf16 cannot hold, and loads another, which has not, or has.
Prints, by case: {"dtype", "equal"} of the loaded bias, "keys" of the state dict.
"""

import json
import sys
from pathlib import Path

import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
from megatron.core import dist_checkpointing
from megatron.core.transformer.module import Float16Module

BIAS = [14.0, 14.001, 14.002, 13.999]


def model(bias, seed):
    settings = {"num_moe_experts": len(BIAS), "moe_router_topk": 2, "moe_router_load_balancing_type": "none"}
    if bias:
        settings |= {"moe_router_enable_expert_bias": True, "moe_router_score_function": "sigmoid"}
    made = tiny_megatron.config(bf16=True, params_dtype=torch.bfloat16, **settings)
    return Float16Module(made, tiny_megatron.gpt(made, seed))


def forward(module):
    tokens = torch.arange(4, 20)[None]
    mask = torch.ones(1, 1, 16, 16, dtype=torch.bool).triu(1)
    with torch.no_grad():
        module(tokens, torch.arange(16)[None], mask)


def routers(module):
    return [layer.mlp.router for layer in module.module.decoder.layers]


def saved(bias=True):
    source = model(bias, 1)
    forward(source)
    for router in routers(source) if bias else ():
        router.expert_bias.copy_(torch.tensor(BIAS))
    return source


def loaded(source, target):
    tensors = [router.expert_bias for router in routers(target)]
    wanted = [router.expert_bias for router in routers(source)]
    equal = all(torch.equal(one.float(), other.float()) for one, other in zip(tensors, wanted, strict=True))
    return {"dtype": sorted({str(tensor.dtype) for tensor in tensors}), "equal": equal}


def through_checkpoint(folder, gone_forward, rounded=False):
    """`rounded`: the checkpoint has the bias in bf16, as one that was saved before any forward on the unpatched tree."""
    source, target = saved(), model(True, 2)
    if gone_forward:
        forward(target)
    state = source.sharded_state_dict()
    if rounded:
        for tensor in (value for name, value in state.items() if name.endswith("expert_bias")):
            tensor.data, tensor.dtype = tensor.data.bfloat16(), torch.bfloat16
        for router in routers(source):
            router.expert_bias.copy_(router.expert_bias.bfloat16())
    folder.mkdir()
    dist_checkpointing.save(state, str(folder))
    target.load_state_dict(dist_checkpointing.load(target.sharded_state_dict(), str(folder)))
    return loaded(source, target)


def through_state_dict(gone_forward):
    source, target = saved(), model(True, 2)
    if gone_forward:
        forward(target)
    target.load_state_dict(source.state_dict())
    return loaded(source, target)


def never_gone_forward():
    """Megatron makes the bias float32, zero; what a model gives away is that, before any forward too."""
    return {str(value.dtype) for name, value in model(True, 1).state_dict().items() if name.endswith("expert_bias")}


def main():
    tiny_megatron.initialise()
    folder = Path(sys.argv[1])
    without = saved(bias=False).state_dict()
    kinds = {f"{name.rpartition('.')[2]} {value.dtype}" for name, value in without.items() if torch.is_tensor(value)}
    print(
        json.dumps(
            {
                "resumed": through_checkpoint(folder / "new", gone_forward=False),
                "resumed after a forward": through_checkpoint(folder / "used", gone_forward=True),
                "rounded": through_checkpoint(folder / "rounded", gone_forward=False, rounded=True),
                "state dict": through_state_dict(gone_forward=False),
                "state dict after a forward": through_state_dict(gone_forward=True),
                "given away": sorted(never_gone_forward()),
                "without a bias": sorted(kinds),
            }
        )
    )


main()
