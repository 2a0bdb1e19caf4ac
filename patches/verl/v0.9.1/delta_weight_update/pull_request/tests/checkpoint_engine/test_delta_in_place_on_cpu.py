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
    model_config = SimpleNamespace(hf_config=SimpleNamespace(model_type="qwen3"))

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
    topology = type(sides[0]).build_topology(1, 2, [side.prepare() for side in sides])
    given = {key: topology[0][key] + topology[1][key] for key in topology[0]}

    def run(i):
        sides[i].init_process_group(**{key: values[i] for key, values in given.items()})
        return list(sides[i].receive_weights()) if i else asyncio.run(sides[0].send_weights(trainer))

    with ThreadPoolExecutor(3) as pool:
        metrics, *received = pool.map(run, range(3))
    return metrics, received


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


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ROLLOUT}.nnodes=0", "share their devices"),
        ("actor_rollout_ref.actor.strategy=fsdp", "strategy=fsdp2"),
        ("actor_rollout_ref.model.lora_rank=8", "lora_rank=0"),
        (f"{ROLLOUT}.quantization=fp8", "quantization=null"),
    ],
)
def test_unsupported_configs_are_rejected_before_ray_starts(monkeypatch, override, message):
    monkeypatch.setattr("ray.init", lambda *args, **kwargs: pytest.fail("Ray was started"))
    supported = [f"{ROLLOUT}.name=vllm", f"{ROLLOUT}.nnodes=1", "actor_rollout_ref.actor.strategy=fsdp2", BACKEND]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[*supported, override])
    with pytest.raises(ValueError, match=message):
        run_ppo(config, TaskRunnerV1)
