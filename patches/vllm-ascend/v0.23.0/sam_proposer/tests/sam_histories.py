"""Plays random courses of requests on vllm-ascend's own input batch, without a model, and asks SamProposer for drafts.

What the runner does to a batch between two steps is done here at random: requests come, end, are preempted and come
back, an id comes back with another request, tokens are taken back, drafts stand behind the accepted tokens, rows move,
and some steps ask for no drafts. After each that does, every history is compared with the one that was played.
"""

import random
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch
from sam_watch import follows, made_at_once, settings_of

DRAFTS, SHORTEST, ROWS = 3, 2, 5


def history():
    plays = [Play(seed) for seed in range(12)]
    groups = [Play(seed, share=True) for seed in range(12)]
    # One MiB has room for some 50,000 tokens, and five histories of about 8,000 and those that wait are played.
    full = Play(0, width=8192, first=7900, vocabulary=400, megabytes=1)
    return {
        "pools": {
            name: type(Play(0, **how).drafter.pool).__name__
            for name, how in {"alone": {}, "shared": {"share": True}, "long": {"width": 1 << 18}}.items()
        },
        "bound": bound(plays[0].drafter),
        "alone": merged([play.course(120) for play in plays]),
        "shared": merged([play.course(120) for play in groups]),
        "full": full.course(200),
        "adapters": merged([Apart(seed).course(120) for seed in range(6)]),
    }


def bound(drafter):
    """Lengths and limits of a step with histories of which nothing is known, one that is a step on, and one of two steps."""
    lengths, known = np.array([10_000, 5, 3_000, 6], np.int32), np.array([0, 4, 0, 0], np.int32)
    limits = np.full(4, DRAFTS, np.int32)
    drafter._bound(lengths, limits, known)
    return [lengths.tolist(), limits.tolist()]


def merged(courses):
    return {name: sum((course[name] for course in courses), type(courses[0][name])()) for name in courses[0]}


