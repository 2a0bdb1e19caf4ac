# Copyright (c) 2026, Huawei Technologies Co., Ltd.  All rights reserved.
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
import torch_npu  # noqa: F401

try:
    from mindspeed import megatron_adaptor  # noqa: F401
except ImportError:
    pass

from megatron.core import optimizer as megatron_optimizer
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

from mindspeed.core.optimizer.swap_optimizer import swap_optimizer
from mindspeed.core.optimizer.swap_optimizer.swap_optimizer import SwapDistributedOptimizer

STATES = ("param", "exp_avg", "exp_avg_sq")


class Adam(torch.optim.Optimizer):
    """The groups of an AdamW; no step is taken."""

    def __init__(self, params, **kwargs):
        super().__init__(params, {**kwargs, "amsgrad": False})


class Model(torch.nn.Module):
    """Weights in bfloat16, and a norm in float32."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 4, bias=False, dtype=torch.bfloat16)
        self.norm = torch.nn.LayerNorm(4, bias=False)


@pytest.fixture
def optimizer(monkeypatch, tmp_path):
    """A swap optimizer over a model, both moments zero; what it holds is on the host."""
    monkeypatch.setattr(megatron_optimizer, "Adam", Adam)
    monkeypatch.setattr(megatron_optimizer, "USING_PYTORCH_OPTIMIZER", False)
    monkeypatch.setattr(megatron_optimizer, "DistributedOptimizer", SwapDistributedOptimizer)
    monkeypatch.setattr(megatron_optimizer.distrib_optimizer, "Adam", Adam)
    monkeypatch.setattr(megatron_optimizer.distrib_optimizer, "HAVE_APEX_OR_TE", True)
    monkeypatch.setattr(SwapDistributedOptimizer, "param_to_cpu_states_map", {})
    monkeypatch.setattr(swap_optimizer, "get_args", lambda: SimpleNamespace(swap_optimizer_times=1))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    config = TransformerConfig(num_layers=1, hidden_size=8, num_attention_heads=1, bf16=True)
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True)
    model = DistributedDataParallel(config, ddp_config, Model().to(torch.cuda.current_device()))
    optimizer_config = OptimizerConfig(
        optimizer="adam", lr=0.1, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True
    )
    yield get_megatron_optimizer(optimizer_config, [model]).chained_optimizers[0]
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


def has_memory(tensor):
    return tensor.untyped_storage().size() > 0


def get_states(optimizer):
    """By model parameter what Megatron makes a checkpoint of. Not even pytest may read a tensor without memory."""
    states = {param: optimizer._get_main_param_and_optimizer_states(param) for param in optimizer.model_param_gbuf_map}
    without_memory = {key for tensors in states.values() for key in STATES if not has_memory(tensors[key])}
    assert not without_memory
    return states


def test_states_are_given_from_the_host(optimizer):
    states = get_states(optimizer)
    assert {param.dtype for param in states} == {torch.bfloat16, torch.float32}
    for param, tensors in states.items():
        assert torch.equal(tensors["param"].cpu(), param.detach().float().flatten().cpu())
        assert not tensors["exp_avg"].any() and not tensors["exp_avg_sq"].any()
        assert tensors["max_exp_avg_sq"] is None
        # Nothing is swapped in for that. A weight in float32 is the model's own and never swapped out.
        group, order = optimizer.model_param_group_index_map[param]
        main_param = optimizer.optimizer.param_groups[group]["params"][order]
        on_device = {"param": main_param, **optimizer.optimizer.state[main_param]}
        on_device = {key: has_memory(on_device[key]) for key in STATES}
        assert on_device == {"param": param.dtype == torch.float32, "exp_avg": False, "exp_avg_sq": False}


def test_states_on_the_device_are_given_from_there(optimizer):
    optimizer.swap_to_device()
    for tensors in get_states(optimizer).values():
        tensors["exp_avg"].fill_(1)
    optimizer.swap_to_host()
    for tensors in get_states(optimizer).values():
        assert (tensors["exp_avg"] == 1).all()


def test_next_step_swaps_in_what_was_loaded(optimizer):
    for param, tensors in get_states(optimizer).items():
        loaded = {key: torch.full_like(tensors[key], value) for value, key in enumerate(STATES, 1)}
        optimizer._set_main_param_and_optimizer_states(param, loaded)
    optimizer.swap_to_device()
    for group in optimizer.optimizer.param_groups:
        for main_param in group["params"]:
            state = optimizer.optimizer.state[main_param]
            assert (main_param == 1).all()
            assert (state["exp_avg"] == 2).all() and (state["exp_avg_sq"] == 3).all()
            assert state["max_exp_avg_sq"] is None


def test_steps_go_on_with_the_groups_that_were_loaded(optimizer):
    state_dict = optimizer.state_dict()
    for group in state_dict["optimizer"]["param_groups"]:
        group["step"], group["lr"] = 7, 0.01
    optimizer.load_state_dict(state_dict)
    for group in optimizer.optimizer.param_groups:
        assert (group["step"], group["lr"]) == (7, 0.01)
        for main_param in group["params"]:
            assert optimizer.optimizer.param_to_group_map[main_param] is group
