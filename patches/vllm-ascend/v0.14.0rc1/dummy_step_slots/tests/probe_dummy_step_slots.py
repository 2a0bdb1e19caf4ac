"""Probe: what the dummy step of an idle data-parallel rank leaves of the KV cache, with full graphs.

Usage: probe_dummy_step_slots.py MODEL CUDAGRAPH_MODE. The engine is told to take a dummy step as LLMEngine tells
itself while other ranks still run. Before it a request has ended with the last token of a block, which the prefix cache
keeps; after it another one hits that block. Graphs are the stand-in's.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare()
npu_engine.leave_compilation_out()

from torch_npu import graphs  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402

MODEL, MODE = sys.argv[1:]
BLOCK, PROMPT = 128, 100
FIRST = [7 + (index * index) % 89 for index in range(PROMPT)]
REPLAYS = []


def count_replays():
    replay = graphs.NPUGraph.replay

    def counted(self):
        REPLAYS.append(self)
        replay(self)

    graphs.NPUGraph.replay = counted


def engine():
    return LLM(
        model=MODEL,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=8,
        max_num_batched_tokens=256,
        num_gpu_blocks_override=8,
        enable_prefix_caching=True,
        async_scheduling=False,
        compilation_config={"cudagraph_mode": MODE, "cudagraph_capture_sizes": [3, 6]},
    )


def ask(llm, prompt, tokens):
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, logprobs=0)
    (output,) = llm.generate([{"prompt_token_ids": prompt}], params, use_tqdm=False)
    answer = output.outputs[0]
    chosen = [each[token].logprob for token, each in zip(answer.token_ids, answer.logprobs, strict=True)]
    return list(answer.token_ids), chosen, output.num_cached_tokens


def caches(runner):
    """A copy of all keys and values: by layer, as [keys, values] of [block, place, heads, size]."""
    layers = runner.compilation_config.static_forward_context
    return {name: [part.clone() for part in layer.kv_cache[0]] for name, layer in layers.items() if layer.kv_cache}


def written(before, after):
    """Places of blocks whose keys or values are others now, by layer."""
    found = {}
    for name, parts in before.items():
        places = sum(
            ((old != new).flatten(2).any(2).int() for old, new in zip(parts, after[name], strict=True)),
        )
        found[name] = places.nonzero().tolist()
    return found


def dummy_step(llm):
    llm.llm_engine.should_execute_dummy_batch = True
    REPLAYS.clear()
    llm.llm_engine.step()
    return len(REPLAYS)


def once(llm, runner, with_dummy):
    """The first request, perhaps a dummy step, and one that goes on from the first one's tokens."""
    llm.reset_prefix_cache()
    tokens, _, _ = ask(llm, FIRST, BLOCK - PROMPT + 1)  # the last one is not computed any more
    before = caches(runner)
    replayed = dummy_step(llm) if with_dummy else 0
    seen = {"replayed": replayed, "written": written(before, caches(runner))}
    following, chosen, cached = ask(llm, [*FIRST, *tokens[:-1], 5], 8)
    return seen | {"first": tokens, "tokens": following, "logprobs": chosen, "cached": cached}


def main():
    count_replays()
    llm = engine()
    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    print(json.dumps({name: once(llm, runner, name == "idle") for name in ("busy", "idle")}))


main()
