# SPDX-License-Identifier: Apache-2.0
"""Drafts from what a request itself has generated, by the end of it that occurred before.

Used by speculative_config={"method": "custom_class", "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
"num_speculative_tokens": 3}, with settings in additional_config's sam_config (SamConfig).

What followed there is drafted. There is no draft model, and any draft is verified by the model, so that a poor one
costs time and never changes a result.

The ends are found in tables of hashed contexts (`context_tables.py`), or in suffix automata (`suffix_automaton.py`),
from which it has its name: they take twice the time and the memory, and samples of a prompt can share one. Here is what
either is fed and when: the tokens that the runner holds for a request at the end of a step, after those of this step
have been accepted. They are taken by length and not step by step, so that a step that asks for no drafts loses nothing:
the next ones add all that is new.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import Any

import numpy as np
from vllm.logger import logger

from vllm_ascend.ascend_config import get_sam_config
from vllm_ascend.spec_decode.context_tables import MAX_LENGTH, ContextTables
from vllm_ascend.spec_decode.suffix_automaton import SuffixAutomatonPool, as_lists
from vllm_ascend.spec_decode.suffix_automaton_kernels import remember, taken_back

# Tokens that a step learns beside those that it has generated: of prompts, of requests that were moved here, after
# steps without drafts. A request whose tokens wait for a later step gets no drafts so long.
LEARNT_A_STEP = 4096


@dataclass(slots=True)
class _Followed:
    """A request and its slot in the pool.

    `request` is the runner's own state of it. The object is compared and not the id, which can come back with another
    request in the step in which the first one ends.
    """

    request: Any
    slot: int


@dataclass(slots=True)
class _Batch:
    """Requests by their ids, in the order of the batch, and for each its row and its slot."""

    names: list[str]
    requests: list[Any]
    rows: np.ndarray
    slots: np.ndarray


class SamProposer:
    """Proposer which vllm makes by its path and NPUModelRunner asks (AscendCustomClassProposer).

    Every rank of a tensor parallel group proposes, as with ngram, and from the same tokens the same: with an external
    launcher each rank has a scheduler of its own, and they must agree.

    Raises:
        ValueError: additional_config's sam_config is wrong.
    """

    def __init__(self, vllm_config):
        config = get_sam_config(vllm_config)
        self.runner: Any = None
        self.num_drafts = vllm_config.speculative_config.num_speculative_tokens
        self.max_model_len = vllm_config.model_config.max_model_len
        self.share_in_group = config.share_in_group
        settings = {
            "num_draft_tokens": self.num_drafts,
            "min_match_length": config.min_match_length,
            "drafts_per_match": config.max_drafts_per_match,
            "max_bytes": config.max_memory_mb << 20,
            "num_slots": vllm_config.scheduler_config.max_num_seqs,
        }
        # A table is of one request, and its places have 18 bits.
        if self.share_in_group or self.max_model_len > MAX_LENGTH:
            self.pool = SuffixAutomatonPool(**settings)
        else:
            self.pool = ContextTables(max_length=self.max_model_len, **settings)
        self._followed: dict[str, _Followed] = {}
        # The batch of the last call, while all of it got drafts: its requests, their rows and slots.
        self._same: _Batch | None = None
        # Of each slot how many tokens it knows, and the last of them (the latest first).
        self._known = np.zeros(0, np.int32)
        self._tails = np.zeros((0, self.num_drafts + 1), np.int32)
        self._warm_up()

    def set_runner(self, runner) -> None:
        """Takes the model runner, which knows whose tokens a row holds."""
        self.runner = runner

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """Drafts for the next step.

        Args:
            sampled_token_ids: for each row of the runner's input batch the tokens that this step has given it, the
                accepted drafts among them. Empty while a prompt is not complete: such a row gets no drafts.
            num_tokens_no_spec: numpy [rows], how many tokens each row has, those of this step among them.
            token_ids_cpu: numpy int32 [rows, max_model_len], these tokens.
            slot_mappings: not used.

        Returns:
            For each row its drafts, at most num_speculative_tokens, possibly none.
        """
        rows, slots = self._to_draft_for(sampled_token_ids)
        if not len(rows):
            return [[] for _ in sampled_token_ids]
        # A step adds one token to the accepted drafts, and none may stand beyond the model's length.
        lengths = num_tokens_no_spec[rows].astype(np.int32)
        limits = np.clip(self.max_model_len - lengths - 1, 0, self.num_drafts).astype(np.int32)
        lost = self.pool.num_capped
        self._forget_what_was_taken_back(slots, token_ids_cpu, rows, lengths)
        self._bound(lengths, limits, self._known[slots])
        histories = (slots, token_ids_cpu, rows, lengths)
        proposed = as_lists(self.pool.propose(*histories, limits))
        if self.pool.num_capped > lost:
            logger.warning_once(
                "Requests get no drafts any more: their histories have no room. Raise max_memory_mb in "
                "additional_config's sam_config, or lower max_num_seqs."
            )
            # What was given up has nothing to learn, and takes nobody's turn.
            capped = [self.pool.is_capped(slot) for slot in slots.tolist()]
            lengths[capped] = num_tokens_no_spec[rows][capped]
        remember(*histories, self._known, self._tails)
        if len(rows) == len(sampled_token_ids):
            return proposed
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        for row, draft in zip(rows.tolist(), proposed, strict=True):
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

    def _to_draft_for(self, sampled_token_ids) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the batch that get drafts, and their slots, int32.

        Most steps have the batch of the step before, and looking at each request in Python takes as long as its drafts.
        """
        batch, requests, same = self.runner.input_batch, self.runner.requests, self._same
        if (
            same is not None
            and batch.req_ids == same.names
            and all(map(is_, map(requests.get, same.names), same.requests))
            and self._followed.keys() <= requests.keys()
            and all(sampled_token_ids)
        ):
            return same.rows, same.slots
        self.release_ended()
        rows, slots = self._rows_and_slots(sampled_token_ids)
        arrays = np.array(rows, np.int32), np.array(slots, np.int32)
        if len(rows) == len(sampled_token_ids):
            names = batch.req_ids.copy()
            self._same = _Batch(names, [requests[name] for name in names], *arrays)
        else:
            self._same = None
        return arrays

    def _rows_and_slots(self, sampled_token_ids) -> tuple[list[int], list[int]]:
        """The same, by looking at each request; those that are new get a slot."""
        batch, requests = self.runner.input_batch, self.runner.requests
        rows, slots = [], []
        for row, sampled in enumerate(sampled_token_ids):
            req_id = batch.req_ids[row]
            if not sampled:
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

    def _bound(self, lengths: np.ndarray, limits: np.ndarray, known: np.ndarray) -> None:
        """Lowers lengths, int32 [n], so that a step learns LEARNT_A_STEP tokens beside its own; limits to 0 with them.

        Each step's own tokens, the accepted drafts and one more, are learnt at once. Those with least to learn come
        first, so that one long prompt does not keep all others waiting.
        """
        waiting = lengths - known - (self.num_drafts + 1)
        if waiting.max() > 0:
            waiting = waiting.clip(0)
            order = waiting.argsort(kind="stable")
            later = np.empty_like(waiting)
            later[order] = (waiting[order].cumsum() - LEARNT_A_STEP).clip(0, waiting[order])
            lengths -= later.astype(np.int32)
            limits[later > 0] = 0

    def _warm_up(self) -> None:
        """Compiles, or loads, what a step calls, so that none of a request waits for it."""
        self.pool.warm_up()
        none = np.zeros(0, np.int32)
        histories = (none, np.zeros((1, 1), np.int32), none, none)
        self._forget_what_was_taken_back(*histories)
        remember(*histories, self._known, self._tails)

    def _forget_what_was_taken_back(self, slots, token_ids, rows, lengths) -> None:
        """Forgets a history, which is then taken anew, when tokens of it have been replaced.

        Tokens of a step whose KV cache could not be loaded are taken back, and computed again
        (GPUModelRunner._update_states). These are the last ones that a slot knows, at most drafts + 1, and others can
        stand in their places, as many or more: lengths alone do not tell.
        """
        found = np.empty(len(slots), np.bool_)
        if taken_back(slots, token_ids, rows, lengths, self._known, self._tails, found):
            for slot in slots[found].tolist():
                if not self.pool.is_capped(slot):
                    self.pool.forget(slot)
                    self._known[slot] = 0
