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
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

import pytest
import torch
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.v1.outputs import DraftTokenIds
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.worker import model_runner_v1
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

UPPER, LOWER = 4, 2
ALONE = dict.fromkeys(("data", "pipeline", "prefill_context", "decode_context"), 1)


def _vllm_config(method="ngram", async_scheduling=False, has_inner_state=False, **parallel):
    sizes = {f"{kind}_parallel_size": size for kind, size in (ALONE | parallel).items()}
    return SimpleNamespace(
        additional_config={"spec_batch_threshold": {"upper": UPPER, "lower": LOWER}},
        kv_transfer_config=None,
        model_config=SimpleNamespace(has_inner_state=has_inner_state),
        parallel_config=SimpleNamespace(**sizes),
        scheduler_config=SimpleNamespace(async_scheduling=async_scheduling),
        speculative_config=SimpleNamespace(method=method, model=None) if method else None,
    )


def _runner(method="ngram", dp_size=1, with_threshold=True):
    runner = NPUModelRunner.__new__(NPUModelRunner)
    runner.vllm_config = _vllm_config(method)
    runner.speculative_config = runner.vllm_config.speculative_config
    runner.compilation_config = SimpleNamespace(cudagraph_mode=CUDAGraphMode.NONE)
    runner.ascend_config = SimpleNamespace(dp_allreduce_on_npu=False)
    runner.dp_size, runner.dp_rank = dp_size, 0
    runner.requests = {"running": None, "waiting": None}
    runner.batch_threshold = None
    if with_threshold:
        from vllm_ascend.spec_decode.batch_threshold import BatchThreshold

        runner.batch_threshold = BatchThreshold(runner)
    return runner


def test_pauses_above_upper_until_lower():
    threshold = _runner().batch_threshold
    drafting = []
    for running in (4, 5, 3, 2, 3, 4, 5):
        threshold.count(running)
        drafting.append(threshold.drafting)
    assert drafting == [True, False, False, True, True, True, False]


@pytest.mark.parametrize(("method", "skips"), [("ngram", True), ("eagle", False)])
def test_eagle_still_runs_to_fill_its_kv_cache(method, skips):
    threshold = _runner(method).batch_threshold
    assert not threshold.skips_drafter
    threshold.count(UPPER + 1)
    assert threshold.skips_drafter == skips


def test_no_drafts_for_any_request_while_paused(monkeypatch):
    drafts = DraftTokenIds(["running"], [[1, 2, 3]])
    monkeypatch.setattr(GPUModelRunner, "take_draft_token_ids", lambda self: drafts)
    runner = _runner()
    runner.batch_threshold.count(UPPER)
    assert runner.take_draft_token_ids() is drafts
    runner.batch_threshold.count(UPPER + 1)
    assert runner.take_draft_token_ids() == DraftTokenIds(["running", "waiting"], [[], []])


@pytest.fixture
def sync(monkeypatch):
    """Syncs with a second rank that has `others` requests and 7 tokens; returns what this rank contributes."""
    monkeypatch.setattr(model_runner_v1, "get_dp_group", MagicMock())
    for module in ("vllm_ascend.worker.model_runner_v1", "vllm_ascend.spec_decode.batch_threshold"):
        monkeypatch.setattr(f"{module}.should_skip_allreduce_across_dp_group", lambda *args: False)

    def sync(runner, others, **kwargs):
        sent = []

        def all_reduce(tensor, group):
            sent.extend(tensor[:, 0].tolist())
            tensor[:, 1] += torch.tensor([7, CUDAGraphMode.NONE.value, others][: len(tensor)], dtype=tensor.dtype)

        with patch.object(model_runner_v1.dist, "all_reduce", all_reduce):
            assert runner._sync_metadata_across_dp(3, **kwargs)[0] == 7
        return sent

    return sync


def test_dp_ranks_follow_the_busiest_one(sync):
    runner, mode = _runner(dp_size=2), CUDAGraphMode.NONE.value
    threshold = runner.batch_threshold
    threshold.count(UPPER + 1)
    assert threshold.drafting, "the ranks have not agreed yet"
    assert sync(runner, others=1) == [3, mode, UPPER + 1]
    assert not threshold.drafting
    # The drafter's own sync is unchanged, and a dummy step counts no requests.
    assert sync(runner, others=0, is_draft_model=True) == [3, mode]
    assert sync(runner, others=LOWER + 1) == [3, mode, 0]
    assert not threshold.drafting
    sync(runner, others=LOWER)
    assert threshold.drafting
    assert sync(_runner(dp_size=2, with_threshold=False), others=9) == [3, mode]


@pytest.mark.parametrize("threshold", [{"upper": 2, "lower": 4}, {"upper": 4}, {"upper": True, "lower": 1}, 4])
def test_invalid_threshold(threshold):
    with patch("vllm_ascend.platform.NPUPlatform.check_and_update_config"):
        vllm_config = VllmConfig()
    vllm_config.additional_config = {"spec_batch_threshold": threshold}
    with pytest.raises(ValueError, match="1 <= L <= U"):
        init_ascend_config(vllm_config)
    clear_ascend_config()


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"method": None}, "no speculative_config"),
        ({"method": "mtp"}, "not with mtp"),
        ({"async_scheduling": True}, "async_scheduling=False"),
        ({"has_inner_state": True}, "recurrent layers"),
        ({"pipeline": 2}, "pipeline"),
    ],
)
def test_unsupported_engine(engine, message):
    from vllm_ascend.ascend_config import get_spec_batch_threshold

    assert get_spec_batch_threshold(_vllm_config()) == (UPPER, LOWER)
    with pytest.raises(ValueError, match=message):
        get_spec_batch_threshold(_vllm_config(**engine))
