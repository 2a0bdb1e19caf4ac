# Copyright 2026 Bytedance Ltd. and/or its affiliates
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

from types import SimpleNamespace

import pytest

pytest.importorskip("megatron.core")

from verl.workers.config import McoreEngineConfig
from verl.workers.engine.megatron import MegatronEngineWithLMHead
from verl.workers.engine.mindspeed import transformer_impl


@pytest.fixture
def init_device_mesh(monkeypatch):
    """``_init_device_mesh`` of an engine on NPUs; returns what was done beyond its own checks."""
    calls = []
    monkeypatch.setattr(transformer_impl, "_mindspeed_repatch", lambda engine_config: calls.append("repatch"))
    monkeypatch.setattr(MegatronEngineWithLMHead, "_init_device_mesh", lambda self: calls.append("groups"))

    def init(hf_config=None, **engine_config):
        engine = object.__new__(transformer_impl.MindspeedEngineWithLMHead)
        engine.engine_config = McoreEngineConfig(max_seqlen_per_dp_cp_rank=16, **engine_config)
        engine.model_config = SimpleNamespace(hf_config=SimpleNamespace(**hf_config or {}))
        engine._init_device_mesh()
        return calls

    init.calls = calls
    return init


@pytest.mark.parametrize(
    ("hf_config", "context_parallel_size", "error", "message"),
    [
        ({}, 1, ValueError, "context_parallel_size of 2 or more"),
        ({"kv_lora_rank": 512}, 2, NotImplementedError, "latent attention"),
    ],
    ids=["no-ring", "mla"],
)
def test_unsupported_dynamic_cp_is_rejected_before_groups_are_made(
    init_device_mesh, hf_config, context_parallel_size, error, message
):
    with pytest.raises(error, match=message):
        init_device_mesh(hf_config, context_parallel_size=context_parallel_size, dynamic_context_parallel=True)
    assert init_device_mesh.calls == []


@pytest.mark.parametrize(
    ("hf_config", "context_parallel_size", "dynamic_context_parallel"),
    [
        ({}, 2, True),
        ({"kv_lora_rank": None}, 4, True),
        ({}, 1, False),
        ({"kv_lora_rank": 512}, 2, False),
    ],
)
def test_other_engines_are_initialized(init_device_mesh, hf_config, context_parallel_size, dynamic_context_parallel):
    assert init_device_mesh(
        hf_config,
        context_parallel_size=context_parallel_size,
        dynamic_context_parallel=dynamic_context_parallel,
    ) == ["repatch", "groups"]
