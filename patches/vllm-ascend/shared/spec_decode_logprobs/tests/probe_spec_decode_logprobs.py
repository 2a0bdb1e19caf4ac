"""Probe: log-probabilities of a vllm engine with NPUModelRunner and ngram speculation, beside Hugging Face's.

Usage: probe_spec_decode_logprobs.py MODEL. Greedy requests of unequal length share the batches, and one prompt is
longer than a step, so that rows of accepted, rejected and discarded tokens occur.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

MODEL = sys.argv[1]
PROMPTS = [[10, 11, 12, 13, 14, 10, 11, 12], [20, 21, 22, 23, 24, 25], [30, 31, 32] * 16]
LENGTHS = [40, 24, 32]
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2, "prompt_lookup_min": 1}


def expected(hf, prompt, response):
    with torch.no_grad():
        logits = hf(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0].tolist()


def main():
    llm = LLM(
        model=MODEL,
        dtype="float32",
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=32,
        enforce_eager=True,
        speculative_config=NGRAM,
    )
    accepted = []
    take = llm.llm_engine.engine_core.engine_core.scheduler.update_from_output

    def observed(scheduled, output):
        accepted.extend(max(len(tokens) - 1, 0) for tokens in output.sampled_token_ids)
        return take(scheduled, output)

    llm.llm_engine.engine_core.engine_core.scheduler.update_from_output = observed
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    params = [SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, logprobs=0) for length in LENGTHS]
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in PROMPTS], params, use_tqdm=False)
    answers = []
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        tokens = list(output.outputs[0].token_ids)
        given = [row[token].logprob for row, token in zip(output.outputs[0].logprobs, tokens, strict=True)]
        difference = max(abs(a - b) for a, b in zip(given, expected(hf, prompt, tokens), strict=True))
        answers.append({"tokens": len(tokens), "difference": difference})
    print(json.dumps({"answers": answers, "accepted": sum(accepted)}))


main()
