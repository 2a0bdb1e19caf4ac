"""Probe: engines with and without ngram write requests up to the model's length, and short of it.

Usage: probe_ngram_near_length.py MODEL. Weights are a tiny model's, tokens are greedy; a prompt of each length from 1 to
24, so that steps of several tokens end at every distance from the model's length. Before each call of the drafter it is
looked up what vllm's own proposer says, and whether more tokens were accepted than a row has room for behind them.
"""

import json
import os
import sys

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.v1.spec_decode.ngram_proposer import NgramProposer  # noqa: E402

MODEL = sys.argv[1]
LENGTH = 48
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
LOADS = {"short": 16, "length": LENGTH}  # the most tokens of a request
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}
PROMPTS = [[(5 * number + index) % 7 + 10 for index in range(number)] for number in range(1, 25)]


class Watched:
    """Counts drafts, those that are not vllm's own proposer's, and calls with more tokens than the row has room for."""

    def __init__(self, llm):
        self.runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        self.propose, self.runner.drafter.propose = self.runner.drafter.propose, self.observed
        self.counts = {}

    def observed(self, sampled, *args, **kwargs):
        batch = self.runner.input_batch
        lengths = batch.num_tokens_no_spec
        known = NgramProposer.propose(self.runner.drafter, sampled, lengths, batch.token_ids_cpu)
        self.counts["beyond"] += sum(
            lengths[row] < LENGTH < lengths[row] + len(tokens) for row, tokens in enumerate(sampled)
        ).item()
        drafts = self.propose(sampled, *args, **kwargs)
        self.counts["drafts"] += sum(map(len, drafts))
        self.counts["others"] += drafts != known
        return drafts


def engine(speculation):
    return npu_engine.small_llm(
        MODEL,
        max_model_len=LENGTH,
        max_num_batched_tokens=64,
        enable_prefix_caching=False,
        speculative_config=speculation,
    )


def write(llm, most):
    params = SamplingParams(temperature=0, max_tokens=most, ignore_eos=True)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def drafting(llm, watched, most):
    watched.counts = {"drafts": 0, "others": 0, "beyond": 0}
    try:
        return {"tokens": write(llm, most)} | watched.counts
    except ValueError as error:
        return {"error": str(error)} | watched.counts


torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
plain = write(engine(None), LENGTH)
llm = engine(NGRAM)
watched = Watched(llm)
print(json.dumps({"plain": plain} | {name: drafting(llm, watched, most) for name, most in LOADS.items()}))
