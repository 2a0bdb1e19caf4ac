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
from unittest.mock import patch

import numpy as np
import pytest
from vllm.config import VllmConfig

from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config
from vllm_ascend.utils import speculative_enable_dispatch_gmm_combine_decode

SAM_PROPOSER = "vllm_ascend.spec_decode.sam_proposer.SamProposer"
MAX_MODEL_LEN, NUM_DRAFTS = 16, 3
TABLES, AUTOMATON = {}, {"share_in_group": True}


def _vllm_config(sam_config=None, model=SAM_PROPOSER):
    return SimpleNamespace(
        additional_config={"sam_config": sam_config} if sam_config is not None else {},
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        speculative_config=SimpleNamespace(method="custom_class", model=model, num_speculative_tokens=NUM_DRAFTS),
    )


def _request(*prompt):
    return SimpleNamespace(prompt_token_ids=list(prompt), mm_features=[], lora_request=None)


class Engine:
    """A proposer together with the parts of the model runner it reads."""

    def __init__(self, **sam_config):
        from vllm_ascend.spec_decode.sam_proposer import SamProposer

        self.input_batch, self.requests = SimpleNamespace(req_ids=[]), {}
        self.proposer = SamProposer(_vllm_config(sam_config))
        self.proposer.set_runner(self)

    def step(self, *histories, requests=None, sampled=None):
        """Returns the drafts for requests "0", "1", ... with these tokens."""
        self.input_batch.req_ids = [str(row) for row in range(len(histories))]
        for name, request in zip(self.input_batch.req_ids, requests or [_request(0)] * len(histories), strict=True):
            if requests or name not in self.requests:
                self.requests[name] = request
        lengths = np.array([len(one) for one in histories], np.int32)
        token_ids = np.zeros((len(histories), MAX_MODEL_LEN), np.int32)
        for row, history in zip(token_ids, histories, strict=True):
            row[: len(history)] = history
        return self.proposer.propose(sampled or [one[-1:] for one in histories], lengths, token_ids)


@pytest.mark.parametrize("sam_config", [TABLES, AUTOMATON], ids=["tables", "automaton"])
def test_drafts_what_followed_before(sam_config):
    engine = Engine(**sam_config)
    assert engine.step([1, 2, 3]) == [[]]
    assert engine.step([1, 2, 3, 4, 5, 1]) == [[2, 3, 4]]
    # The longest match wins, and tokens of steps that asked for no drafts are caught up on.
    assert engine.step([1, 2, 3, 4, 5, 1, 7, 3, 9, 2, 3]) == [[4, 5, 1]]


@pytest.mark.parametrize("length", range(MAX_MODEL_LEN - 3, MAX_MODEL_LEN + 1))
def test_no_drafts_beyond_max_model_len(length):
    drafts = Engine().step(([1, 2] * MAX_MODEL_LEN)[:length])
    assert len(drafts[0]) == max(0, min(NUM_DRAFTS, MAX_MODEL_LEN - length - 1))


def test_incomplete_prompt_gets_no_drafts():
    assert Engine().step([1, 2, 3, 1], [1, 2, 3, 1], sampled=[[], [1]]) == [[], [2, 3, 1]]


@pytest.mark.parametrize("sam_config", [TABLES, AUTOMATON], ids=["tables", "automaton"])
def test_reused_request_id_starts_afresh(sam_config):
    engine = Engine(**sam_config)
    engine.step([1, 2, 3, 4, 5, 6, 7, 8], requests=[_request(1, 2)])
    assert engine.step([9, 9, 9, 9, 5, 6, 7, 8, 1], requests=[_request(9, 9)]) == [[]]
    assert engine.step([9, 9, 9, 9, 5, 6, 7, 8, 1, 5]) == [[6, 7, 8]]


@pytest.mark.parametrize("sam_config", [TABLES, AUTOMATON], ids=["tables", "automaton"])
def test_replaced_tokens_are_forgotten(sam_config):
    engine = Engine(**sam_config)
    engine.step([1, 2, 3, 4, 8])
    assert engine.step([1, 2, 3, 4, 9, 1, 2, 3, 4]) == [[9, 1, 2]]


@pytest.mark.parametrize(("share", "expected"), [(True, [2, 3]), (False, [])])
def test_samples_of_a_prompt_share_their_history(share, expected):
    requests = [_request(7, 8), _request(7, 8), _request(7)]
    histories = [7, 8, 1, 2, 3], [7, 8, 1], [7, 8, 1]
    drafts = Engine(share_in_group=share).step(*histories, requests=requests)
    assert drafts[1][:2] == expected
    assert drafts[2] == [], "a different prompt"


def test_limits_for_short_matches():
    assert Engine(min_match_length=2).step([1, 2, 3, 1], [1, 2, 3, 1, 2]) == [[], [3, 1, 2]]
    assert Engine(max_drafts_per_match=1).step([1, 2, 3, 1], [1, 2, 3, 1, 2]) == [[2], [3, 1]]


@pytest.mark.parametrize(
    "sam_config", [{"min_match_length": 0}, {"share_in_group": 1}, {"max_memory_mb": 8192}, {"unknown": 1}, 5]
)
def test_invalid_settings(sam_config):
    from vllm_ascend.ascend_config import get_sam_config

    with pytest.raises(ValueError, match="sam_config"):
        get_sam_config(_vllm_config(sam_config))


def test_settings_without_the_proposer():
    with patch("vllm_ascend.platform.NPUPlatform.check_and_update_config"):
        vllm_config = VllmConfig()
    vllm_config.additional_config = {"sam_config": {}}
    with pytest.raises(ValueError, match="sam_config belongs to"):
        init_ascend_config(vllm_config)
    clear_ascend_config()


@pytest.mark.parametrize(("model", "enabled"), [(SAM_PROPOSER, True), ("package.OtherProposer", False)])
def test_fused_dispatch_stays_enabled(model, enabled):
    assert speculative_enable_dispatch_gmm_combine_decode(_vllm_config(model=model)) == enabled
