"""Probe: data-parallel engines (a tiny Qwen3-MoE, ngram speculation) with uneven load and spec_batch_threshold.

Usage: probe_spec_threshold_ranks.py MODEL THRESHOLD, with several processes. Ranks step together; requests come at
steps of their own on each rank, so that either has been the busy one, and either has had none.
"""

import json
import os
import sys

import npu_engine
import npu_experts_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_experts_0_23.prepare(device="A2")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402

MODEL, THRESHOLD = sys.argv[1], json.loads(sys.argv[2])
RANKS, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
# Lengths of the requests that come at a step, by rank. Waves have prompts of two tokens, so that all of one are there after
# two steps; the second one's requests end in the same step, so that the rank goes from many requests to none.
WAVE, AT_ONCE, ALIKE = [12, 14, 16, 18, 20, 22, 24], [14, 14, 14, 14, 13, 13, 12], [44, 48, 54, 60]
TOKENS_A_STEP, LAST = 8, 86


def alike(hf):
    """A prompt of two tokens, and the first step after which its answer has a token for the second time (from 9 to 18).

    Requests with this prompt that begin together all have drafts at that moment, and not before. A step's tokens do not do
    for all of these: one waits for the next step, and keeps its drafts.
    """
    for first in range(10, 200):
        tokens = [first, 12, *greedy(hf, [first, 12], 20)]
        again = next((at for at, token in enumerate(tokens) if token in tokens[:at]), 0)
        if 11 <= again <= 20 and again - tokens.index(tokens[again]) > 1:
            return [first, 12], again - 2
    raise AssertionError("no such prompt")


def arrivals(step):
    """(ranks) the lengths that come at each step; the first rank's wave makes both pause in the step after `step`."""
    return [{0: [6], step: WAVE, 80: [40, 40]}, {0: ALIKE, LAST: AT_ONCE}]


def requests(prompt, step):
    """(step, name, prompt, length) of this rank's requests."""
    for at, lengths in arrivals(step)[RANK].items():
        for index, length in enumerate(lengths):
            wave = [10 + index, 11 + RANK]
            few = [10 + at % 7, 11 + RANK, 12 + index % 2] * 2
            yield at, f"{at}-{index}", prompt if lengths is ALIKE else wave if len(lengths) > 5 else few, length


class Recorder:
    """Each step of this rank: its own requests, verified drafts, and what was agreed; dummy steps have no requests."""

    def __init__(self, core):
        self.steps, self.planned, self.scheduler = [], None, core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.sync, self.runner._sync_metadata_across_dp = self.runner._sync_metadata_across_dp, self.synced
        self.execute, self.runner.execute_model = self.runner.execute_model, self.executed

    def executed(self, planned, *args):
        self.planned = planned
        return self.execute(planned, *args)

    def synced(self, *args, **kwargs):
        _, tokens, _ = answer = self.sync(*args, **kwargs)
        planned, self.planned = self.planned, None  # a dummy step comes without
        scheduled = planned.num_scheduled_tokens if planned else {}
        waiting = [one for one in self.scheduler.running if one.request_id not in scheduled]
        threshold = getattr(self.runner, "batch_threshold", None)
        self.steps.append(
            {
                "running": len(scheduled),
                "drafts": sum(map(len, planned.scheduled_spec_decode_tokens.values())) if planned else 0,
                "waiting_with_drafts": sum(bool(one.spec_token_ids) for one in waiting),
                "drafting": threshold.drafting if threshold else None,
                "tokens": tokens.tolist(),
            }
        )
        return answer


def outputs_of(engine, mine):
    """Runs all requests; the ranks take as many turns, and each turn is a step of all or of none."""
    tokens, turn = {}, 0
    while True:
        for step, name, ids, length in mine:
            if step == turn:
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                engine.add_request(name, {"prompt_token_ids": ids}, params)
        if engine.has_unfinished_requests():  # on any rank
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        elif turn >= LAST:
            return tokens
        turn += 1


def greedy(hf, ids, length):
    out = hf.generate(torch.tensor([ids]), max_new_tokens=length, do_sample=False, eos_token_id=None)
    return out[0, len(ids) :].tolist()


def main():
    dist.init_process_group("gloo")
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    mine = list(requests(*alike(hf)))
    engine = npu_engine.small_llm(
        MODEL,
        data_parallel_size=RANKS,
        enable_expert_parallel=True,
        max_model_len=128,
        max_num_batched_tokens=TOKENS_A_STEP,
        speculative_config=NGRAM,
        additional_config={} if THRESHOLD is None else {"spec_batch_threshold": THRESHOLD},
    ).llm_engine
    recorder = Recorder(engine.engine_core.engine_core)
    result = {"tokens": outputs_of(engine, mine), "steps": recorder.steps}
    result["greedy"] = {name: greedy(hf, ids, length) for _, name, ids, length in mine}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
