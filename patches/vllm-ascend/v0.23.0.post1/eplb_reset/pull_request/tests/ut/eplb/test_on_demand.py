#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
# This file is a part of the vllm-ascend project.
#
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
import torch_npu
from torch import nn

from vllm_ascend.ascend_config import EplbConfig
from vllm_ascend.eplb import eplb_updator
from vllm_ascend.eplb.adaptor import vllm_adaptor
from vllm_ascend.eplb.core import eplb_device_transfer_loader

# vllm_ascend.worker.worker imports these submodules, which conftest does not register.
sys.modules.setdefault("torch_npu.profiler", torch_npu.profiler)
for _name in ("op_plugin", "op_plugin.atb", "op_plugin.atb._atb_ops"):
    sys.modules.setdefault(f"torch_npu.{_name}", MagicMock())

NUM_EXPERTS = 4
ON_DEMAND = {"dynamic_eplb": True, "on_demand": True}


class Experts(nn.Module):
    """An MoE layer on a single rank: expert i is loaded into slot i."""

    ep_rank, local_num_experts = 0, NUM_EXPERTS

    def __init__(self):
        super().__init__()
        self.w13_weight = nn.Parameter(torch.rand(NUM_EXPERTS, 2, 6), requires_grad=False)
        self.w2_weight = nn.Parameter(torch.rand(NUM_EXPERTS, 3, 2), requires_grad=False)
        self.global_expert_map = torch.arange(NUM_EXPERTS, dtype=torch.int32).unsqueeze(0)
        self.log2phy = torch.arange(NUM_EXPERTS, dtype=torch.int32)
        self.moe_load = torch.zeros(NUM_EXPERTS, dtype=torch.int64)

    def get_log2phy_map(self):
        return self.log2phy

    def clear_moe_load(self):
        self.moe_load.zero_()

    def state(self):
        tensors = self.w13_weight, self.w2_weight, self.global_expert_map, self.log2phy, self.moe_load
        return [(tensor.tolist(), tensor.data_ptr()) for tensor in tensors]


@pytest.fixture
def runner(monkeypatch):
    """A model runner with two MoE layers on a single rank."""
    monkeypatch.setenv("DYNAMIC_EPLB", "true")
    group = SimpleNamespace(rank_in_group=0, world_size=1, ranks=[0], device_group=None, all_gather=lambda x, dim: x)
    for module in (eplb_updator, eplb_device_transfer_loader):
        monkeypatch.setattr(module, "get_dynamic_eplb_group", lambda: group)
    monkeypatch.setattr(eplb_updator, "get_pp_group", lambda: group)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(vllm_adaptor, "get_ascend_config", MagicMock())
    monkeypatch.setattr(vllm_adaptor.VllmEplbAdaptor, "_registered_moe_layers", [Experts(), Experts()])
    runner = MagicMock(max_num_reqs=4, uniform_decode_query_len=1)
    runner.vllm_config.quant_config = runner.vllm_config.lora_config = None
    runner.ascend_config.eplb_config = EplbConfig(ON_DEMAND)
    runner.get_model.return_value = SimpleNamespace(config=SimpleNamespace(), quant_config=None)
    return runner


@pytest.fixture
def eplb(monkeypatch, runner):
    from vllm_ascend.eplb import on_demand

    for name in ("Manager", "EplbProcess"):
        monkeypatch.setattr(on_demand, name, MagicMock())
    on_demand.EplbProcess()._launch_process().is_alive.return_value = False
    return on_demand.OnDemandEplb(runner)


def _balance(adaptor):
    """Swaps the first two experts of the first layer, and adds some load."""
    slots = adaptor.expert_param_per_layer[0]
    for one, other in zip(slots[0], slots[1]):
        kept = one.clone()
        one.copy_(other)
        other.copy_(kept)
    swapped = torch.tensor([1, 0, 2, 3], dtype=torch.int32)
    adaptor.do_update_expert_map(0, swapped)
    adaptor.do_update_log2phy_map(0, swapped)
    adaptor.moe_layers[0].moe_load += 1


