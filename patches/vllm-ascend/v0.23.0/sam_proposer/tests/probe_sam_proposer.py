"""Probe: vllm engines with NPUModelRunner, without speculation, with SamProposer and with it for groups.

Usage: probe_sam_proposer.py MODEL CASE... Each case is a process of its own, forked after the imports, that makes one
engine and runs all its loads on it. The KV cache is too small for the requests that run together,
so that some are preempted; prompts longer than a step are prefilled in chunks; more requests than rows of the input
batch come one after another. A case that fails prints its error.

After each step with sam it is looked up what the scheduler holds for a request, and the drafts are compared with those
of an automaton that is made of these tokens at once.
"""

import json
import os
import sys
import traceback
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402
from sam_watch import Watched  # noqa: E402
from vllm import SamplingParams  # noqa: E402

MODEL, CASES = sys.argv[1], sys.argv[2:]
MODEL_LENGTH, ROWS, STEP_TOKENS, BLOCKS = 256, 4, 64, 6  # a block is 128 tokens; one block is never used
SAM = {
    "method": "custom_class",
    "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer",
    "num_speculative_tokens": 3,
}
# Lengths on both sides of a block and of a step; the long ones share their first block.
LONG = [7 + (i * i) % 89 for i in range(150)]
PROMPTS = [
    [10, 11, 12, 13, 14, 10, 11, 12],
    [20, 21, 22, 23, 24, 25],
    [30, 31, 32] * 30,
    LONG,
    [40],
    [*LONG[:140], 1, 2, 3],
    [50 + i % 7 for i in range(120)],
]
LENGTHS = [120, 60, 90, 50, MODEL_LENGTH, 40, 130]  # the fifth goes on until the model's length
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def engine(speculative, rows=ROWS, blocks=BLOCKS, **more):
    return npu_engine.small_llm(
        MODEL,
        max_model_len=MODEL_LENGTH,
        max_num_seqs=rows,
        max_num_batched_tokens=STEP_TOKENS,
        num_gpu_blocks_override=blocks,
        enable_prefix_caching=True,
        speculative_config=speculative,
        **more,
    )


def greedy(length, **more):
    return SamplingParams(temperature=0, max_tokens=length, ignore_eos=True, **more)


def generate(llm, prompts, params):
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(sample.token_ids) for output in outputs for sample in output.outputs]


def mixed(llm):
    """Preemption, chunked prefill and rows used again, in one load."""
    return generate(llm, PROMPTS, [greedy(length) for length in LENGTHS])


def plain():
    """What is expected: with room for all requests, so that none is preempted and none waits."""
    return {"tokens": mixed(engine(None, rows=8, blocks=24)), "imported": imported()}


def imported():
    ours = ("context_tables", "suffix_automaton", "sam_proposer")
    return [name for name in sys.modules if any(one in name for one in ours)]


def sam():
    llm = engine(SAM)
    watched = Watched(llm)
    prefix = [LONG, [*LONG[:140], 1, 2, 3]]
    loads = {
        "mixed": lambda: mixed(llm),
        "prefix": lambda: [generate(llm, [prompt], greedy(40))[0] for prompt in prefix],
        "aborted": lambda: aborted(llm),
        "skipped": lambda: watched.skipping(lambda: mixed(llm), lambda step: step % 7 in (2, 3, 4)),
        "seldom": lambda: watched.skipping(lambda: generate(llm, PROMPTS[:3], greedy(60)), lambda step: step % 20),
        # Not in chunks: what an NPU's generator takes back for a chunk, a CPU's cannot.
        "one_choice": lambda: generate(llm, PROMPTS[:2], [one_choice(60, seed) for seed in (1, 2)]),
    }
    seen = {name: watched.during(load) for name, load in loads.items()}
    return seen | {"left": watched.left(), "text": repr(llm.llm_engine.vllm_config.speculative_config)}


def one_choice(length, seed, **more):
    """Random sampling with a seed among one token: the sampler of random requests, and the tokens of greedy ones."""
    return SamplingParams(temperature=1.0, top_k=1, seed=seed, max_tokens=length, ignore_eos=True, **more)


def sample_on_a_cpu():
    """The sampler of random requests asks for pinned memory, and for an operator that vllm-ascend has in torch too."""
    from vllm_ascend.sample import rejection_sampler, sampler

    for name in ("tensor", "arange", "ones", "zeros", "full"):
        make = getattr(torch, name)
        setattr(torch, name, lambda *args, _make=make, pin_memory=False, **kwargs: _make(*args, **kwargs))
    sampler.apply_top_k_top_p = rejection_sampler.apply_top_k_top_p = sampler._apply_top_k_top_p_pytorch


def add(llm, request_id, index, length=None):
    llm.llm_engine.add_request(request_id, {"prompt_token_ids": PROMPTS[index]}, greedy(length or LENGTHS[index]))


def run_out(llm, tokens):
    while llm.llm_engine.has_unfinished_requests():
        step(llm, tokens)
    return tokens


def step(llm, tokens):
    for output in llm.llm_engine.step():
        tokens[output.request_id] = list(output.outputs[0].token_ids)


def aborted(llm):
    """Two requests are aborted, one of them running and one waiting, and others take their rows."""
    tokens = {}
    for index in (0, 2, 6, 1, 3):
        add(llm, str(index), index)
    for _ in range(20):
        step(llm, tokens)
    llm.llm_engine.abort_request(["2", "3"])
    add(llm, "5", 5)
    run_out(llm, tokens)
    return {name: tokens[name] for name in ("0", "6", "1", "5")}


def group(shared):
    """Samples of a prompt that differ in length only, some of which begin later, and a request for three."""
    prompts = [PROMPTS[0]] * 6 + [PROMPTS[1]]
    lengths = [110, 20, 20, 20, 80, 80, 40]
    llm = engine(SAM, additional_config={"sam_config": {"share_in_group": shared}})
    watched = Watched(llm, group=shared)
    load = watched.during(lambda: generate(llm, prompts, [greedy(length) for length in lengths]))
    several = watched.during(lambda: generate(llm, [PROMPTS[1]], one_choice(50, 0, n=3)))
    return {"repeated": load, "several": several, "left": watched.left()}


def alone():
    return group(shared=False)


def shared():
    return group(shared=True)


def compile_once():
    """What numba compiles here, every case has."""
    from vllm_ascend.spec_decode.context_tables import ContextTables
    from vllm_ascend.spec_decode.suffix_automaton import SuffixAutomatonPool

    SuffixAutomatonPool(1, 1, 1 << 20, 1).warm_up()
    ContextTables(1, 1, max_bytes=1 << 20).warm_up()


def run(name):
    try:
        known = (plain, sam, alone, shared)
        torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        return {case.__name__: case for case in known}[name]()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}


def in_own_process(name):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(run, name).result()


if __name__ == "__main__":
    sample_on_a_cpu()
    seen = {name: in_own_process(name) for name in CASES if name == "plain"}
    with suppress(ModuleNotFoundError):  # the unpatched tree
        compile_once()
    print(json.dumps(seen | {name: in_own_process(name) for name in CASES if name not in seen}))
