"""Probe: greedy tokens of a tiny model with experts on vllm-ascend's worker, before it sleeps and after it wakes. Usage: ... MODEL

Real: vllm's LLM, vllm-ascend's worker, runner, expert layer and its layouts. The operators are torch_npu's reference ones. The pool of
memory gives nothing back and keeps contents, as the real one does for weights at level 1. Prints the tokens of each step and those
of Hugging Face, or the error that ended the step; what is behind an error is not there.
"""

import gc
import json
import os
import sys
import weakref

import npu_engine
import npu_engine_0_23


def _register_customop(vllm_config=None):
    """Of vllm-ascend's layers the experts alone; see npu_engine."""
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE

    if "FusedMoE" not in op_registry_oot:
        CustomOp.register_oot(_decorated_op_cls=AscendFusedMoE, name="FusedMoE")


os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine_0_23._register_customop = _register_customop
npu_engine_0_23.prepare()

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import vllm  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm.model_executor.model_loader.utils import process_weights_after_loading  # noqa: E402

MODEL, TOKENS = sys.argv[1], 6
PROMPTS = [[10, 11, 12, 13, 14], [20, 21, 22]]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


class Run:
    def __init__(self):
        self.hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.llm = npu_engine.small_llm(MODEL, enable_sleep_mode=True)
        self.worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self.model = self.worker.model_runner.model
        self.held = 0

    def tokens(self):
        params = vllm.SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self.llm.reset_prefix_cache()
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
        made = [
            self.hf.generate(torch.tensor([one]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=None)
            for one in PROMPTS
        ]
        return [[list(one.outputs[0].token_ids) for one in outputs], [one[0, -TOKENS:].tolist() for one in made]]

    def updated(self, seed):
        """Asleep, awake, and with other weights, as verl does it: the weights awake, loaded and laid out, then the cache awake."""
        self.llm.sleep(level=1)
        self.llm.wake_up(tags=["weights"])
        torch.manual_seed(seed)
        with torch.no_grad():
            for parameter in self.hf.parameters():
                parameter.mul_(1 + 0.2 * torch.randn_like(parameter))
        for experts in self.experts():
            for weight in (experts.w13_weight, experts.w2_weight):  # verl's patch_vllm_moe_model_weight_loader
                weight.weight_loader = experts.weight_loader
        del experts, weight
        laid_out = [weakref.ref(weight) for one in self.experts() for weight in (one.w13_weight, one.w2_weight)]
        self.model.load_weights(expert_by_expert(self.hf.state_dict()))
        process_weights_after_loading(self.model, self.worker.model_config, torch.device("cpu"))
        gc.collect()
        self.held += sum(weight() is not None for weight in laid_out)
        self.llm.wake_up(tags=["kv_cache"])
        return self.tokens()

    def experts(self):
        return [module for module in self.model.modules() if hasattr(module, "w13_weight")]

    def woken(self, times=1):
        """Asleep and awake, with the weights that it had: a reward model, or an actor of which an adapter alone is updated."""
        for _ in range(times):
            self.llm.sleep(level=1)
            self.llm.wake_up(tags=["kv_cache", "weights"])
        return self.tokens()

    def idle(self):
        """As woken, and the first step is one that a data parallel engine makes with no request of its own."""
        self.llm.sleep(level=1)
        self.llm.wake_up(tags=["kv_cache", "weights"])
        self.worker.execute_dummy_batch()
        return self.tokens()


def expert_by_expert(state):
    """The names of a checkpoint, which verl's trainer sends: transformers 5 keeps the experts of a layer in one tensor."""
    for name, value in state.items():
        if name.endswith("experts.gate_up_proj"):
            for at, expert in enumerate(value):
                for part, half in zip(("gate_proj", "up_proj"), expert.chunk(2), strict=True):
                    yield f"{name.removesuffix('gate_up_proj')}{at}.{part}.weight", half
        elif name.endswith("experts.down_proj"):
            for at, expert in enumerate(value):
                yield f"{name.removesuffix('down_proj')}{at}.down_proj.weight", expert
        else:
            yield name, value


def main():
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
    run = Run()
    steps = {
        "awake": run.tokens,
        "updated": lambda: run.updated(1),
        "woken": run.woken,
        "woken twice": lambda: run.woken(2),
        "idle": run.idle,
        "updated again": lambda: run.updated(2),
    }
    result = {}
    for name, step in steps.items():
        try:
            result[name] = step()
        except Exception as error:
            result[name] = f"{type(error).__name__}: {error}"
            break
        result["held"] = run.held
    print(json.dumps(result))


if __name__ == "__main__":
    main()
