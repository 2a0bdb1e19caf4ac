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

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
from hydra import compose, initialize_config_module

from verl.checkpoint_engine import CheckpointEngineRegistry, CheckpointEngineWorker
from verl.checkpoint_engine.delta_sync.sparse_gather import shard_delta_indices
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo

ROLLOUT = "actor_rollout_ref.rollout"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend=delta_in_place"


class _FakeTrainerEngine:
    engine_config = SimpleNamespace(strategy="fsdp2")
    model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen3"))
    module = torch.nn.Module()

    def __init__(self):
        self.weights = {name: torch.arange(6, dtype=torch.bfloat16).view(2, 3) for name in ("a", "b")}

    def get_per_tensor_param(self):
        return iter(self.weights.items()), None

    def prime_delta_snapshots(self):
        self.snapshots = {name: weight.clone() for name, weight in self.weights.items()}

    def get_per_tensor_param_delta_shard(self):
        entries = []
        for name, weight in self.weights.items():
            where, values = shard_delta_indices(weight.view(-1), self.snapshots[name].view(-1), offset=0)
            entries.append(([(name, (2, 3))], "bfloat16", torch.tensor([len(where)]), where, values, None))
        self.prime_delta_snapshots()
        return entries, None


@pytest.fixture
def sides(monkeypatch):
    """A sender and two receivers, which broadcast over gloo."""
    from verl.checkpoint_engine import delta_in_place_engine

    monkeypatch.setattr(delta_in_place_engine, "get_nccl_backend", lambda: "gloo")
    monkeypatch.setattr(delta_in_place_engine, "get_device_name", lambda: "cpu")
    monkeypatch.setattr(delta_in_place_engine, "get_torch_device", lambda: torch.cpu)
    return [CheckpointEngineRegistry.new("delta_in_place", bucket_size=1 << 20, is_master=i == 0) for i in range(3)]


def _update(sides, trainer):
    """Returns the sender's metrics and what each receiver yields."""
    topology = type(sides[0]).build_topology(1, len(sides) - 1, [side.prepare() for side in sides])
    given = {key: topology[0][key] + topology[1][key] for key in topology[0]}

    def run(i):
        sides[i].init_process_group(**{key: values[i] for key, values in given.items()})
        return list(sides[i].receive_weights()) if i else asyncio.run(sides[0].send_weights(trainer))

    with ThreadPoolExecutor(len(sides)) as pool:
        metrics, *received = pool.map(run, range(len(sides)))
    return metrics, received


def test_experts_packed_in_too_large_a_tensor_are_refused():
    from verl.checkpoint_engine.delta_in_place_engine import NamedAsExported

    trainer = _FakeTrainerEngine()
    packed = torch.nn.Parameter(torch.empty(256, 4096, 7168, device="meta"))
    trainer.module = SimpleNamespace(named_parameters=lambda: [("model.layers.3.mlp.experts.gate_up_proj", packed)])
    with pytest.raises(ValueError, match="2\\^31 elements"):
        NamedAsExported(trainer)


def test_first_update_sends_all_weights_and_the_next_one_what_changed(sides):
    trainer = _FakeTrainerEngine()
    metrics, received = _update(sides, trainer)
    for (_, begins), *weights in received:
        assert begins.item() == 1
        assert all(torch.equal(dict(weights)[name], weight) for name, weight in trainer.weights.items())
    trainer.weights["b"].view(-1)[[1, 4]] = torch.tensor([7.5, -7.5], dtype=torch.bfloat16)
    metrics, received = _update(sides, trainer)
    assert metrics["checkpoint_engine/changed_elems"] == 2
    for (_, begins), (label, piece) in received:
        assert begins.item() == 0
        label = json.loads(label)
        assert (label["name"], label["shape"], label["count"]) == ("b", [2, 3], 2)
        assert piece[:2].tolist() == [1, 4]
        assert piece[2:].view(torch.bfloat16).tolist() == [7.5, -7.5]


def test_all_weights_are_sent_again_after_a_damaged_update_and_to_a_new_replica(sides):
    trainer = _FakeTrainerEngine()
    _update(sides, trainer)
    trainer.weights["a"] += 1
    receive = sides[1].wire.receive
    sides[1].wire.receive = lambda size: receive(size) ^ 1
    _, received = _update(sides, trainer)
    assert len(received[0]) == 1 and sides[1].held is None and sides[2].held == sides[0].held
    sides[1].wire.receive = receive
    _, received = _update(sides, trainer)
    assert [weights[0][1].item() for weights in received] == [1, 1]
    sides[2] = CheckpointEngineRegistry.new("delta_in_place", bucket_size=1 << 20)
    _, received = _update(sides, trainer)
    assert [len(weights) for weights in received] == [3, 3]


@pytest.mark.parametrize(("taken", "held"), [(True, "token"), (False, None)])
def test_worker_reports_whether_the_engine_took_the_update(taken, held):
    async def update_weights(weights, **kwargs):
        return taken

    worker = CheckpointEngineWorker.__new__(CheckpointEngineWorker)
    worker.rollout_config = SimpleNamespace(checkpoint_engine=SimpleNamespace(backend="delta_in_place"))
    worker.checkpoint_engine = SimpleNamespace(receive_weights=lambda global_steps: None, held="token")
    worker.server_adapter = SimpleNamespace(update_weights=update_weights)
    assert asyncio.run(CheckpointEngineWorker.update_weights.__wrapped__(worker, global_steps=1)) is taken
    assert worker.checkpoint_engine.held == held


