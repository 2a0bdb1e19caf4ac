"""Probe: what the engine under verl 0.9 answers after its weights have changed, with a prefix of the prompt in its cache.

Usage: probe_stale_caches_v1.py MODEL. Real: vllm's LLM with vllm-ascend's worker, and verl's vLLMHttpServer.clear_kv_cache, which is called as
verl's update_weights calls it; the engine's process is this one. Prints for each step how many tokens of the prompt came from the cache, the
tokens, and those of Hugging Face with the weights of that step.
"""

import npu_engine
import npu_engine_0_23

npu_engine_0_23.prepare()

import asyncio  # noqa: E402  (the platform must be prepared first)
import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
import vllm  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer  # noqa: E402

MODEL, TOKENS = sys.argv[1], 6
PROMPT = [10 + at % 300 for at in range(140)]  # more than the 128 tokens of a block
os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


class Awaited:
    """An engine whose methods are awaited, as AsyncLLM's are."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        async def call(*args, **kwargs):
            return getattr(self.engine, name)(*args, **kwargs)

        return call


def main():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    llm = npu_engine.small_llm(
        MODEL, enable_sleep_mode=True, enable_prefix_caching=True, max_model_len=160, max_num_batched_tokens=256
    )
    model = llm.llm_engine.model_executor.driver_worker.worker.model_runner.model

    def step():
        params = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
        made = hf.generate(torch.tensor([PROMPT]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
        return [output.num_cached_tokens, list(output.outputs[0].token_ids), made[0, -TOKENS:].tolist()]

    def load(seed):
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in hf.parameters():
                parameter.mul_(1 + 0.5 * torch.randn_like(parameter))
        model.load_weights(hf.state_dict().items())

    result = {"first": step(), "again": step()}
    load(1)
    result["loaded"] = step()
    server = SimpleNamespace(node_rank=0, engine=Awaited(llm.llm_engine))
    asyncio.run(vLLMHttpServer.clear_kv_cache(server))
    result["loaded, and cleared by verl"] = step()
    llm.sleep(level=1)
    llm.wake_up(tags=["weights"])
    load(2)
    llm.wake_up(tags=["kv_cache"])
    result["loaded asleep"] = step()
    print(json.dumps(result))


main()
