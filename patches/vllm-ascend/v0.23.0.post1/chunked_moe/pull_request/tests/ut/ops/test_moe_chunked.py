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
import itertools
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
from vllm.config import CUDAGraphMode, VllmConfig, set_current_vllm_config
from vllm.forward_context import override_forward_context

from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.ascend_forward_context import MoECommType
from vllm_ascend.ops.fused_moe import moe_comm_method
from vllm_ascend.ops.fused_moe.moe_runtime_args import MoETokenDispatchOutput, build_fused_experts_input
from vllm_ascend.quantization.quant_type import QuantType

NUM_EXPERTS, TOP_K, HIDDEN = 4, 2, 8


class Dispatcher:
    """Expert i multiplies its input by i + 1. Records the number of tokens of each call."""

    def __init__(self):
        self.tokens = []

    def token_dispatch(self, token_dispatch_input):
        given = token_dispatch_input
        self.tokens.append(len(given.hidden_states))
        hidden_states = given.hidden_states.unsqueeze(1) * (given.topk_ids.unsqueeze(-1) + 1)
        group_list = torch.bincount(given.topk_ids.flatten(), minlength=NUM_EXPERTS)
        return MoETokenDispatchOutput(hidden_states, group_list, 1, combine_metadata=given.topk_weights)

    def token_combine(self, hidden_states, combine_metadata):
        return (hidden_states * combine_metadata.unsqueeze(-1)).sum(1)


@pytest.fixture
def vllm_config():
    with patch("vllm_ascend.platform.NPUPlatform.check_and_update_config"):
        yield VllmConfig()
    clear_ascend_config()


@pytest.fixture
def run(monkeypatch, vllm_config):
    """Runs fused_experts; returns the number of tokens of each dispatch, and the result."""

    def run(comm_class, chunk_tokens, tokens, **context):
        vllm_config.additional_config = {"moe_chunk_tokens": chunk_tokens}
        kind, dispatcher = getattr(moe_comm_method, comm_class), Dispatcher()
        monkeypatch.setattr(kind, "_get_token_dispatcher", lambda self: dispatcher)
        monkeypatch.setattr(kind, "_get_prepare_finalize", lambda self: None)
        with set_current_vllm_config(vllm_config):
            method = kind(MagicMock())
        comm_type = MoECommType[comm_class.removesuffix("CommImpl").upper()]
        defaults = {"capturing": False, "cudagraph_runtime_mode": CUDAGraphMode.NONE, "max_tokens_across_dp": tokens}
        context = SimpleNamespace(moe_comm_type=comm_type, moe_comm_method=method, **(defaults | context))
        hidden_states, weights = torch.rand(tokens, HIDDEN), torch.rand(tokens, TOP_K)
        ids, no_weights = torch.randint(NUM_EXPERTS, (tokens, TOP_K)), torch.empty(0)
        rows = {"hidden_states": hidden_states, "topk_weights": weights, "topk_ids": ids}
        others = {"w1": no_weights, "w2": no_weights, "quant_type": QuantType.NONE, "dynamic_eplb": True}
        with override_forward_context(context):
            result = method.fused_experts(build_fused_experts_input(**rows, **others))
        torch.testing.assert_close(result.routed_out, hidden_states * (weights * (ids + 1)).sum(-1, keepdim=True))
        assert torch.equal(result.expert_tokens, torch.bincount(ids.flatten(), minlength=NUM_EXPERTS))
        return dispatcher.tokens, result

    monkeypatch.setattr(moe_comm_method, "set_gmmswigluquant_method", lambda: False)
    monkeypatch.setattr(
        moe_comm_method, "unified_apply_mlp", lambda mlp_compute_input: (mlp_compute_input.hidden_states, None)
    )
    stream = SimpleNamespace(record_event=itertools.count().__next__)
    with patch("torch.npu.current_stream", return_value=stream):
        yield run


@pytest.mark.parametrize(("chunk_tokens", "expected"), [(0, [10]), (10, [10]), (4, [4, 3, 3])])
def test_all_gather(run, chunk_tokens, expected):
    tokens, result = run("AllGatherCommImpl", chunk_tokens, 10)
    assert tokens == expected
    # Shared experts may overlap from the first dispatch to the last combine.
    assert (result.before_dispatch_evt, result.before_combine_evt) == (0, 2 * len(expected) - 1)


@pytest.mark.parametrize(("tp_size", "expected"), [(1, [1, 1, 0]), (2, [1, 1])])
def test_all_to_all_runs_the_same_number_of_chunks_on_every_rank(run, tp_size, expected):
    with patch("vllm_ascend.ops.fused_moe.chunked.get_tensor_model_parallel_world_size", return_value=tp_size):
        assert run("AlltoAllCommImpl", 4, 2, max_tokens_across_dp=12)[0] == expected


@pytest.mark.parametrize("context", [{"capturing": True}, {"cudagraph_runtime_mode": CUDAGraphMode.FULL}])
def test_graphs_and_mc2_are_not_chunked(run, context):
    assert run("AllGatherCommImpl", 4, 10, **context)[0] == [10]
    assert run("MC2CommImpl", 4, 10)[0] == [10]


@pytest.mark.parametrize(
    ("changes", "lora_config", "message"),
    [
        ({"moe_chunk_tokens": -1}, None, "must be a number of tokens"),
        ({"moe_chunk_tokens": True}, None, "must be a number of tokens"),
        ({"enable_fused_mc2": 1}, None, "enable_fused_mc2=1"),
        ({}, MagicMock(), "LoRA"),
    ],
)
def test_invalid_config(vllm_config, changes, lora_config, message):
    vllm_config.additional_config = {"moe_chunk_tokens": 4} | changes
    vllm_config.lora_config = lora_config
    with pytest.raises(ValueError, match=message):
        init_ascend_config(vllm_config)
