"""Probe: which decode steps of a real engine are replayed from a full graph while it writes given streams by `sam`.

Usage: probe_spec_graphs.py MODEL STREAMS SETTING. STREAMS is a JSON file of lists of tokens, by name; SETTING is JSON:
mode, sizes, rows, drafts and threshold, as a recipe has them. The model's weights are random and what it says is
not looked at: logits are those of the stream, so that drafts are accepted where the stream repeats itself. Scheduler,
runner, drafter, rejection sampler and dispatcher are upstream's; the stand-in captures and replays graphs.

Two loads an engine: more requests than the threshold, of different lengths, so that it is paused first and drafts in
the tail; and as many as draft from the beginning.
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
from vllm.config import CUDAGraphMode  # noqa: E402

VOCABULARY, PROMPT, ANSWER, MORE = 32000, 100, 24, 2
BLOCKS_A_REQUEST = 3
REPLAYS = []


def count_replays():
    replay = graphs.NPUGraph.replay

    def counted(self):
        REPLAYS.append(self)
        replay(self)

    graphs.NPUGraph.replay = counted


def engine(model, setting, requests):
    return LLM(
        model=model,
        dtype="float32",
        load_format="dummy",
        hf_overrides={"vocab_size": VOCABULARY},
        max_model_len=512,
        max_num_seqs=setting["rows"],
        max_num_batched_tokens=1024,
        num_gpu_blocks_override=BLOCKS_A_REQUEST * requests + 1,
        async_scheduling=False,
        enable_prefix_caching=False,
        speculative_config={"method": "sam", "num_speculative_tokens": setting["drafts"]},
        additional_config={"spec_batch_threshold": setting["threshold"]} if setting["threshold"] else {},
        compilation_config={"cudagraph_mode": setting["mode"], "cudagraph_capture_sizes": setting["sizes"]},
    )


class Steps:
    """Makes the engine write the streams, and keeps of each step whether it was replayed, and what it ran."""

    def __init__(self, llm):
        core = llm.llm_engine.engine_core.engine_core
        self.scheduler, self.runner = core.scheduler, core.model_executor.driver_worker.worker.model_runner
        self.seen, self.streams, self.drafting = [], {}, True
        self.sample, self.runner._sample = self.runner._sample, self.sample_the_stream
        self.take, self.scheduler.update_from_output = self.scheduler.update_from_output, self.keep

    def sample_the_stream(self, logits, of_drafts):
        drafts = of_drafts.num_draft_tokens if of_drafts else [0] * len(self.runner.input_batch.req_ids)
        row = 0
        logits.fill_(0)
        ends = self.runner.seq_lens.np.tolist()
        for name, end, number in zip(self.runner.input_batch.req_ids, ends, drafts, strict=False):
            stream = self.streams[name.partition("-")[0]]
            for at in range(end - 1 - number, end):
                logits[row, stream[at + 1]] = 1
                row += 1
        assert row == len(logits), (row, len(logits))  # the padding of a graph asks for no logits
        return self.sample(logits, of_drafts)

    def keep(self, planned, output):
        requests = self.scheduler.requests
        decode = all(requests[name].num_output_tokens for name in planned.num_scheduled_tokens)
        step = {"decode": decode, "drafting": self.drafting, "replayed": len(REPLAYS)}
        step |= {"requests": len(planned.num_scheduled_tokens), "tokens": planned.total_num_scheduled_tokens}
        step["computed"] = self.runner.vllm_config.pad_for_cudagraph(step["tokens"]) if REPLAYS else step["tokens"]
        step["kept"] = sum(map(len, output.sampled_token_ids))
        self.seen.append(step)
        threshold = self.runner.batch_threshold
        self.drafting = threshold is None or threshold.drafting
        REPLAYS.clear()
        return self.take(planned, output)


def write(llm, steps, streams):
    """Writes each stream's end, as one request each; whether what came out are the streams' tokens."""
    params = []
    for at, stream in enumerate(streams):
        steps.streams[str(at)] = [*stream, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        params.append(SamplingParams(temperature=0, max_tokens=len(stream) - PROMPT, ignore_eos=True))
        llm.llm_engine.add_request(str(at), {"prompt_token_ids": stream[:PROMPT]}, params[-1])
    written = {}
    REPLAYS.clear()
    while llm.llm_engine.has_unfinished_requests():
        for output in llm.llm_engine.step():
            written[int(output.request_id.partition("-")[0])] = list(output.outputs[0].token_ids)
    return [written[at] for at in range(len(streams))] == [stream[PROMPT:] for stream in streams]


def cut(stream, requests):
    """Parts of a stream, each longer than the one before."""
    parts, start = [], 0
    for at in range(requests):
        length = PROMPT + ANSWER + MORE * at
        if start + length > len(stream):
            start = at + 1  # from the beginning again, but not the same parts
        parts.append(stream[start : start + length])
        start += length
    return parts


def shares(steps):
    """By phase: decode steps, those that were replayed, tokens that were computed and that were kept."""
    found = {}
    for phase in ("drafting", "paused"):
        some = [step for step in steps if step["decode"] and step["drafting"] == (phase == "drafting")]
        found[phase] = {
            "steps": len(some),
            "replayed": sum(step["replayed"] > 0 for step in some),
            "uneven": sum(step["tokens"] % step["requests"] > 0 for step in some),
            "tokens": sum(step["tokens"] for step in some),
            "computed": sum(step["computed"] for step in some),
            "kept": sum(step["kept"] for step in some),
        }
    return found


def main():
    model, file, setting = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    with open(file) as opened:
        streams = json.load(opened)
    count_replays()
    upper = setting["threshold"]["upper"] if setting["threshold"] else 4
    loads = (2 * upper + 4, upper)
    llm = engine(model, setting, loads[0])
    steps, found = Steps(llm), {}
    for name, stream in streams.items():
        steps.seen = []
        right = [write(llm, steps, cut(stream, requests)) for requests in loads]
        found[name] = shares(steps.seen) | {"right": all(right)}
    captured = len(steps.runner.cudagraph_dispatcher.cudagraph_keys[CUDAGraphMode.FULL])
    print(json.dumps({"streams": found, "graphs": captured}))


main()
