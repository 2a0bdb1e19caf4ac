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

# vllm_ascend.worker.worker imports these submodules, which conftest does not register.
sys.modules.setdefault("torch_npu.profiler", torch_npu.profiler)
for _name in ("op_plugin", "op_plugin.atb", "op_plugin.atb._atb_ops"):
    sys.modules.setdefault(f"torch_npu.{_name}", MagicMock())

from vllm_ascend.worker.worker import NPUWorker  # noqa: E402

NUM_EXPERTS, HIDDEN, INTERMEDIATE = 2, 4, 3
W13_SHAPE, W2_SHAPE = (NUM_EXPERTS, HIDDEN, 2 * INTERMEDIATE), (NUM_EXPERTS, INTERMEDIATE, HIDDEN)


class Experts(nn.Module):
    """Unquantized expert weights in the layout used for computation."""

    def __init__(self):
        super().__init__()
        self.w13_weight = nn.Parameter(torch.rand(W13_SHAPE), requires_grad=False)
        self.w2_weight = nn.Parameter(torch.rand(W2_SHAPE), requires_grad=False)

    @property
    def shapes(self):
        return tuple(self.w13_weight.shape), tuple(self.w2_weight.shape)


@pytest.fixture
def worker(monkeypatch):
    config = SimpleNamespace(weight_nz_mode=0, enable_sleep_mode_extra_cleanup=False, msmonitor_use_daemon=False)
    monkeypatch.setattr("vllm_ascend.worker.worker.get_ascend_config", lambda: config)
    monkeypatch.setattr("vllm_ascend.worker.worker.CaMemAllocator", MagicMock())
    with patch.object(NPUWorker, "__init__", lambda x, **kwargs: None):
        worker = NPUWorker()
    text_config = SimpleNamespace(hidden_size=HIDDEN)
    worker.vllm_config = SimpleNamespace(quant_config=None, model_config=SimpleNamespace(hf_text_config=text_config))
    worker.model_runner = MagicMock(model=nn.ModuleDict({"experts": Experts()}))
    worker.model_runner.execute_model.return_value = None
    worker.profiler = None
    worker._pp_send_work = []
    worker._sleep_saved_buffers = {}
    return worker


def _step(worker, kind):
    if kind == "dummy":
        worker.execute_dummy_batch()
    else:
        worker.execute_model(SimpleNamespace(total_num_scheduled_tokens=0))


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("kind", ["dummy", "execute_model"])
def test_layout_is_undone_if_nothing_was_loaded(worker, kind, times):
    experts = worker.model_runner.model["experts"]
    before = [weight.clone() for weight in experts.parameters()]
    addresses = [weight.data_ptr() for weight in experts.parameters()]
    for _ in range(times):
        worker.wake_up(["weights"])
        worker.wake_up(["kv_cache"])
    _step(worker, kind)
    assert all(map(torch.equal, experts.parameters(), before))
    assert [weight.data_ptr() for weight in experts.parameters()] == addresses
    _step(worker, kind)
    assert experts.shapes == (W13_SHAPE, W2_SHAPE)


def test_wake_up_transposes_weights_for_loading(worker):
    experts = worker.model_runner.model["experts"]
    worker.wake_up()
    assert experts.shapes == ((NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN), (NUM_EXPERTS, HIDDEN, INTERMEDIATE))


def test_loaded_weights_are_left_untouched(worker):
    """process_weights_after_loading replaces the parameters."""
    experts = worker.model_runner.model["experts"]
    worker.wake_up()
    loaded = {name: nn.Parameter(weight.transpose(1, 2)) for name, weight in experts.named_parameters()}
    for name, weight in loaded.items():
        setattr(experts, name, weight)
    worker.execute_dummy_batch()
    assert all(getattr(experts, name) is weight for name, weight in loaded.items())
    assert experts.shapes == (W13_SHAPE, W2_SHAPE)


@pytest.mark.parametrize(("quant_config", "tags"), [(object(), None), (None, ["kv_cache"])])
def test_weights_are_not_transposed(worker, quant_config, tags):
    worker.vllm_config.quant_config = quant_config
    experts = worker.model_runner.model["experts"]
    worker.wake_up(tags)
    assert experts.shapes == (W13_SHAPE, W2_SHAPE)
    worker.execute_dummy_batch()
    assert experts.shapes == (W13_SHAPE, W2_SHAPE)
