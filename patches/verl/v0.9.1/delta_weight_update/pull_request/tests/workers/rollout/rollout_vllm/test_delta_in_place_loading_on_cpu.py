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

import pytest
import torch

pytest.importorskip("vllm")

from verl.checkpoint_engine import CheckpointEngineRegistry


class _Model(torch.nn.Module):
    """Fuses ``q`` and the transposed ``k`` into one parameter."""

    def __init__(self):
        super().__init__()
        self.fused = torch.nn.Parameter(torch.zeros(4, 2, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("bias", torch.zeros(2))

    def load_weights(self, weights):
        for name, weight in weights:
            self.fused[:2].copy_(weight) if name == "q" else self.fused[2:].copy_(weight.t())


@pytest.fixture
def in_place():
    from verl.workers.rollout.vllm_rollout.delta_in_place import InPlace

    return InPlace()


def _load(in_place, model):
    in_place.begin([model], whole=True)
    model.load_weights([("q", torch.ones(2, 2)), ("k", torch.ones(2, 2))])
    assert in_place.end([model])


def _pieces(name, changes, shape=(2, 2), dtype=torch.bfloat16):
    engine = CheckpointEngineRegistry.new("delta_in_place", bucket_size=12)  # one value per piece
    positions, values = torch.tensor(list(changes), dtype=torch.int32), torch.tensor(list(changes.values()))
    return list(engine._pieces(name, shape, positions, values.to(dtype), range(len(changes))))


def _write(in_place, model, *pieces):
    in_place.begin([model], whole=False)
    in_place.write([model], [one for of_weight in pieces for one in of_weight])
    return in_place.end([model])


def test_loaders_write_what_changed_and_nothing_else(in_place):
    model = _Model()
    _load(in_place, model)
    copy = torch.Tensor.copy_
    assert _write(in_place, model, _pieces("q", {1: 2.5, 2: 3.5}), _pieces("k", {1: 4.5}))
    assert model.fused.tolist() == [[1, 2.5], [3.5, 1], [1, 1], [4.5, 1]]
    assert _write(in_place, model, _pieces("bias", {1: 0.5}, (2,), torch.float32))
    assert model.bias.tolist() == [0, 0.5]
    assert torch.Tensor.copy_ is copy


def test_update_is_not_taken_if_the_weights_are_not_those_of_the_last_one(in_place):
    model = _Model()
    assert not _write(in_place, model, _pieces("q", {0: 2.0}))
    _load(in_place, model)
    model.fused[3, 1] = 9
    assert not _write(in_place, model, _pieces("q", {0: 2.0}))
    assert model.fused[0, 0] == 1
    _load(in_place, model)
    assert _write(in_place, model, _pieces("q", {0: 2.0}))


def test_update_is_not_taken_if_something_else_was_written(in_place):
    model = _Model()
    _load(in_place, model)
    in_place.begin([model], whole=False)
    in_place.write([model], _pieces("q", {0: 2.0}))
    model.fused[3, 1] = 9
    assert not in_place.end([model])


class _Assigned(_Model):
    """Loads ``q`` by assignment to slices, and ``k`` by way of a buffer of its own."""

    def load_weights(self, weights):
        for name, weight in weights:
            if name == "q":
                self.fused.data[:2, ...] = weight[:, ...]
            else:
                self.fused[2:].copy_(torch.empty(2, 2).copy_(weight).t())


def test_loaders_may_assign_and_use_buffers(in_place):
    model = _Assigned()
    _load(in_place, model)
    assert _write(in_place, model, _pieces("q", {1: 2.5}), _pieces("k", {1: 4.5}))
    assert model.fused.tolist() == [[1, 2.5], [1, 1], [1, 1], [4.5, 1]]


class _Composed(_Model):
    """A tensor-parallel rank that loads its half of ``q``, and computes with what it has loaded."""

    def load_weights(self, weights):
        for _, weight in weights:
            self.fused[:1].copy_(weight[:1])
            self.fused[:1].copy_(self.fused[:1] + 1)


def test_update_is_not_taken_if_a_loader_computes_with_what_it_has_written(in_place):
    model = _Composed()
    in_place.begin([model], whole=True)
    model.load_weights([("q", torch.ones(2, 2))])
    assert in_place.end([model])
    assert not _write(in_place, model, _pieces("q", {0: 2.5, 2: 3.0, 3: 3.0}))


def test_nan_is_not_taken_for_unchanged(in_place):
    model = _Model()
    _load(in_place, model)
    assert not _write(in_place, model, _pieces("q", {0: float("nan")}))
