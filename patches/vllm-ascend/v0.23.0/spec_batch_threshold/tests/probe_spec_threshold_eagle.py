"""Probe: a real engine with an EAGLE head of random weights and spec_batch_threshold.

Usage: probe_spec_threshold_eagle.py MODEL THRESHOLD... with each THRESHOLD JSON, null for none. A head of random weights
is never right, so each step gives one token, whatever is drafted, and runs can be compared position by position. What
it proposes depends on all that its KV cache holds.
"""

import json
import os
import sys
import tempfile

import npu_engine
import npu_engine_0_23

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23.prepare()

import torch  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.ascend_config import clear_ascend_config  # noqa: E402

DRAFTS = 2
# Lengths of the requests that come at a step. Those of the last step come in a pause and outlast it. No prompt is cut: upstream
# gives the head the prompt's last token behind each part of it, so that what it proposes depends on where the cuts are.
ARRIVALS = {0: [24, 28], 8: [6, 8, 10, 12], 18: [32, 36]}
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def head(model, folder):
    """Writes an EAGLE head for the model: one decoder layer, and a matrix that joins embedding and hidden state."""
    target = AutoModelForCausalLM.from_pretrained(model).config
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    shape = {name: getattr(target, name) for name in names}
    config = LlamaConfig(**shape, num_hidden_layers=1, max_position_embeddings=target.max_position_embeddings)
    config.architectures = ["EagleLlamaForCausalLM"]
    torch.manual_seed(1)
    layers = {name: value for name, value in LlamaForCausalLM(config).model.state_dict().items() if "layers" in name}
    layers = {name: value * 8 for name, value in layers.items() if "input_layernorm" not in name}
    layers["fc.weight"] = torch.randn(config.hidden_size, 2 * config.hidden_size) / 8
    layers["embed_tokens.weight"] = torch.randn(config.vocab_size, config.hidden_size)
    config.save_pretrained(folder)
    save_file(layers, f"{folder}/model.safetensors")


class Recorder:
    def __init__(self, core):
        self.steps, self.proposed, self.scheduler = [], {}, core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner
        self.update, self.scheduler.update_from_output = self.scheduler.update_from_output, self.updated
        self.propose, self.runner.propose_draft_token_ids = self.runner.propose_draft_token_ids, self.drafted

    def drafted(self, *args, **kwargs):
        drafts = self.propose(*args, **kwargs)
        for name, draft in zip(self.runner.input_batch.req_ids, drafts.tolist(), strict=False):
            state = self.runner.requests[name]
            if state.output_token_ids:  # of a part of a prompt nothing is used
                self.proposed[f"{name.rsplit('-', 1)[0]} {len(state.output_token_ids)}"] = draft
        return drafts

    def updated(self, planned, output):
        drafts = planned.scheduled_spec_decode_tokens
        known = self.scheduler.requests
        prefill = any(not known[name].output_token_ids for name in planned.num_scheduled_tokens)
        number = sum(map(len, drafts.values()))
        self.steps.append({"running": len(self.scheduler.running), "drafts": number, "prefill": prefill})
        return self.update(planned, output)


def outputs_of(engine):
    tokens, step = {}, 0
    while step <= max(ARRIVALS) or engine.has_unfinished_requests():
        for index, length in enumerate(ARRIVALS.get(step, ())):
            ids = [10 + index + step, 11, 12, 13, 14, 15] * (4 if step else 1)
            params = SamplingParams(temperature=0, max_tokens=length, ignore_eos=True)
            engine.add_request(f"{step}-{index}", {"prompt_token_ids": ids}, params)
        for output in engine.step():
            tokens[output.request_id] = list(output.outputs[0].token_ids)
        step += 1
    return tokens


def options(model, folder, threshold):
    return {
        "model": model,
        "max_model_len": 128,
        "speculative_config": {"method": "eagle", "model": folder, "num_speculative_tokens": DRAFTS},
        "additional_config": {} if threshold is None else {"spec_batch_threshold": threshold},
    }


def run(model, folder, threshold):
    engine = npu_engine.small_llm(**options(model, folder, threshold)).llm_engine
    recorder = Recorder(engine.engine_core.engine_core)
    return {"tokens": outputs_of(engine), "steps": recorder.steps, "proposed": recorder.proposed}


def refusal_of_asynchronous(model, folder):
    """vllm's own choice with EAGLE is asynchronous scheduling."""
    clear_ascend_config()  # vllm-ascend keeps what the first engine of a process was given
    try:
        EngineArgs(**options(model, folder, {"upper": 4, "lower": 2}), dtype="float32").create_engine_config()
    except ValueError as error:
        return str(error)
    return None


def main():
    model, *thresholds = sys.argv[1:]
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    with tempfile.TemporaryDirectory() as folder:
        head(model, folder)
        runs = [run(model, folder, json.loads(threshold)) for threshold in thresholds]
        print(json.dumps({"runs": runs, "asynchronous": refusal_of_asynchronous(model, folder)}))


main()
