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

import numpy as np
import pytest
from vllm.config import VllmConfig

from vllm_ascend.ascend_config import clear_ascend_config, init_ascend_config

SAM_PROPOSER = "vllm_ascend.spec_decode.sam_proposer.SamProposer"
MAX_MODEL_LEN, NUM_DRAFTS = 16, 3
SETTING = {"max_memory_mb": 8, "updates": 1}


def _vllm_config(setting, model=SAM_PROPOSER):
    return SimpleNamespace(
        additional_config={"sam_shared_history": setting} if setting is not None else {},
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        speculative_config=SimpleNamespace(method="custom_class", model=model, num_speculative_tokens=NUM_DRAFTS),
    )


def _request(tokens, adapter=None, mm_features=()):
    tokens = {"prompt_token_ids": tokens[:1], "output_token_ids": tokens[1:], "prompt_embeds": None}
    lora_request = SimpleNamespace(lora_int_id=adapter) if adapter else None
    return SimpleNamespace(**tokens, mm_features=list(mm_features), lora_request=lora_request)


class Engine:
    """A proposer together with the parts of the model runner and the model it hooks into."""

    def __init__(self, setting):
        from vllm_ascend.spec_decode.sam_proposer import SamProposer

        self.input_batch, self.requests = SimpleNamespace(req_ids=["running"]), {}
        self.model = SimpleNamespace(load_weights=MagicMock(return_value={"weight"}))
        self.proposer = SamProposer(_vllm_config(setting))
        self.proposer.set_runner(self)
        if hasattr(self.proposer, "load_model"):
            self.proposer.load_model(self.model)

    def _update_states(self, scheduler_output):
        for req_id in scheduler_output.finished_req_ids:
            del self.requests[req_id]

    def add_lora(self, lora_request):
        return lora_request

    def end(self, tokens, **kwargs):
        """Finishes a request that never asked for drafts."""
        self.requests["ended"] = _request(tokens, **kwargs)
        self._update_states(SimpleNamespace(finished_req_ids={"ended"}))
        assert not self.requests

    def drafts(self, tokens, **kwargs):
        """Returns the drafts for a new request with these tokens, which is then aborted."""
        self.requests["running"] = _request(tokens, **kwargs)
        token_ids = np.array([tokens + [0] * (MAX_MODEL_LEN - len(tokens))], np.int32)
        drafts = self.proposer.propose([tokens[-1:]], np.array([len(tokens)], np.int32), token_ids)
        self.requests.clear()
        return drafts[0]


@pytest.mark.parametrize(("setting", "expected"), [(SETTING, [3, 4, 5]), (None, [])])
def test_drafts_from_finished_requests(setting, expected):
    engine = Engine(setting)
    engine.end([1, 2, 3, 4, 5])
    assert engine.drafts([9, 1, 2]) == expected


def test_most_frequent_continuation_wins():
    engine = Engine(SETTING)
    for last in (3, 4, 4, 3, 4, 5):
        engine.end([1, 2, last])
    assert engine.drafts([1, 2]) == [4]


def test_longer_match_wins():
    engine = Engine(SETTING)
    engine.end([1, 2, 3])
    assert engine.drafts([2, 9, 1, 2])[0] == 3
    assert engine.drafts([1, 2, 9, 1, 2])[0] == 9


@pytest.mark.parametrize("kind", ["weights", "adapter"])
def test_second_update_drops_the_older_generation(kind):
    engine = Engine(SETTING)
    update, returned = (engine.model.load_weights, {"weight"}) if kind == "weights" else (engine.add_lora, kind)
    engine.end([1, 2, 3])
    assert update(kind) == returned
    assert update(kind) == returned  # the same update, continued
    assert engine.drafts([1, 2]) == [3]
    engine.end([5, 6, 7])
    update(kind)
    assert engine.drafts([1, 2]) == []
    assert engine.drafts([5, 6]) == [7]


def test_adapters_and_images_are_not_mixed():
    engine = Engine(SETTING)
    engine.end([1, 2, 3], adapter=1)
    engine.end([1, 2, 4], mm_features=["image"])
    assert engine.drafts([1, 2]) == []
    assert engine.drafts([1, 2], adapter=1) == [3]
    assert engine.drafts([1, 2], adapter=2) == []
    assert engine.drafts([1, 2], adapter=1, mm_features=["image"]) == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (5, "must be"),
        ({"updates": 1}, "must be"),
        (SETTING | {"updates": 0}, "must be"),
        (SETTING | {"updates": True}, "must be"),
        (SETTING, "belongs to"),
    ],
)
def test_invalid_config(setting, message):
    with patch("vllm_ascend.platform.NPUPlatform.check_and_update_config"):
        vllm_config = VllmConfig()
    vllm_config.additional_config = {"sam_shared_history": setting}
    with pytest.raises(ValueError, match=f"sam_shared_history {message}"):
        init_ascend_config(vllm_config)
    clear_ascend_config()
