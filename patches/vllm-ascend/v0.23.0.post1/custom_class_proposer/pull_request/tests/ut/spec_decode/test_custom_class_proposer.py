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
from unittest.mock import MagicMock

import numpy as np
import pytest

from vllm_ascend.worker import model_runner_v1
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

NUM_DRAFTS = 2


class Proposer:
    """vLLM requires nothing but propose of a custom class."""

    def __init__(self, drafts=None):
        self.drafts = drafts

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None):
        if self.drafts is not None:
            return self.drafts
        assert slot_mappings is None
        return [[int(tokens[0])] * NUM_DRAFTS for tokens, _ in zip(token_ids_cpu, num_tokens_no_spec, strict=True)]


class ProposerWithHooks(Proposer):
    runner = model = None

    def set_runner(self, runner):
        self.runner = runner

    def load_model(self, model):
        self.model = model


@pytest.fixture
def make_runner(monkeypatch):
    """Builds a runner, given the drafter that GPUModelRunner's constructor has created."""

    def make(drafter, method="custom_class", is_last_rank=True):
        monkeypatch.setattr(model_runner_v1, "get_pp_group", lambda: SimpleNamespace(is_last_rank=is_last_rank))
        runner = NPUModelRunner.__new__(NPUModelRunner)
        runner.speculative_config = SimpleNamespace(method=method, num_speculative_tokens=NUM_DRAFTS)
        runner.vllm_config = runner.device = runner.sampler = MagicMock()
        runner.max_num_reqs = 4
        runner._make_buffer = MagicMock()
        runner.input_batch = SimpleNamespace(
            num_tokens_no_spec=np.array([3, 2]), token_ids_cpu=np.array([[5, 6, 7], [8, 9, 0]], np.int32)
        )
        runner.drafter = drafter
        runner._set_up_drafter()
        return runner

    monkeypatch.setattr(model_runner_v1, "AscendRejectionSampler", MagicMock())
    return make


def _propose(runner, sampled_token_ids):
    return runner.propose_draft_token_ids(sampled_token_ids, *[None] * 7)


def test_drafter_created_by_vllm_is_used(make_runner):
    assert _propose(make_runner(Proposer()), [[7], [9]]) == [[5, 5], [8, 8]]


def test_optional_hooks_are_called(make_runner):
    proposer = ProposerWithHooks()
    runner = make_runner(proposer)
    assert proposer.runner is runner
    model = object()
    runner.drafter.load_model(model)
    assert proposer.model is model
    runner.drafter.dummy_run(num_tokens=4, is_profile=True)


def test_hooks_are_optional(make_runner):
    runner = make_runner(Proposer())
    runner.drafter.load_model(object())
    runner.drafter.dummy_run(num_tokens=4)


@pytest.mark.parametrize("drafts", [[], [[1]], [[1], [1], [1]], [[1, 2, 3], []]])
def test_invalid_drafts(make_runner, drafts):
    runner = make_runner(Proposer(drafts))
    with pytest.raises(ValueError, match=r"Proposer.propose must return 2 lists of at most .* \(2\) tokens"):
        _propose(runner, [[7], [9]])


def test_rows_without_drafts(make_runner):
    assert _propose(make_runner(Proposer([[], [1]])), [[], [9]]) == [[], [1]]


def test_other_methods_use_their_own_drafter(make_runner, monkeypatch):
    monkeypatch.setattr(model_runner_v1, "get_spec_decode_method", lambda method, *args: f"drafter of {method}")
    assert make_runner(object(), method="ngram").drafter == "drafter of ngram"


def test_only_the_last_rank_drafts(make_runner):
    assert make_runner(Proposer(), is_last_rank=False).drafter is None
