"""Probe: data-parallel engines (a tiny Qwen3-MoE, ngram speculation) with uneven load and spec_batch_threshold.

Usage: probe_spec_threshold_ranks.py MODEL THRESHOLD, with several processes. Ranks step together; requests come at
steps of their own on each rank, so that either has been the busy one, and either has had none.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

MODEL, THRESHOLD = sys.argv[1], json.loads(sys.argv[2])
RANKS, RANK = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
# Lengths of the requests that come at a step, by rank; ranks beyond the second have what the second has. Where two of
# five requests have drafts, a step's tokens do not do for all: one waits for the next step, and keeps its drafts.
# Waves have prompts of two tokens, so that all of one are there after two steps; the second one's requests end in
# the same step, so that the rank goes from many requests to none.
WAVE, AT_ONCE = [12, 14, 16, 18, 20, 22, 24], [14, 14, 14, 14, 13, 13, 12]
ARRIVALS = [
    {0: [6], 23: WAVE, 80: [40, 40]},
    {0: [44, 48, 52, 56, 60], 86: AT_ONCE},
]
TOKENS_A_STEP = 8
LAST = max(max(steps) for steps in ARRIVALS)


def requests():
    """(step, name, prompt, length) of this rank's requests."""
    for step, lengths in ARRIVALS[min(RANK, 1)].items():
        for index, length in enumerate(lengths):
            ids = [10 + index, 11 + RANK] if len(lengths) > 5 else [10 + step % 7, 11 + RANK, 12 + index % 2] * 2
            yield step, f"{step}-{index}", ids, length


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
        tokens, _, with_prefill = answer = self.sync(*args, **kwargs)
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
                "tokens": tokens,
                "with_prefill": with_prefill,
            }
        )
        return answer


def outputs_of(engine):
    """Runs all requests; the ranks take as many turns, and each turn is a step of all or of none."""
    tokens, turn = {}, 0
    while True:
        for step, name, ids, length in requests():
            if step == turn:
                params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
                engine.add_request(name, {"prompt_token_ids": ids}, params)
        if engine.has_unfinished_requests():  # on any rank
            for output in engine.step():
                tokens[output.request_id] = list(output.outputs[0].token_ids)
        elif turn >= LAST:
            return tokens
        turn += 1


def greedy():
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokens = {}
    for _, name, ids, length in requests():
        out = hf.generate(torch.tensor([ids]), max_new_tokens=length, do_sample=False, eos_token_id=None)
        tokens[name] = out[0, len(ids) :].tolist()
    return tokens


def main():
    dist.init_process_group("gloo")
    engine = LLM(
        model=MODEL,
        dtype="float32",
        distributed_executor_backend="external_launcher",
        data_parallel_size=RANKS,
        enable_expert_parallel=True,
        max_model_len=128,
        max_num_seqs=8,
        max_num_batched_tokens=TOKENS_A_STEP,
        enforce_eager=True,
        speculative_config=NGRAM,
        additional_config={} if THRESHOLD is None else {"spec_batch_threshold": THRESHOLD},
    ).llm_engine
    recorder = Recorder(engine.engine_core.engine_core)
    result = {"tokens": outputs_of(engine), "steps": recorder.steps, "greedy": greedy()}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