def test_stop_restores_the_initial_placement(runner, eplb):
    layers = vllm_adaptor.VllmEplbAdaptor._registered_moe_layers
    for _ in range(2):
        before = [layer.state() for layer in layers]
        eplb.before_step()
        assert not runner.dynamic_eplb, "not woken up"
        eplb.wake_up()
        assert not runner.dynamic_eplb, "weights may still be loaded"
        eplb.before_step()
        assert runner.dynamic_eplb
        process = eplb.process
        _balance(eplb.adaptor)
        assert [layer.state() for layer in layers] != before
        assert eplb.stop() == 2
        assert [layer.state() for layer in layers] == before
        process.terminate.assert_called_with()
        assert not runner.dynamic_eplb and runner.eplb_updator is None


@pytest.mark.parametrize("call", ["before_step", "stop"])
def test_loading_weights_while_balancing_is_an_error(eplb, call):
    eplb.wake_up()
    eplb.before_step()
    layer = vllm_adaptor.VllmEplbAdaptor._registered_moe_layers[0]
    layer.w13_weight = nn.Parameter(layer.w13_weight.clone(), requires_grad=False)
    with pytest.raises(RuntimeError, match="weights were loaded while experts were balanced"):
        getattr(eplb, call)()
    with pytest.raises(RuntimeError, match="make the engine anew"):
        eplb.before_step()


def test_moves_between_ranks():
    from vllm_ascend.eplb.on_demand import moves_between

    current = torch.tensor([[0, 1, -1, 2], [-1, 1, 0, -1]])  # the slot of each expert on each rank
    wanted = torch.tensor([[1, -1, 0, -1], [-1, 1, -1, 0]])
    moves = [(move.source, move.source_slot, move.target, move.target_slot) for move in moves_between(current, wanted)]
    assert moves == [(0, 0, 0, 1), (1, 0, 0, 0), (0, 2, 1, 0)]


def test_worker_stops_before_sleep_and_starts_after_wake_up(monkeypatch):
    from vllm_ascend.worker.worker import NPUWorker

    with patch.object(NPUWorker, "__init__", lambda x, **kwargs: None):
        worker = NPUWorker()
    worker.model_runner, worker.vllm_config, worker._sleep_saved_buffers = MagicMock(), MagicMock(), {}
    config = SimpleNamespace(weight_nz_mode=0, enable_sleep_mode_extra_cleanup=False)
    monkeypatch.setattr("vllm_ascend.worker.worker.get_ascend_config", lambda: config)
    allocator = worker.model_runner.allocator  # records the order of calls
    monkeypatch.setattr("vllm_ascend.worker.worker.CaMemAllocator.get_instance", lambda: allocator)
    with patch("torch.npu.mem_get_info", return_value=(0, 1 << 30)):
        worker.sleep()
    worker.wake_up()
    calls = [call[0] for call in worker.model_runner.mock_calls if call[0].startswith(("allocator", "eplb"))]
    assert calls == ["eplb_on_demand.stop", "allocator.sleep", "allocator.wake_up", "eplb_on_demand.wake_up"]


@pytest.mark.parametrize("changes", [{"on_demand": 1}, {"dynamic_eplb": False}, {"num_redundant_experts": 2}])
def test_invalid_config(changes):
    with pytest.raises((TypeError, ValueError), match="eplb_config: .*on_demand"):
        EplbConfig(ON_DEMAND | changes)


ENGINES = [{"model_config.enable_sleep_mode": False}, {"vllm_config.lora_config": 1}, {"vllm_config.quant_config": 1}]


@pytest.mark.parametrize("engine", [*ENGINES, {"ascend_config.enable_fused_mc2": 1}])
def test_unsupported_engine(runner, engine):
    from vllm_ascend.eplb.on_demand import OnDemandEplb

    runner.configure_mock(**engine)
    with pytest.raises(ValueError, match="on_demand"):
        OnDemandEplb(runner)
