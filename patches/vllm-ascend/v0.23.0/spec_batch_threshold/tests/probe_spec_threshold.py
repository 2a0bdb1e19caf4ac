"""Probe: steps of a real engine (vllm's LLM, NPUModelRunner) with speculation and waves of requests.

Usage: probe_spec_threshold.py MODEL METHOD THRESHOLD... with METHOD ngram or sam and each THRESHOLD the JSON of
additional_config's spec_batch_threshold, null for none. One engine after another; each has so few blocks of
cache that requests are preempted, and one request is aborted.
"""

import json
import os
import sys

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402

METHODS = {
    "ngram": {"method": "ngram", "prompt_lookup_max": 2, "prompt_lookup_min": 1},
    "sam": {"method": "custom_class", "model": "vllm_ascend.spec_decode.sam_proposer.SamProposer"},
}
# How many of a request's drafts stand together at an earlier place; where what sam follows ends, it goes on at another.
TOGETHER = {"ngram": 3, "sam": 1}
ENGINE = {
    "max_model_len": 256,
    "max_num_batched_tokens": 32,
    "num_gpu_blocks_override": 8,
}
# Tokens of each request, by wave. The next wave comes when at most CALM requests have run for PATIENCE steps.
WAVES = [[36, 40, 44], [16, 20, 24, 36, 40], [28, 20, 24, 28, 32, 40], [8, 12, 16, 16, 24]]
CALM, PATIENCE = 3, 6
# Prompts of this wave end shortly before their first block of the cache does (128 tokens), so that more blocks are
# wanted than there are.
LONG = 1
ABORTED, ABORTED_AT = "2-5", 10  # this request, once it has so many tokens
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def prompt(wave, index):
    ids = [10 + index, 11 + wave, 12, 13, 14, 10 + index, 11 + wave, 12]
    return (ids * 15 if wave == LONG else ids)[: -1 - index % 3]


def follows_itself(tokens, draft):
    """Whether the draft continues an earlier occurrence of the last token, as an n-gram's continuation must."""
    ends = (at for at, token in enumerate(tokens[:-1]) if token == tokens[-1])
    return any(tokens[at + 1 : at + 1 + len(draft)] == draft for at in ends)


class Recorder:
    """What a scheduler planned and got back in each step; reads, and passes everything on."""

    def __init__(self, core, together):
        self.steps, self.scheduler, self.together = [], core.scheduler, together
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self._update, self.scheduler.update_from_output = self.scheduler.update_from_output, self._record

    def _record(self, planned, output):
        drafts = planned.scheduled_spec_decode_tokens
        known = {name: list(request.all_token_ids) for name, request in self.scheduler.requests.items()}
        sampled = {name: output.sampled_token_ids[at] for name, at in output.req_id_to_index.items()}
        self.steps.append(
            {
                "running": len(self.scheduler.running),
                "scheduled": sorted(planned.num_scheduled_tokens.values()),
                "drafts": sorted(map(len, drafts.values())),
                "foreign": sum(
                    not follows_itself(known[name], list(draft[: self.together])) for name, draft in drafts.items()
                ),
                "accepted": sum(len(sampled[name]) - 1 for name in drafts),
                "preempted": len(planned.preempted_req_ids or ()),
                "state": self.runner.attn_state.name,
                "with_prefill": self.runner.with_prefill,
                "held": sum(map(len, self.runner.input_batch.spec_token_ids)),
                "proposed": self.runner._draft_token_ids is not None,
            }
        )
        return self._update(planned, output)


def add_wave(engine, wave):
    for index, length in enumerate(WAVES[wave]):
        params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
        engine.add_request(f"{wave}-{index}", {"prompt_token_ids": prompt(wave, index)}, params)


def outputs_of(engine, steps):
    """Runs all waves; returns the tokens of each request, those of the aborted one as far as they came."""
    tokens, calm, added = {}, 0, 0
    while added < len(WAVES) or engine.has_unfinished_requests():
        if added < len(WAVES) and (calm >= PATIENCE or not engine.has_unfinished_requests()):
            add_wave(engine, added)
            calm, added = 0, added + 1
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        if len(tokens.get(ABORTED, ())) >= ABORTED_AT:
            engine.abort_request([ABORTED])
        calm = calm + 1 if steps and steps[-1]["running"] <= CALM else 0
    return tokens


def run(model, method, threshold):
    options = ENGINE | {"speculative_config": METHODS[method] | {"num_speculative_tokens": 3}}
    if threshold is not None:
        options["additional_config"] = {"spec_batch_threshold": threshold}
    engine = npu_engine.small_llm(model, **options).llm_engine
    recorder = Recorder(engine.engine_core.engine_core, TOGETHER[method])
    return {"tokens": outputs_of(engine, recorder.steps), "steps": recorder.steps}


def greedy(model):
    """Hugging Face's tokens for each request, without a cache of ours and without speculation."""
    hf = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = {}
    for wave, lengths in enumerate(WAVES):
        for index, length in enumerate(lengths):
            ids = torch.tensor([prompt(wave, index)])
            out = hf.generate(ids, max_new_tokens=length, min_new_tokens=length, do_sample=False, eos_token_id=None)
            tokens[f"{wave}-{index}"] = out[0, ids.shape[1] :].tolist()
    return tokens


def main():
    model, method, *thresholds = sys.argv[1:]
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    runs = [run(model, method, json.loads(threshold)) for threshold in thresholds]
    print(json.dumps({"runs": runs, "greedy": greedy(model)}))


main()
