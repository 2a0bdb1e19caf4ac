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

from vllm_ascend.ascend_forward_context import MoECommType
from vllm_ascend.ops import rotary_embedding
from vllm_ascend.utils import vllm_version_is

# vllm_ascend.worker.worker imports these submodules, which conftest does not register.
sys.modules.setdefault("torch_npu.profiler", torch_npu.profiler)
for _name in ("op_plugin", "op_plugin.atb", "op_plugin.atb._atb_ops"):
    sys.modules.setdefault(f"torch_npu.{_name}", MagicMock())

from vllm_ascend.worker.worker import NPUWorker  # noqa: E402


@pytest.fixture
def make_worker(monkeypatch):
    """Builds a worker for `model`. The tensors in `lost` contain garbage once the weights are woken up."""

    def make(model, lost):
        def wake_up(tags):
            if tags is None or "weights" in tags:
                for tensor in lost:
                    tensor.fill_(-7)

        with patch.object(NPUWorker, "__init__", lambda x, **kwargs: None):
            worker = NPUWorker()
        worker.model_runner = SimpleNamespace(model=model)
        worker.vllm_config = MagicMock()
        worker._sleep_saved_buffers = {}
        allocator = SimpleNamespace(sleep=MagicMock(), wake_up=wake_up)
        monkeypatch.setattr("vllm_ascend.worker.worker.CaMemAllocator.get_instance", lambda: allocator)
        return worker

    config = SimpleNamespace(weight_nz_mode=0, enable_sleep_mode_extra_cleanup=False)
    monkeypatch.setattr("vllm_ascend.worker.worker.get_ascend_config", lambda: config)
    with patch("torch.npu.mem_get_info", return_value=(0, 1 << 30)):
        yield make


@pytest.mark.parametrize("order", [(None,), (["weights"], ["kv_cache"]), (["kv_cache"], ["weights"])])
def test_buffers_are_restored_along_with_the_weights(make_worker, order):
    model = nn.Module()
    model.register_buffer("scale", torch.arange(4))
    worker = make_worker(model, [model.scale])
    worker.sleep(level=2)
    for tags in order:
        worker.wake_up(tags)
    assert model.scale.tolist() == [0, 1, 2, 3]


@pytest.fixture
def make_rope(monkeypatch):
    def make(use_mla):
        config = SimpleNamespace(speculative_config=None, model_config=SimpleNamespace(use_mla=use_mla))
        monkeypatch.setattr(rotary_embedding, "get_current_vllm_config", lambda: config)
        with patch.object(rotary_embedding.RotaryEmbedding, "__init__", lambda self, *args: nn.Module.__init__(self)):
            rope = rotary_embedding.AscendRotaryEmbedding.__new__(rotary_embedding.AscendRotaryEmbedding)
            object.__setattr__(rope, "cos_sin_cache", torch.rand(16, 8))
            rope.__init__(8, 8, 16, 10000, True, torch.float32)
        return rope

    for name in ("_cos_cache", "_sin_cache", "_cos_sin_cache"):
        monkeypatch.setattr(rotary_embedding, name, None)
    return make


def test_cos_sin_caches_of_mla_are_restored(make_worker, make_rope):
    rope, positions = make_rope(use_mla=True), torch.arange(16)
    before = rotary_embedding.get_cos_and_sin_mla(positions)
    worker = make_worker(rope, [rotary_embedding._cos_cache, rotary_embedding._sin_cache])
    worker.sleep(level=2)
    worker.wake_up()
    assert all(map(torch.equal, rotary_embedding.get_cos_and_sin_mla(positions), before))
    assert not rope.state_dict()


def test_no_cos_sin_buffers_without_mla(make_rope):
    assert not list(make_rope(use_mla=False).buffers())


@pytest.mark.skipif(not vllm_version_is("0.23.0"), reason="tests the legacy AscendFusedMoE for vLLM 0.23.0")
def test_moe_runtime_state_is_restored(make_worker, monkeypatch):
    from vllm_ascend.ops.fused_moe import fused_moe_0_23_0 as fused_moe
    from vllm_ascend.ops.fused_moe import moe_comm_method

    method = SimpleNamespace(token_dispatcher=SimpleNamespace(expert_ids_per_ep_rank=torch.tensor([0, 1, 0, 1])))
    monkeypatch.setitem(moe_comm_method._MoECommMethods, MoECommType.ALLTOALL, method)
    maps = torch.tensor([[0, 1, -1, -1], [-1, -1, 0, 1]]), None, torch.tensor([0, 1, 2, 3]), 0
    monkeypatch.setattr(fused_moe, "init_eplb_config", lambda *args, **kwargs: maps)
    mocked = ["AscendMoERunner", "AscendUnquantizedFusedMoEMethod", "VllmEplbAdaptor", "setup_moe_comm_method"]
    for name in [*mocked, "get_ascend_config", "get_current_vllm_config", "get_dp_group", "get_tp_group"]:
        monkeypatch.setattr(fused_moe, name, MagicMock())
    fused_moe.get_ascend_config().eplb_config.dynamic_eplb = False

    def init(self, **kwargs):
        nn.Module.__init__(self)
        for name in ("expert_map_manager", "moe_config", "moe_parallel_config", "router", "vllm_config"):
            setattr(self, name, MagicMock(ep_size=1))
        for name in ("custom_routing_function", "e_score_correction_bias", "params_dtype", "quant_config"):
            setattr(self, name, None)
        self.layer_name = "experts"

    monkeypatch.setattr(fused_moe.FusedMoE, "__init__", init)
    layer = fused_moe.AscendFusedMoE(num_experts=4, intermediate_size=8)

    state = [method.token_dispatcher.expert_ids_per_ep_rank, layer.global_expert_map, layer.log2phy]
    before = [tensor.clone() for tensor in state]
    worker = make_worker(layer, state)
    worker.sleep(level=2)
    worker.wake_up()
    assert all(map(torch.equal, before, state))
    assert not layer.state_dict()
