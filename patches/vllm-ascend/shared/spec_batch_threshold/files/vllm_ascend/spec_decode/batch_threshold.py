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
"""Speculation that pauses above a batch size: additional_config's spec_batch_threshold.

A step that runs more than `upper` requests gives no drafts to the next one; drafts come back with a step of at most
`lower` requests. Data parallel ranks wait for each other in each step, so all of them go by the busiest one.
"""

from typing import TYPE_CHECKING

import torch
from vllm.config import CUDAGraphMode
from vllm.logger import logger
from vllm.v1.outputs import DraftTokenIds

from vllm_ascend.ascend_config import get_spec_batch_threshold
from vllm_ascend.utils import should_skip_allreduce_across_dp_group

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

# Drafters that look at all of a request's tokens each time, and so may miss steps. EAGLE's head fills a KV cache of its
# own in every step, prefill above all: it is run, and what it proposes is not used.
MAY_MISS_STEPS = ("ngram", "custom_class")


class BatchThreshold:
    """Whether the drafts of a step are used, from the number of requests that run in it.

    A model runner calls `count` in each step, then, with data parallelism, `pack` and `agree` around its exchange with
    the other ranks, which runs without requests pass through too. After that `drafting` is the same on all ranks.
    """

    def __init__(self, runner: "NPUModelRunner") -> None:
        """Raises ValueError if spec_batch_threshold is wrong."""
        self.upper, self.lower = get_spec_batch_threshold(runner.vllm_config)
        # Ranks of a dense model exchange nothing and do not wait for each other: each goes by its own requests.
        self.alone = runner.dp_size == 1 or should_skip_allreduce_across_dp_group(runner.vllm_config)
        self.dp_rank = runner.dp_rank
        self.drafting = True
        self._drafter_may_miss_steps = runner.speculative_config.method in MAY_MISS_STEPS
        # Requests that run on this rank in the step under way: 0 for a step that is a dummy.
        self._running = 0
        if runner.compilation_config.cudagraph_mode == CUDAGraphMode.FULL_DECODE_ONLY:
            # Its graphs are captured for 1 + num_speculative_tokens tokens a request (uniform_decode_query_len).
            logger.warning(
                "spec_batch_threshold: in cudagraph_mode FULL_DECODE_ONLY steps without drafts, and steps in which "
                "some requests have fewer than others, run without a graph; FULL has graphs for them"
            )

    @property
    def skips_drafter(self) -> bool:
        """Whether the drafter need not run in this step."""
        return not self.drafting and self._drafter_may_miss_steps

    def count(self, running: int) -> None:
        """Takes the number of requests in this rank's batch."""
        self._running = running
        if self.alone:
            self._decide(running)

    def pack(self, packed: torch.Tensor) -> torch.Tensor:
        """Adds a row with this rank's number to `packed`, int32 of [rows, data parallel ranks], which is summed up."""
        running = torch.zeros_like(packed[:1])
        running[0, self.dp_rank] = self._running
        self._running = 0
        return torch.cat([packed, running])

    def agree(self, packed: torch.Tensor) -> None:
        """Decides by the sum of what `pack` has given on all ranks, whose last row has each rank's number."""
        self._decide(int(packed[-1].max()))

    def _decide(self, running: int) -> None:
        if running > self.upper:
            self.drafting = False
        elif running <= self.lower:
            self.drafting = True

    @staticmethod
    def no_drafts(known: "Iterable[str]") -> DraftTokenIds:
        """What a scheduler is given while drafts are not used: it forgets those it still has, of any request.

        One that waits for its turn, because drafts have used up max_num_batched_tokens, would else keep its own.
        """
        req_ids = list(known)
        return DraftTokenIds(req_ids, [[] for _ in req_ids])