class Play:
    """One course. `width` is the model's length, `first` the longest prompt."""

    def __init__(self, seed, share=False, width=96, first=24, vocabulary=3, megabytes=8):
        from vllm_ascend.ascend_config import SAM_PROPOSER
        from vllm_ascend.spec_decode.sam_proposer import SamProposer
        from vllm_ascend.worker.npu_input_batch import NPUInputBatch

        self.random = random.Random(seed)
        self.width, self.first, self.vocabulary, self.share = width, first, vocabulary, share
        self.shortest = first - 20
        self.batch = NPUInputBatch(
            max_num_reqs=ROWS,
            max_model_len=width,
            max_num_batched_tokens=width,
            device=torch.device("cpu"),
            pin_memory=False,
            vocab_size=1000,
            block_sizes=[128],
            kernel_block_sizes=[[128]],
        )
        self.runner = SimpleNamespace(input_batch=self.batch, requests={})
        settings = {"min_match_length": SHORTEST, "share_in_group": share, "max_memory_mb": megabytes}
        config = SimpleNamespace(
            speculative_config=SimpleNamespace(num_speculative_tokens=DRAFTS, model=SAM_PROPOSER),
            additional_config={"sam_config": settings},
            model_config=SimpleNamespace(max_model_len=width),
            scheduler_config=SimpleNamespace(max_num_seqs=ROWS),
        )
        self.drafter = SamProposer(config)
        self.drafter.set_runner(self.runner)
        self.settings = settings_of(config)
        self.prompts = [self._tokens(self.random.randint(self.shortest, first)) for _ in range(2)] if share else None
        self.latest, self.group, self.next_id = {}, {}, 0
        self.seen = {
            "compared": 0,
            "drafted": 0,
            "taken_back": 0,
            "same_id": 0,
            "resumed": 0,
            "capped": 0,
            "waited": 0,
            "wrong": [],
        }

    def course(self, steps):
        for _ in range(steps):
            self._between_steps()
            self._step()
        self.seen["most_bytes"] = int(self.drafter.pool.used_bytes())
        for name in list(self.runner.requests):
            self._end(name)
        self.drafter.release_ended()
        self.seen["left"] = len(self.drafter._followed) + int(self.drafter.pool.used_bytes())
        return self.seen

    def _tokens(self, count):
        return [self.random.randrange(self.vocabulary) for _ in range(count)]

    def _between_steps(self):
        self._take_back()
        ended = self._end_some()
        for name in list(self.batch.req_id_to_index):
            if self.random.random() < 0.1:  # preempted, or not scheduled
                self.batch.remove_request(name)
        waiting = [name for name in self.runner.requests if name not in self.batch.req_id_to_index]
        while self.batch.num_reqs < ROWS and self.random.random() < 0.8:
            self._add(waiting, ended)
        self.batch.condense()
        self.batch.refresh_metadata()

    def _take_back(self):
        """As GPUModelRunner._update_states does after a failed load of the KV cache."""
        for name, count in self.latest.items():
            row = self.batch.req_id_to_index.get(name)
            if row is not None and count and self.random.random() < 0.1:
                del self.runner.requests[name].output_token_ids[-count:]
                self.batch.num_tokens_no_spec[row] -= count
                self.seen["taken_back"] += 1

    def _end_some(self):
        names = [name for name, one in self.runner.requests.items() if one.num_tokens > self.width - DRAFTS - 1]
        names += [name for name in self.runner.requests if name not in names and self.random.random() < 0.05]
        for name in names:
            self._end(name)
        return names

    def _end(self, name):
        self.runner.requests.pop(name)
        self.batch.remove_request(name)

    def _add(self, waiting, ended):
        if waiting and self.random.random() < 0.5:
            self.batch.add_request(self.runner.requests[waiting.pop()])
            self.seen["resumed"] += 1
            return
        if ended and self.random.random() < 0.5:
            name = ended.pop()
            self.seen["same_id"] += 1
        else:
            name, self.next_id = f"r{self.next_id}", self.next_id + 1
        self.runner.requests[name] = self._new(name)
        self.batch.add_request(self.runner.requests[name])

    def _new(self, name):
        from vllm import SamplingParams
        from vllm.v1.worker.gpu_input_batch import CachedRequestState

        prompt = (
            self.random.choice(self.prompts)
            if self.share
            else self._tokens(self.random.randint(self.shortest, self.first))
        )
        return CachedRequestState(
            req_id=name,
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=SamplingParams(temperature=0),
            generator=None,
            block_ids=([0],),
            num_computed_tokens=0,
            output_token_ids=[],
        )

    def _step(self):
        sampled = []
        for row, name in enumerate(self.batch.req_ids):
            # None while a prompt is not complete; as in the runner's _bookkeeping_sync otherwise.
            tokens = self._tokens(self.random.choice([0, 1, 1, 2, DRAFTS + 1]))
            sampled.append(tokens)
            start = self.batch.num_tokens_no_spec[row]
            self.batch.token_ids_cpu[row, start : start + len(tokens)] = tokens
            self.batch.num_tokens_no_spec[row] = start + len(tokens)
            self.runner.requests[name].output_token_ids.extend(tokens)
            rest = self.batch.token_ids_cpu[row, start + len(tokens) :][:DRAFTS]
            rest[:] = self._tokens(len(rest))  # drafts of the step, rejected
        self.latest = {name: len(tokens) for name, tokens in zip(self.batch.req_ids, sampled, strict=True)}
        if self.random.random() < 0.7:
            batch = self.batch
            self._compare(sampled, self.drafter.propose(sampled, batch.num_tokens_no_spec, batch.token_ids_cpu))

    def _compare(self, sampled, drafts):
        histories = [
            one.prompt_token_ids + one.output_token_ids for one in map(self.runner.requests.get, self.batch.req_ids)
        ]
        for name, history in zip(self.batch.req_ids, histories, strict=True):
            prompt = self.runner.requests[name].prompt_token_ids
            self.group.setdefault(tuple(prompt), []).append(history)
        for name, history, tokens, draft in zip(self.batch.req_ids, histories, sampled, drafts, strict=True):
            if not tokens:
                wrong = draft != []
            else:
                wrong = self._is_wrong(name, history, draft)
            self.seen["compared"] += bool(tokens)
            self.seen["drafted"] += len(draft)
            if wrong:
                self.seen["wrong"].append([name, len(history), draft])

    def _is_wrong(self, name, history, draft):
        limit = max(0, min(DRAFTS, self.width - len(history) - 1))
        slot = self.drafter._followed[name].slot
        if self.drafter.pool.is_capped(slot):
            self.seen["capped"] += 1
            return draft != [] or self.drafter._known[slot] != len(history)  # else it would take the others' turn
        if self.drafter.pool.known_length(slot) != len(history):  # more than a step learns
            self.seen["waited"] += 1
            return draft != []
        if not self.share:
            return draft != made_at_once(history, limit, self.settings, self.drafter)
        group = self.group[tuple(history[: len(self.runner.requests[name].prompt_token_ids)])]
        return len(draft) > limit or not follows(history, draft, group, SHORTEST)


class Apart(Play):
    """Drafts are shared in groups, and each request has an adapter that no other has: it drafts as if it were alone."""

    def __init__(self, seed):
        super().__init__(seed, share=True)
        self.share = False  # what its drafts are compared with
        self.adapters = 0

    def _new(self, name):
        from vllm.lora.request import LoRARequest

        self.adapters += 1
        adapter = LoRARequest(name, self.adapters, "none")
        return replace(super()._new(name), prompt_token_ids=self.random.choice(self.prompts), lora_request=adapter)

    def _take_back(self):
        """Nothing: a group keeps for its members what one of them has lost."""
