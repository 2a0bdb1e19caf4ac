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
"""Requests out of one vllm engine and into another, between two steps. Written for vllm 0.14's in-process engine.

A request lives in three places: the scheduler (`Request`, queue, block table), the model runner (`CachedRequestState`
and a row of the persistent batch) and, on its rank of origin only, the output processor. The last never moves.

A running request that has arrived is put into `Scheduler.running` with its blocks in the block table and a
`CachedRequestState` in the runner. To both it looks like a running request that was passed over in the last step, which
the runner adds to its batch out of that state (GPUModelRunner._update_states, "needs to be added again"): what the
batch keeps for the sampler (penalties, log-probabilities, generators, logits processors) is made by the engine's own
code. One that leaves goes the way of a finished one, by `Scheduler.finished_req_ids`. Block hashes are computed anew at
the destination: they begin with a number that every process draws for itself (vllm's init_none_hash).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.v1.request import Request, RequestStatus
from vllm.v1.worker.gpu_input_batch import CachedRequestState

# Attributes that are the same wherever a request is, and are plain data
CARRIED = ("stop_reason", "num_cached_tokens", "num_nans_in_logits", "num_preemptions", "events")


@dataclass
class Parcel:
    """A request on its way, without the contents of its KV blocks.

    Attributes:
        origin, serial: the data-parallel rank that was given the request, and its number there.
        arguments: of vllm's Request, but for its id and block hasher.
        output_token_ids: what has been generated so far.
        carried: values of CARRIED.
        num_computed_tokens: tokens whose KV goes along; 0 for a waiting request.
        preempted: it waits, and has been running before.
        generator: state of its own random generator, None without a seed (or before its first step).
    """

    origin: int
    serial: int
    arguments: dict[str, Any]
    output_token_ids: list[int]
    carried: dict[str, Any]
    num_computed_tokens: int = 0
    preempted: bool = False
    generator: torch.Tensor | None = None

    @property
    def running(self) -> bool:
        return self.num_computed_tokens > 0


@dataclass
class Arrival:
    """A parcel that this rank has room for. `blocks` are those that its KV has still to be written to."""

    parcel: Parcel
    request: Request
    missing_from: int = 0
    blocks: list[int] = field(default_factory=list)


def is_settled(request: Request) -> bool:
    """Whether all but the last token of the request have their KV: no prefill is left, and no draft is unverified."""
    return request.num_output_tokens > 0 and request.num_computed_tokens == request.num_tokens - 1


class EngineRequests:
    """The requests of this process' engine.

    Args:
        core: vllm's EngineCore.
        runner: its NPUModelRunner.
    """

    def __init__(self, core, runner) -> None:
        self._core, self._runner = core, runner
        self.scheduler = core.scheduler
        # Running requests that have been received and are not inserted yet
        self._expected = 0

    def is_drafting(self) -> bool:
        """Whether the next step may verify drafts: vllm-ascend's spec_batch_threshold, if it is there, pauses them."""
        threshold = getattr(self._runner, "batch_threshold", None)
        return threshold is None or threshold.drafting

    def is_movable(self, request: Request) -> bool:
        """Whether everything that the request needs can go along.

        Prompt log-probabilities, grammars, prompt embeddings, images and adapters stay with the engine that has them.
        """
        params = request.sampling_params
        if params is None or params.prompt_logprobs is not None or request.use_structured_output:
            return False
        if request.prompt_token_ids is None or request.has_encoder_inputs or request.lora_request is not None:
            return False
        if request.kv_transfer_params is not None or request.num_output_placeholders:
            return False
        if request.status == RequestStatus.RUNNING:
            return is_settled(request)
        return request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED) and not request.num_computed_tokens

    def blocks(self, request: Request) -> list[int]:
        """Numbers of the request's KV blocks, in order."""
        return self.scheduler.kv_cache_manager.get_block_ids(request.request_id)[0]

    def used_blocks(self, request: Request) -> list[int]:
        """Those of its blocks that hold computed tokens."""
        size = self.scheduler.block_size
        return self.blocks(request)[: -(-request.num_computed_tokens // size)]

    def pack(self, request: Request, origin: int, serial: int) -> Parcel:
        """What another engine needs to go on with the request. Changes nothing here."""
        state = self._runner.requests.get(request.request_id)
        generator = state.generator if state else None
        return Parcel(
            origin=origin,
            serial=serial,
            arguments={
                "prompt_token_ids": list(request.prompt_token_ids),
                "sampling_params": request.sampling_params,
                "pooling_params": None,
                "eos_token_id": request.eos_token_id,
                "arrival_time": request.arrival_time,
                "cache_salt": request.cache_salt,
                "priority": request.priority,
                "trace_headers": request.trace_headers,
            },
            output_token_ids=list(request.output_token_ids),
            carried={name: getattr(request, name) for name in CARRIED},
            num_computed_tokens=request.num_computed_tokens,
            preempted=request.status == RequestStatus.PREEMPTED,
            generator=generator.get_state() if generator is not None else None,
        )

    def receive(self, parcel: Parcel, request_id: str) -> Arrival | None:
        """Makes the request, with KV blocks if it runs. None when there is no room now; nothing has changed then.

        Blocks that the prefix cache has here are shared, the others are new and must be written before the next step.
        """
        request = Request(request_id=request_id, block_hasher=self._core.request_block_hasher, **parcel.arguments)
        if parcel.output_token_ids:
            request.append_output_token_ids(list(parcel.output_token_ids))
        for name, value in parcel.carried.items():
            setattr(request, name, value)
        if not parcel.running:
            request.status = RequestStatus.PREEMPTED if parcel.preempted else RequestStatus.WAITING
            return Arrival(parcel, request)
        return self._with_blocks(parcel, request)

    def _with_blocks(self, parcel: Parcel, request: Request) -> Arrival | None:
        if len(self.scheduler.running) + self._expected >= self.scheduler.max_num_running_reqs:
            return None
        manager = self.scheduler.kv_cache_manager
        shared, shared_tokens = manager.get_computed_blocks(request)
        if shared_tokens == parcel.num_computed_tokens:  # allocate_slots wants at least one token
            shared = manager.create_kv_cache_blocks((shared.blocks[0][:-1],))
            shared_tokens -= self.scheduler.block_size
        # As for a prefill of these tokens, so the prefix cache learns of the full blocks as well.
        missing = parcel.num_computed_tokens - shared_tokens
        if manager.allocate_slots(request, missing, shared_tokens, shared) is None:
            return None
        self._expected += 1
        request.num_computed_tokens = parcel.num_computed_tokens
        request.status = RequestStatus.RUNNING
        first = shared_tokens // self.scheduler.block_size
        return Arrival(parcel, request, first, self.used_blocks(request)[first:])

    def insert(self, arrival: Arrival) -> None:
        """Lets the engine go on with a request that has arrived; its blocks have been written."""
        parcel, request = arrival.parcel, arrival.request
        self.scheduler.requests[request.request_id] = request
        if parcel.running or parcel.preempted:
            self._runner.requests[request.request_id] = self._runner_state(parcel, request)
        if parcel.running:
            self.scheduler.running.append(request)
            self._expected -= 1
        elif parcel.preempted:
            self.scheduler.waiting.prepend_request(request)  # as Scheduler._preempt_request does
        else:
            self.scheduler.waiting.add_request(request)

    def _runner_state(self, parcel: Parcel, request: Request) -> CachedRequestState:
        generator = None
        if parcel.generator is not None:
            generator = torch.Generator(device=self._runner.device)
            generator.set_state(parcel.generator)
        return CachedRequestState(
            req_id=request.request_id,
            prompt_token_ids=request.prompt_token_ids,
            mm_features=[],
            sampling_params=request.sampling_params,
            generator=generator,
            block_ids=(self.blocks(request) if parcel.running else [],),
            num_computed_tokens=parcel.num_computed_tokens,
            output_token_ids=list(parcel.output_token_ids),
        )

    def remove(self, request: Request) -> None:
        """Takes the request out of this engine, which forgets it as it forgets a finished one."""
        if request.status == RequestStatus.RUNNING:
            self.scheduler.running.remove(request)
        else:
            self.scheduler.waiting.remove_request(request)
        self.scheduler.kv_cache_manager.free(request)
        del self.scheduler.requests[request.request_id]
        self.scheduler.prev_step_scheduled_req_ids.discard(request.request_id)
        self.scheduler.finished_req_ids.add(request.request_id)

    def forget_slots(self) -> None:
        """Lets a dummy step write no KV.

        In a full graph it writes where the last real step did (_build_dummy_attn_metadata leaves the slots), which
        does no harm to a rank that has ended. This one may still receive requests that share those blocks.
        """
        self._runner.input_batch.block_table[0].slot_mapping.gpu.fill_(-1)

    def abort(self, request_ids: Sequence[str]) -> None:
        """Ends requests that nobody waits for any more."""
        self.scheduler.finish_requests(list(request_ids), RequestStatus.FINISHED_ABORTED)
