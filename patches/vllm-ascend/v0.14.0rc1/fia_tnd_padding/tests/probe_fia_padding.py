"""Probe: every call of FIA in a real engine with full graphs, and its greedy tokens beside Hugging Face's.

Usage: probe_fia_padding.py MODEL CUDAGRAPH_MODE SPECULATIVE_CONFIG. Graphs are captured and replayed by the stand-in
torch_npu.graphs, of the model as it is: torch.compile, and the opaque attention operator that it needs, are left out.
Batches: more requests than can run, prompts of all lengths, steps above the largest graph (eager), mixed, pure decode.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch_npu  # noqa: E402
import vllm.compilation.decorators  # noqa: E402
from torch_npu import graphs  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.platforms import current_platform  # noqa: E402

MODEL, MODE, SPECULATION = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
SIZES = [4, 8, 16, 32]
LENGTHS = [5, 9, 3, 14, 1, 7, 4, 11]
ANSWER = 40
PROMPTS = [[(7 * request + index // 2) % 90 + 10 for index in range(length)] for request, length in enumerate(LENGTHS)]
CALLS = []


def record_calls():
    """Passes every call of the operator on, and keeps what CANN checks of it."""
    call, out = torch_npu.npu_fused_infer_attention_score, torch_npu.npu_fused_infer_attention_score.out

    def recorded(function):
        def calling(**given):
            table = given["block_table"]
            ends, keys = given["actual_seq_lengths"], given["actual_seq_lengths_kv"]
            one = {"where": graphs.moment(), "rows": given["query"].shape[0], "ends": list(ends), "keys": list(keys)}
            CALLS.append(one | {"table": None if table is None else len(table)})
            return function(**given)

        return calling

    torch_npu.npu_fused_infer_attention_score = recorded(call)
    torch_npu.npu_fused_infer_attention_score.out = recorded(out)


def engine():
    return LLM(
        model=MODEL,
        dtype="float32",
        max_model_len=64,
        max_num_seqs=6,
        max_num_batched_tokens=40,
        async_scheduling=False,
        enable_prefix_caching=False,
        speculative_config=SPECULATION,
        compilation_config={"cudagraph_mode": MODE, "cudagraph_capture_sizes": SIZES},
    )


def generate():
    params = SamplingParams(temperature=0, max_tokens=ANSWER, ignore_eos=True)
    outputs = engine().generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
    return [list(one.outputs[0].token_ids) for one in outputs]


def hf_tokens():
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    greedy = {"max_new_tokens": ANSWER, "do_sample": False, "eos_token_id": None}
    return [hf.generate(torch.tensor([one]), **greedy)[0, -ANSWER:].tolist() for one in PROMPTS]


def main():
    type(current_platform).opaque_attention_op = classmethod(lambda cls: False)
    vllm.compilation.decorators._should_ignore_torch_compile = lambda cls: True
    record_calls()
    result = {"refused": None, "tokens": None}
    try:
        result["tokens"] = generate()
    except RuntimeError as error:
        if "561002" not in str(error):
            raise
        result["refused"] = str(error)
    print(json.dumps(result | {"hf": hf_tokens(), "calls": CALLS}))


main()