def test_packed_experts_are_named_as_in_the_full_export():
    from verl.checkpoint_engine.delta_in_place_engine import unfused

    entry = ([("m.mlp.experts.gate_up_proj", (2, 4, 1))], "bfloat16", None, torch.tensor([1, 6]), torch.ones(2))
    slots, _, counts, where, _ = unfused(entry, "qwen3_moe")
    names = [f"m.mlp.experts.{expert}.{part}.weight" for expert in (0, 1) for part in ("gate_proj", "up_proj")]
    assert slots == [(name, (2, 1)) for name in names]
    assert counts.tolist() == [1, 0, 0, 1] and where.tolist() == [1, 0]
    assert unfused(entry, "gpt_oss") is entry


def test_all_weights_are_sent_again_after_a_replica_has_left(sides):
    trainer = _FakeTrainerEngine()
    _update(sides, trainer)
    trainer.weights["a"] += 1
    _, received = _update(sides[:2], trainer)
    assert [len(weights) for weights in received] == [3]
    trainer.weights["a"] += 1
    _, ((begins, *pieces),) = _update(sides[:2], trainer)
    assert begins[1].item() == 0 and len(pieces) == 1


@pytest.fixture
def on_each_rank(monkeypatch):
    """Asks a training engine's exports of two ranks, one after the other."""
    from verl.checkpoint_engine import delta_in_place_engine

    monkeypatch.setattr(delta_in_place_engine, "get_world_size", lambda: 2)

    def ask(exports, method):
        for rank, export in enumerate(exports):
            monkeypatch.setattr(delta_in_place_engine, "get_rank", lambda rank=rank: rank)
            yield list(getattr(export, method)()[0])

    return ask


def test_megatron_ranks_compare_a_share_each_of_the_export(on_each_rank):
    from verl.checkpoint_engine.delta_in_place_engine import ComparedAsExported

    weights = {"a": torch.arange(6, dtype=torch.float32).view(2, 3), "b": torch.ones(3).bfloat16()}
    tied = [*weights.items(), ("a", weights["a"])]
    engine = SimpleNamespace(get_per_tensor_param=lambda: (iter(tied), None))
    exports = [ComparedAsExported(engine, torch.bfloat16, {}) for _ in range(2)]
    for exported in on_each_rank(exports, "get_per_tensor_param"):
        assert [(name, one.dtype) for name, one in exported] == [("a", torch.bfloat16), ("b", torch.bfloat16)]
    weights["a"].view(-1)[[1, 3]] += 1
    weights["b"][2] = 4
    (first, second) = on_each_rank(exports, "get_per_tensor_param_delta_shard")
    assert [(*entry[:2], *(one.tolist() for one in entry[2:5])) for entry in (*first, *second)] == [
        ([("a", (2, 3))], "bfloat16", [1], [1], [2.0]),
        ([("b", (3,))], "bfloat16", [0], [], []),
        ([("a", (2, 3))], "bfloat16", [1], [3], [4.0]),
        ([("b", (3,))], "bfloat16", [1], [2], [4.0]),
    ]


def test_megatron_expert_biases_arrive_in_float32(sides, on_each_rank):
    from verl.checkpoint_engine.delta_in_place_engine import ComparedAsExported

    weights = {"w": torch.ones(2, 2).bfloat16(), "e_score_correction_bias": torch.tensor([0.7, 0.8, 0.9])}
    engine = SimpleNamespace(get_per_tensor_param=lambda: (iter(weights.items()), None))
    (exported, _) = on_each_rank([ComparedAsExported(engine, torch.bfloat16, {}) for _ in range(2)], "get_per_tensor_param")
    trainer = _FakeTrainerEngine()
    trainer.weights = dict(exported)
    _, received = _update(sides, trainer)
    assert all(torch.equal(dict(one)[name], weight) for one in received for name, weight in weights.items())

    weights["e_score_correction_bias"][1] += 0.001
    trainer.weights["e_score_correction_bias#float32"] = weights["e_score_correction_bias"].view(torch.bfloat16)
    pairs = SimpleNamespace(
        engine_config=trainer.engine_config, model_config=trainer.model_config, module=trainer.module
    )
    entry = ([("e_score_correction_bias#float32", (6,))], "bfloat16", torch.tensor([2]), torch.tensor([2, 3]))
    changed = weights["e_score_correction_bias"][1:2].view(torch.bfloat16)
    pairs.get_per_tensor_param_delta_shard = lambda: ([(*entry, changed, None)], None)
    _, received = _update(sides, pairs)
    for _, (label, piece) in received:
        assert json.loads(label) | {"at": 0} == {
            "name": "e_score_correction_bias", "shape": [3], "dtype": "float32", "count": 1, "at": 0,
        }  # fmt: skip
        assert piece[0].item() == 1
        assert torch.equal(piece[1:].view(torch.float32), weights["e_score_correction_bias"][1:2])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ROLLOUT}.nnodes=0", "share their devices"),
        ("actor_rollout_ref.actor.strategy=fsdp", "strategy=fsdp2"),
        ("actor_rollout_ref.model.lora_rank=8", "lora_rank=0"),
        ("actor_rollout_ref.model.lora.rank=8", "lora.rank=0"),
        (f"{ROLLOUT}.quantization=fp8", "quantization=null"),
        (f"+{ROLLOUT}.engine_kwargs.vllm.quantization=ascend", "remove"),
    ],
)
def test_unsupported_configs_are_rejected_before_ray_starts(monkeypatch, override, message):
    monkeypatch.setattr("ray.init", lambda *args, **kwargs: pytest.fail("Ray was started"))
    supported = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.nnodes=1", "actor_rollout_ref.actor.strategy=fsdp2", BACKEND]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*supported, override])
    with pytest.raises(ValueError, match=message):
        run_ppo(config, TaskRunnerV1)
