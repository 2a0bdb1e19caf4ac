# Copyright 2025 Individual Contributor: patchctl
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
"""Where a rebalance happens: four methods of one rollout's engine, replaced on that instance.

`LLM.generate` asks `LLMEngine.has_unfinished_requests`, which the data-parallel ranks answer together, and calls
`step`, until nobody has anything left. So every rank makes the same number of steps, those that are done make dummy
ones, and the ranks agree on the number of a step without a word. Replaced are

- `LLMEngine.has_unfinished_requests`: a rank also goes on as long as it has guests, or has requests elsewhere, whose
  results its output processor waits for. The collective that upstream makes here says one thing more: whether any rank
  still has something to compute, and whether an abort must not wait.
- `LLMEngine.step`: what a rank raises in it the others raise too, when they meet next. A rank that fails before the
  model's own collectives of the step leaves the others in those, where nothing reaches them.
- `InprocClient.get_output`: before a step that is due, the rebalance; then the step, or a dummy one. What came out of
  guests is kept for their origin, and what came home is put before what came out of the step, so that
  `LLMEngine.step` treats it as its own.
- `InprocClient.abort_requests`: aborts of requests that are elsewhere are sent there with the next exchange.
"""

import logging
import os

from vllm.v1.engine import EngineCoreOutputs

from .channel import RebalanceError
from .executor import Rebalancer

logger = logging.getLogger(__file__)
logger.setLevel(os.getenv("VERL_LOGGING_LEVEL", "WARN"))


class EngineHook:
    """Makes one LLMEngine take part in rebalancing.

    Args:
        engine: vllm's LLMEngine, with an InprocClient.
        rebalancer: of this process.
        column, ledger: those of the rebalancer.
        interval: steps between two plans.
    """

    def __init__(self, engine, rebalancer: Rebalancer, column, ledger, interval: int) -> None:
        self._engine, self._client = engine, engine.engine_core
        self._core = self._client.engine_core
        self._rebalancer, self._column, self._ledger, self._interval = rebalancer, column, ledger, interval
        self._step_engine = engine.step
        self._step_output, self._abort_here = self._client.get_output, self._client.abort_requests
        self._steps = 0
        self._computing = self._urgent = self._idle = False

    @property
    def counts(self):
        """What has been moved, as executor.Counts."""
        return self._rebalancer.counts

    def install(self) -> None:
        self._engine.has_unfinished_requests, self._engine.step = self.has_unfinished_requests, self.step
        self._client.get_output = self.get_output
        self._client.abort_requests = self.abort_requests

    def has_unfinished_requests(self) -> bool:
        """Whether the group goes on, in place of LLMEngine's; a collective call of the column.

        Raises RebalanceError on every rank when a request has been lost, rather than wait for it for ever.
        """
        waits = self._engine.output_processor.has_unfinished_requests()
        holds = self._holds()
        urgent = any(self._rebalancer.aborts)
        going_on, computing, urgent = self._column.largest([waits or holds, holds, urgent])
        self._computing, self._urgent = bool(computing), bool(urgent)
        was_idle, self._idle = self._idle, bool(going_on and not computing)
        if was_idle and self._idle:  # the exchange of the step between has brought everything home
            raise RebalanceError("rebalance: a rank waits for results, and no rank computes or has any")
        if not going_on:
            self._end_of_generation()
        return bool(going_on)

    def _holds(self) -> bool:
        return self._core.scheduler.get_num_unfinished_requests() > 0

    def _end_of_generation(self) -> None:
        if self._steps:
            logger.info(f"rollout_rebalance after {self._steps} steps: {self.counts}")
        self._ledger.clear()
        # A request can end elsewhere in the step after which its origin aborts it.
        self._rebalancer.forget()
        self._steps = 0

    def step(self) -> list:
        """LLMEngine's; what it raises is raised on every rank."""
        try:
            return self._step_engine()
        except RebalanceError:
            raise
        except Exception as error:
            self._column.fail(error)

    def get_output(self) -> EngineCoreOutputs:
        """One step, in place of InprocClient's; the ranks of the column make it together."""
        self._steps += 1
        came_home = []
        # When nobody computes, somebody waits for results: there is nothing to wait for.
        due = self._computing and self._steps % self._interval == 0
        if due or self._urgent or not self._computing:
            came_home = self._rebalancer.rebalance(planning=due)
        outputs = self._advance() if self._computing else EngineCoreOutputs()
        outputs.outputs = came_home + [one for one in outputs.outputs if self._is_ours(one)]
        return outputs

    def _advance(self) -> EngineCoreOutputs:
        """Computes. A rank that has nothing makes a dummy step: the others need its experts."""
        if self._holds():
            return self._step_output()
        self._rebalancer.before_dummy()
        self._core.execute_dummy_batch()
        return EngineCoreOutputs()

    def _is_ours(self, output) -> bool:
        """Whether the output is for this rank's output processor, under the name it has there; others are kept."""
        key = self._ledger.stay(output.request_id)
        if key is None:
            return True
        if output.finish_reason is not None:
            self._ledger.gone(key)
        origin, serial = key
        if origin != self._column.rank:
            self._rebalancer.outbox[origin].append((serial, output))
            return False
        output.request_id = self._ledger.original(serial)
        return True

    def abort_requests(self, request_ids: list[str]) -> None:
        """Aborts requests of this rank, wherever they are, in place of InprocClient's."""
        here = []
        for request_id in request_ids:
            found = self._ledger.where(request_id)
            if found is None:
                here.append(request_id)
            elif found[0] == self._column.rank:
                self._rebalancer.end_guest(found[1])
            else:
                self._rebalancer.send_abort(found[1])
        self._abort_here(here)
