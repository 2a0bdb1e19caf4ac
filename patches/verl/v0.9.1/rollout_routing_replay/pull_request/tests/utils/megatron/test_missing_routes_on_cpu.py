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
"""Router replay R3: which tokens are replayed, and what happens to those the rollout returned no routes for."""

import logging
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("megatron.core")

from verl.models.mcore import util
from verl.utils.megatron.router_replay_utils import build_r3_replay_mask

TF_CONFIG = SimpleNamespace(num_layers=2, moe_layer_freq=1)


def _nested(parts):
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def _nested_bool(*parts):
    return _nested([torch.tensor(part, dtype=torch.bool) for part in parts])


@pytest.fixture
def missing_routes(monkeypatch):
    from verl.utils.megatron import missing_routes

    monkeypatch.setattr(missing_routes, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(missing_routes, "_told", [])
    owns_group = not torch.distributed.is_initialized()
    if owns_group:
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield missing_routes
    if owns_group:
        torch.distributed.destroy_process_group()


def _batch():
    """Prompts of two tokens with responses of two and one tokens; the second token of the first has no routes."""
    first = torch.tensor([[[1, 2], [3, 0]], [[0, 0], [0, 0]], [[2, 0], [1, 3]]])
    second = torch.tensor([[[1, 0], [0, 3]], [[1, 2], [3, 2]]])
    return {
        "input_ids": _nested([torch.arange(4), torch.arange(3)]),
        "response_mask": _nested_bool([1, 1], [1]),
        "routed_experts": _nested([first, second]),
    }


def _count(missing_routes, batch, action):
    config = SimpleNamespace(router_replay=SimpleNamespace(missing_routes=action), dynamic_context_parallel=False)
    return missing_routes.count_missing_routes(batch, TF_CONFIG, config, group=None)


@pytest.mark.parametrize("padded", [False, True])
def test_mask_ends_before_the_last_token_the_model_wrote(padded):
    input_ids = _nested([torch.arange(7), torch.arange(4)])
    # First response: two tokens of the model, one of a tool, one of the model and one of the user.
    response_mask, attention_mask = _nested_bool([1, 1, 0, 1, 0], [1, 1]), None
    if padded:
        response_mask = torch.tensor([[1, 1, 0, 1, 0], [1, 1, 0, 0, 0]])
        attention_mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    mask = build_r3_replay_mask(input_ids, response_mask, attention_mask)
    assert [part.int().tolist() for part in mask.unbind()] == [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 0]]


def test_mask_does_not_wait_for_the_device():
    """Tensors on the meta device have no values to wait for."""
    input_ids, response_mask = (
        torch.nested.nested_tensor_from_jagged(
            torch.empty(length, device="meta"), offsets=torch.empty(3, dtype=torch.long, device="meta")
        )
        for length in (11, 7)
    )
    assert build_r3_replay_mask(input_ids, response_mask).values().shape == (11,)


def test_packing_reads_as_many_values_for_many_sequences_as_for_one(monkeypatch):
    for name in ("get_tensor_model_parallel_world_size", "get_context_parallel_world_size"):
        monkeypatch.setattr(util.mpu, name, lambda: 1)
    monkeypatch.setattr(util.mpu, "get_context_parallel_rank", lambda: 0)
    reads = []
    for name in ("item", "tolist"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda tensor, read=read: reads.append(tensor) or read(tensor))
    counts = []
    for sequences in (1, 6):
        reads.clear()
        packed, *_ = util.preprocess_thd_engine(_nested([torch.full((3,), i) for i in range(sequences)]))
        counts.append(len(reads))
        assert packed.flatten().equal(torch.arange(sequences).repeat_interleave(3))
    assert counts[0] == counts[1]


def test_native_leaves_tokens_without_routes_to_the_router(missing_routes, caplog):
    batch = _batch()
    mask = build_r3_replay_mask(batch["input_ids"], batch["response_mask"])
    routes = missing_routes.align_r3_router_replay_data(batch["routed_experts"], batch["input_ids"])
    kept = missing_routes.without_missing_routes(mask, routes, TF_CONFIG)
    assert mask.values().int().tolist() == [1, 1, 1, 0, 1, 1, 0]
    assert kept.values().int().tolist() == [1, 0, 1, 0, 1, 1, 0]
    with caplog.at_level(logging.WARNING, logger=missing_routes.logger.name):
        assert [_count(missing_routes, batch, "native") for _ in range(2)] == [pytest.approx(1 / 5)] * 2
    assert [record.getMessage().split(":")[1] for record in caplog.records] == [
        " 1 of 5 tokens (20.00%) have no routes"
    ]


def test_refuse_raises_unless_all_routes_are_there(missing_routes):
    batch = _batch()
    with pytest.raises(RuntimeError, match=r"1 of 5 tokens \(20.00%\) have no routes.*missing_routes=native"):
        _count(missing_routes, batch, "refuse")
    batch["routed_experts"].values()[1] = torch.tensor([[1, 0], [0, 1]])
    assert _count(missing_routes, batch, "refuse") == 0


def test_replay_does_not_look_for_missing_routes(missing_routes):
    assert _count(missing_routes, _batch(), "replay") is None


def test_dense_layers_and_a_single_expert_are_not_missing_routes(missing_routes):
    routes = torch.tensor([[[0, 0], [1, 2]], [[0, 0], [5, 5]]])
    config = SimpleNamespace(num_layers=2, moe_layer_freq=[0, 1])
    assert missing_routes.have_routes(routes, config).tolist() == [True, False]
    assert missing_routes.have_routes(routes[..., :1], config).all()
