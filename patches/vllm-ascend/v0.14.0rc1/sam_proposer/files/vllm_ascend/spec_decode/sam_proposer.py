# SPDX-License-Identifier: Apache-2.0
"""Drafts from what a request itself has generated, through a suffix automaton (method `sam`).

The longest suffix of a request's tokens that occurred before is followed. There is no draft model, and any draft is
verified by the model, so that a poor one costs time and never changes a result.

The automata are in `suffix_automaton.py`. Here is what they are fed and when: the tokens that the runner holds for a
request at the end of a step, after those of this step have been accepted. They are taken by length and not step by
step, so that a step that asks for no drafts loses nothing: the next one adds all that is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from vllm.logger import logger

from vllm_ascend.spec_decode.interface import Proposer, SpecDcodeType
from vllm_ascend.spec_decode.suffix_automaton import SuffixAutomatonPool, as_lists


@dataclass(slots=True)
class _Followed:
    """A request and its place in the automata.

    `request` is the runner's own state of it. The object is compared and not the id, which can come back with another
    request in the step in which the first one ends.
    """

    request: Any
    slot: int


class SamProposer(Proposer):
    """Suffix automaton proposer of NPUModelRunner, beside its ngram and suffix proposers.

    Every rank of a tensor parallel group proposes, as with ngram, and from the same tokens the same: with an external
    launcher each rank has a scheduler of its own, and they must agree.

    Raises:
        ValueError: speculative_config's sam_max_memory_mb or num_speculative_tokens is out of the automata's range.
    """

    def __init__(self, vllm_config, device, runner):
        config = vllm_config.speculative_config
        self.name = SpecDcodeType.SAM
        self.device = device
        self.runner = runner
        self.num_drafts = config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        self.share_in_group = config.sam_share_in_group
        self.pool = SuffixAutomatonPool(
            num_draft_tokens=self.num_drafts,
            min_match_length=config.sam_min_match_length,
            drafts_per_match=config.sam_max_drafts_per_match,
            max_bytes=config.sam_max_memory_mb << 20,
            num_slots=vllm_config.scheduler_config.max_num_seqs,
        )
        self.pool.warm_up()
        self._followed: dict[str, _Followed] = {}
        # Of each slot how many tokens it knows, and the last of them (the latest first).
        self._known = np.zeros(0, np.int32)
        self._tails = np.zeros((0, self.num_drafts + 1), np.int32)

    def load_model(self, *args, **kwargs):
        # No model to load.
        pass

    def dummy_run(self, *args, **kwargs):
        # No model to run.
        pass

    def generate_token_ids(
        self,
        valid_sampled_token_ids,
        sampling_metadata=None,
        scheduler_output=None,
        spec_decode_metadata=None,
        positions=None,
        num_scheduled_tokens=None,
        hidden_states=None,
        aux_hidden_states=None,
    ) -> list[list[int]]:
        """Drafts for the next step.

        Args:
            valid_sampled_token_ids: for each row of the runner's input batch the tokens that this step has given it,
                the accepted drafts among them. Empty while a prompt is not complete: such a row gets no drafts. They
                stand in the batch's `token_ids_cpu` already.

        Returns:
            For each row its drafts, at most num_speculative_tokens, possibly none.
        """
        self.release_ended()
        batch = self.runner.input_batch
        rows, slots = self._rows_to_draft_for(valid_sampled_token_ids)
        drafts: list[list[int]] = [[] for _ in valid_sampled_token_ids]
        if not rows:
            return drafts
        rows_array, slots_array = np.array(rows, np.int32), np.array(slots, np.int32)
        # A step adds one token to the accepted drafts, and none may stand beyond the model's length.
        lengths = batch.num_tokens_no_spec[rows_array].astype(np.int32)
        limits = np.clip(self.max_model_len - lengths - 1, 0, self.num_drafts).astype(np.int32)
        lost = self.pool.num_capped
        self._forget_what_was_taken_back(slots_array, rows_array, lengths)
        proposed = self.pool.propose(slots_array, batch.token_ids_cpu, rows_array, lengths, limits)
        if self.pool.num_capped > lost:
            logger.warning_once(
                "Requests get no drafts any more: their automata have no room. Raise speculative_config's "
                "sam_max_memory_mb, or lower max_num_seqs."
            )
        self._known[slots_array] = lengths
        self._tails[slots_array] = self._last_tokens(rows_array, lengths)
        for row, draft in zip(rows, as_lists(*proposed), strict=True):
            drafts[row] = draft
        return drafts

    def release_ended(self) -> None:
        """Frees what is kept for requests that the runner has no more.

        The runner's requests are asked, and not the scheduler's list of those that end in this step: steps without
        drafts, and steps without a token, end requests too. One that is preempted stays, as does its automaton.
        """
        requests = self.runner.requests
        ended = [req_id for req_id, one in self._followed.items() if requests.get(req_id) is not one.request]
        for req_id in ended:
            slot = self._followed.pop(req_id).slot
            self.pool.close(slot)
            self._known[slot] = 0

    def _rows_to_draft_for(self, valid_sampled_token_ids) -> tuple[list[int], list[int]]:
        """The rows of the batch that get drafts, and their slots."""
        batch, requests = self.runner.input_batch, self.runner.requests
        rows, slots = [], []
        for row, sampled in enumerate(valid_sampled_token_ids):
            req_id = batch.req_ids[row]
            if not sampled or req_id in batch.spec_decode_unsupported_reqs:
                continue
            followed = self._followed.get(req_id)
            if followed is None:
                if requests[req_id].prompt_token_ids is None:
                    continue  # a prompt of embeddings: there are no tokens to follow
                followed = self._followed[req_id] = self._follow(requests[req_id])
            rows.append(row)
            slots.append(followed.slot)
        return rows, slots

    def _follow(self, request) -> _Followed:
        slot = self.pool.open(self._group_of(request))
        if slot >= len(self._known):
            more = max(slot + 1 - len(self._known), len(self._known))
            self._known = np.pad(self._known, (0, more))
            self._tails = np.pad(self._tails, ((0, more), (0, 0)))
        return _Followed(request, slot)

    def _group_of(self, request) -> tuple | None:
        """What the samples of one prompt have in common: its tokens themselves, and the LoRA adapter.

        Not the request's id: `n` samples have ids of one pattern, but a trainer that repeats its prompts gives each
        sample an id of its own. Equal tokens can stand for different images, therefore these are not shared.
        """
        if not self.share_in_group or request.mm_features:
            return None
        lora = request.lora_request.lora_int_id if request.lora_request else 0
        return np.array(request.prompt_token_ids, np.int32).tobytes(), lora

    def _last_tokens(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """int32 [rows, drafts + 1]: the last tokens of each row's history, the latest first."""
        places = lengths[:, None] - np.arange(1, self.num_drafts + 2, dtype=np.int32)
        return self.runner.input_batch.token_ids_cpu[rows[:, None], np.maximum(places, 0)]

    def _forget_what_was_taken_back(self, slots: np.ndarray, rows: np.ndarray, lengths: np.ndarray) -> None:
        """Takes a history anew when tokens of it have been replaced.

        Tokens of a step whose KV cache could not be loaded are taken back, and computed again
        (GPUModelRunner._update_states). These are the last ones that a slot knows, at most drafts + 1, and others can
        stand in their places, as many or more: lengths alone do not tell.
        """
        known = self._known[slots]
        replaced = (self._last_tokens(rows, known) != self._tails[slots]).any(axis=1) | (lengths < known)
        for i in np.flatnonzero(replaced & (known > 0)):
            self.pool.sync(int(slots[i]), self.runner.input_batch.token_ids_cpu[rows[i], : lengths[i]])
