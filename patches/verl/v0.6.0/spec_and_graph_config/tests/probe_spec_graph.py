"""Probe: verl's vLLMRollout with speculative decoding and with graphs, on a real vllm engine.

Usage: probe_spec_graph.py MODEL. Four engines: plain, with speculation, with speculation and log-probabilities (or what
refuses them), and with captured graphs. Each is in a process of its own, forked after the imports.
"""

import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import npu_engine
import probe_spec_graph_device

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
os.environ["VLLM_USE_AOT_COMPILE"] = "0"  # as with the torch 2.9 of torch_npu
probe_spec_graph_device.prepare_graphs()
npu_engine.prepare()

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from probe_spec_graph_device import RecordedGraph  # noqa: E402
from rollout_config import PROMPTS, model_config, padded_prompts, rollout_config  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.workers.rollout.base import get_rollout_class  # noqa: E402

MODEL = sys.argv[1]
LENGTH = 30
NGRAM = {
    "speculative_config.method": "ngram",
    "speculative_config.num_speculative_tokens": 3,
    "speculative_config.prompt_lookup_max": 2,
    "speculative_config.prompt_lookup_min": 1,
}


def build(**settings):
    config = rollout_config(MODEL, response_length=LENGTH, **settings)
    return get_rollout_class("vllm", "sync")(config, model_config(MODEL), device_mesh=None)


def generate(rollout):
    """Tokens, log-probabilities if there are any, and the steps that the engine made."""
    engine, steps = rollout.inference_engine.llm_engine, []
    step = engine.step
    engine.step = lambda: steps.append(1) or step()
    batch = rollout.generate_sequences(padded_prompts()).batch
    engine.step = step
    tokens = batch["responses"].tolist()
    result = {"tokens": tokens, "steps": len(steps), "asked": rollout.sampling_params.logprobs}
    if batch.get("rollout_log_probs", None) is not None:
        result["hf_difference"] = difference(tokens, batch["rollout_log_probs"])
    return result


def difference(tokens, log_probs):
    """The largest difference from Hugging Face's log-probabilities of the same tokens, before temperature."""
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    largest = 0.0
    for prompt, response, given in zip(PROMPTS, tokens, log_probs, strict=True):
        with torch.no_grad():
            logits = hf(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        largest = max(largest, (given - expected).abs().max().item())
    return largest


def speculative():
    rollout = build(calculate_log_probs=False, **NGRAM)
    chosen = rollout.inference_engine.llm_engine.vllm_config.speculative_config
    names = ("method", "num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")
    return generate(rollout) | {"config": {name: getattr(chosen, name) for name in names}}


def speculative_log_probs():
    """Greedy: sampling of drafts pins memory, which no stand-in has."""
    return generate(build(calculate_log_probs=True, **NGRAM))


def graphs():
    rollout = build(enforce_eager=False, cudagraph_mode="PIECEWISE", cudagraph_capture_sizes="[2,1]")
    chosen = rollout.inference_engine.llm_engine.vllm_config.compilation_config
    captured = RecordedGraph.captured
    return generate(rollout) | {
        "captured": captured,
        "replayed": RecordedGraph.replayed,
        "mode": chosen.cudagraph_mode.name,
        "sizes": chosen.cudagraph_capture_sizes,
    }


def plain():
    return generate(build())


def run(case):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    return case()


def in_own_process(case):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(run, case).result()


os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
print(json.dumps({case.__name__: in_own_process(case) for case in (plain, speculative, speculative_log_probs, graphs)}))
