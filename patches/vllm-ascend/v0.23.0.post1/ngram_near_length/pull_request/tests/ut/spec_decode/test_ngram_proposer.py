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

import numpy as np
import pytest

from vllm_ascend.spec_decode.ngram_proposer import AscendNgramProposer
from vllm_ascend.utils import vllm_version_is

MAX_MODEL_LEN, NUM_DRAFTS = 10, 3

pytestmark = pytest.mark.skipif(
    not vllm_version_is("0.23.0"), reason="only for vLLM 0.23.0 propose reads the input batch"
)


def _propose(*histories, num_sampled, unsupported=()):
    """Proposes for requests "0", "1", ... whose last `num_sampled` tokens the runner has already written."""
    token_ids = np.zeros((len(histories), MAX_MODEL_LEN), np.int32)
    for row, history in zip(token_ids, histories):
        row[: len(history)] = history
    batch = SimpleNamespace(
        req_ids=[str(row) for row in range(len(histories))],
        spec_decode_unsupported_reqs=set(unsupported),
        num_tokens_no_spec=np.array([len(history) for history in histories], np.int32),
        token_ids_cpu=token_ids,
        max_model_len=MAX_MODEL_LEN,
    )
    vllm_config = SimpleNamespace(
        speculative_config=SimpleNamespace(prompt_lookup_min=1, prompt_lookup_max=2, num_speculative_tokens=NUM_DRAFTS),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN),
        scheduler_config=SimpleNamespace(max_num_seqs=4),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    proposer = AscendNgramProposer(vllm_config, SimpleNamespace(input_batch=batch))
    return proposer.propose([history[len(history) - num_sampled :] for history in histories]), token_ids


def _repeating(length):
    return ([1, 2, 3, 4] * MAX_MODEL_LEN)[:length]


@pytest.mark.parametrize("num_sampled", range(1, NUM_DRAFTS + 2))
@pytest.mark.parametrize("length", range(6, MAX_MODEL_LEN + 1))
def test_accepted_tokens_near_max_model_len(length, num_sampled):
    drafts, _ = _propose(_repeating(length), num_sampled=num_sampled)
    assert drafts == [_repeating(MAX_MODEL_LEN)[length : length + NUM_DRAFTS]]


def test_input_batch_is_not_modified():
    history = _repeating(6)
    _, token_ids = _propose(history, num_sampled=2)
    assert token_ids.tolist() == [history + [0] * (MAX_MODEL_LEN - len(history))]


def test_rows_without_drafts():
    history = _repeating(6)
    assert _propose(history, num_sampled=0)[0] == [[]]
    assert _propose(history, history, num_sampled=1, unsupported="0")[0] == [[], [3, 4, 1]]
    assert _propose([1, 2, 3], num_sampled=1)[0] == [[]]
