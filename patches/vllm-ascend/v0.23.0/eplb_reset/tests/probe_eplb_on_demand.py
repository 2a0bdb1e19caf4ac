"""Probe: a real engine on two ranks whose experts are balanced between wake_up and sleep. Usage: probe_eplb_on_demand.py MODEL CASE

CASE is one of the functions below. Weights are loaded as verl loads them: awake, by a checkpoint's names, then process_weights_after_loading.
"""

import json
import os
import signal
import sys
from types import SimpleNamespace

import npu_experts_0_23

MODEL, CASE = sys.argv[1:]
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
if CASE == "graphs":
    import npu_graphs_0_23

    npu_graphs_0_23.prepare(SimpleNamespace(prepare=lambda: npu_experts_0_23.prepare(device="A2")))
else:
    npu_experts_0_23.prepare(device="A2")

import npu_engine  # noqa: E402
import psutil  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.model_executor.model_loader.utils import process_weights_after_loading  # noqa: E402
from vllm_ascend import ascend_forward_context as forward_context  # noqa: E402
from vllm_ascend.eplb import on_demand  # noqa: E402
from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE  # noqa: E402

ALL = ["weights", "kv_cache"]
STEPS = 40
PROMPTS = [[10, 11, 12, 13, 14], [20, 21, 22]]
BALANCING = {
    "dynamic_eplb": True,
    "on_demand": True,
    "eplb_policy_type": 1,
    "expert_heat_collection_interval": 4,
    "algorithm_execution_interval": 2,
}
if CASE == "stage":
    BALANCING["eplb_heat_collection_stage"] = "decode"
GRAPHS = {
    "enforce_eager": False,
    "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "cudagraph_capture_sizes": [1, 2, 4, 8]},
}


def refusal(call, *args):
    try:
        call(*args)
    except Exception as error:  # the probe reports what was raised, whatever it is
        return f"{type(error).__name__}: {error}"
    return None


class Engine:
    """A vllm LLM with one rank's worker in this process, and the same model from Hugging Face."""

    def __init__(self):
        self.hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.updates = 0
        ranks = "data_parallel_size" if CASE in ("data_parallel", "idle_rank") else "tensor_parallel_size"
        self.llm = npu_engine.small_llm(
            MODEL,
            **{ranks: int(os.environ["WORLD_SIZE"])},
            **GRAPHS if CASE == "graphs" else {},
            enable_expert_parallel=True,
            enable_sleep_mode=True,
            enable_prefix_caching=False,
            additional_config={"eplb_config": BALANCING},
        )
        self.worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self.runner = self.worker.model_runner
        self.layers = on_demand.VllmEplbAdaptor._registered_moe_layers
        self.loaded = self.weights()

    def weights(self):
        return [weight.data.clone() for one in self.layers for weight in (one.w13_weight, one.w2_weight)]

    def tokens(self, steps=STEPS):
        params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def hf_tokens(self, steps=STEPS):
        asked = {"max_new_tokens": steps, "do_sample": False, "eos_token_id": None}
        return [self.hf.generate(torch.tensor([one]), **asked)[0, -steps:].tolist() for one in PROMPTS]

    def sleep(self, level=2):
        """Sleep, and at level 2 what is then in memory that load_model allocated."""
        self.worker.sleep(level)
        lost = {
            "log2phy": 1 << 20,
            "moe_load": -7,
            "load_counter": -7,
            "global_expert_map": -7,
            "expert_ids_per_ep_rank": -7,
        }
        for layer in self.layers if level == 2 else []:
            for name, value in lost.items():
                if hasattr(layer, name):  # load_counter where statistics have stages
                    getattr(layer, name).fill_(value)

    def wake_up_and_update(self):
        self.worker.wake_up(["weights"])
        self.update()
        self.worker.wake_up(["kv_cache"])

    def update(self):
        self.updates += 1
        generator = torch.Generator().manual_seed(self.updates)
        with torch.no_grad():
            for weight in self.hf.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)
        # transformers 5 has an expert's weights in one tensor a layer, and writes one an expert.
        folder = f"updated-{os.environ['RANK']}"
        self.hf.save_pretrained(folder)
        for layer in self.layers:
            for weight in (layer.w13_weight, layer.w2_weight):  # verl's patch_vllm_moe_model_weight_loader
                weight.weight_loader = layer.weight_loader
        self.runner.model.load_weights(iter(load_file(f"{folder}/model.safetensors").items()))
        config = self.llm.llm_engine.vllm_config.model_config
        process_weights_after_loading(self.runner.model, config, torch.device("cpu"))
        self.loaded = self.weights()

    def placement(self):
        return {
            "maps": [[one.global_expert_map.tolist(), one.log2phy.tolist()] for one in self.layers],
            "weights_as_loaded": all(map(torch.equal, self.weights(), self.loaded)),
            "loads": sum(int(one.moe_load.sum()) for one in self.layers),
            "balancing": bool(self.runner.dynamic_eplb),
            "processes": processes(),
        }

    def planner(self):
        return self.runner.eplb_on_demand.process.pid


def processes():
    """How many processes this one has started that are still there, without Python's resource tracker, which stays."""
    every = psutil.Process().children(recursive=True)
    return sum(not any("resource_tracker" in word for word in one.cmdline()) for one in every)


def rounds(engine):
    """Never woken; woken with the weights it had; three rollouts with new weights each, and level 2 between them."""
    seen = {"fresh": {"tokens": engine.tokens(), "hf": engine.hf_tokens(), "asleep": engine.placement()}}
    for name, level in (("same weights", 1), ("first", 2), ("second", 2), ("third", 2)):
        if level == 1:
            engine.sleep(1)
            engine.worker.wake_up(ALL)
        else:
            engine.wake_up_and_update()
        seen[name] = rollout(engine)
    return seen


def rollout(engine):
    """Tokens through several moves, then sleep: once as the maps are left, and then with what level 2 loses."""
    one = {"awake": engine.placement(), "tokens": engine.tokens(), "hf": engine.hf_tokens()}
    one["moved"] = engine.placement()
    engine.worker.sleep(1)
    engine.runner.eplb_on_demand.before_step()  # of a data parallel engine whose peers are awake
    one["asleep"] = engine.placement()
    engine.sleep(2)
    return one


def data_parallel(engine):
    """Two engines that share the experts, each with its own requests."""
    engine.sleep(2)
    engine.wake_up_and_update()
    seen = {"first": rollout(engine)}
    engine.wake_up_and_update()
    return seen | {"second": rollout(engine)}


def idle_rank(engine):
    """The first step awake is one with requests on rank 0 and an empty one on rank 1."""

    def step():
        return engine.tokens() if os.environ["RANK"] == "0" else engine.llm.generate([], use_tqdm=False)

    seen = {"before": step()}
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    return seen | {
        "tokens": step(),
        "moved": engine.placement(),
        "iteration": engine.runner.eplb_updator.cur_iterations,
    }


def stage(engine):
    """Of a prefill and a decode, twice from the first step awake on: whether each counts, where decodes do."""
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    seen, forward_end = [], on_demand.OnDemandUpdator.forward_end

    def noted(updator, status=True):
        seen.append(status)
        forward_end(updator, status)

    on_demand.OnDemandUpdator.forward_end = noted
    params = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    for start in (30, 31):
        engine.llm.generate([{"prompt_token_ids": list(range(start, start + 60))}], params, use_tqdm=False)
    return seen


def graphs(engine):
    """Whether the experts counted load as graphs were captured, and the loads that balancing begins with."""
    seen = {"captured": CAPTURED, "tokens": engine.tokens(), "hf": engine.hf_tokens()}
    warm_up = on_demand.OnDemandUpdator.warm_up_eplb

    def noted(updator):
        seen["at start"] = engine.placement()["loads"]
        warm_up(updator)

    on_demand.OnDemandUpdator.warm_up_eplb = noted
    for layer in engine.layers:  # as a device's replays count; the stand-in's ask each time
        layer.moe_load.fill_(3)
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    return seen | {"balanced": engine.tokens(), "moved": engine.placement()}


CAPTURED = []


def note_captures():
    """Note for every layer that a graph is captured of whether it counts the load."""
    forward = AscendFusedMoE.forward_impl

    def noted(layer, *args, **kwargs):
        if torch_npu.graphs._Now.capture is not None:
            CAPTURED.append(bool(forward_context._EXTRA_CTX.eplb_heat_collection_status))
        return forward(layer, *args, **kwargs)

    AscendFusedMoE.forward_impl = noted


def partly(engine):
    """Asleep when one layer of two has been moved; awake again with the weights that it had."""
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    engine.tokens(BALANCING["expert_heat_collection_interval"] + BALANCING["algorithm_execution_interval"] + 1)
    seen = {"moved": engine.placement()}
    engine.sleep(1)
    seen["asleep"] = engine.placement()
    engine.worker.wake_up(ALL)
    return seen | {"tokens": engine.tokens(), "hf": engine.hf_tokens()}


def killed(engine):
    """The planner is killed while a step waits for it, on every rank."""
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    engine.tokens(2)
    os.kill(engine.planner(), signal.SIGKILL)
    return {"step": refusal(engine.tokens), "balancing": bool(engine.runner.dynamic_eplb)}


def loaded_awake(engine):
    """New weights without a sleep before them."""
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    engine.tokens()
    moved = engine.placement()
    engine.worker.wake_up(["weights"])
    engine.update()
    return {"moved": moved, "step": refusal(engine.tokens), "sleep": refusal(engine.sleep), "left": engine.placement()}


class FailingRequest:
    """In place of an exchange's request, which fails."""

    def wait(self):
        raise RuntimeError("the exchange has failed")


def failing_sleep(engine):
    """The exchange that brings experts home fails on every rank; planner and buffers end all the same."""
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    engine.tokens()
    exchange, dist.batch_isend_irecv = dist.batch_isend_irecv, lambda operations: [FailingRequest()]
    seen = {"moved": engine.placement(), "sleep": refusal(engine.sleep)}
    dist.batch_isend_irecv = exchange
    engine.worker.wake_up(ALL)
    return seen | {"left": engine.placement(), "step": refusal(engine.tokens)}


def refused(engine):
    """Each setting that cannot be balanced, put into the engine's own configuration for a moment."""
    runner = engine.runner
    places = {
        "sleep": (runner.model_config, "enable_sleep_mode", False),
        "quantized": (runner.vllm_config, "quant_config", object()),
        "lora": (runner.vllm_config, "lora_config", object()),
        "fused_mc2": (runner.ascend_config, "enable_fused_mc2", 1),
    }
    said = {}
    for name, (place, field, value) in places.items():
        before = getattr(place, field)
        object.__setattr__(place, field, value)
        said[name] = refusal(on_demand.OnDemandEplb, runner)
        object.__setattr__(place, field, before)
    engine.sleep(1)
    engine.worker.wake_up(ALL)
    weight = engine.layers[0].w13_weight
    engine.layers[0].w13_weight = torch.nn.Parameter(weight.data.transpose(1, 2), requires_grad=False)
    said["for loading"] = refusal(runner.eplb_on_demand.before_step)
    engine.layers[0].w13_weight = weight
    return said | {"processes": processes()}


def main():
    dist.init_process_group("gloo")
    before = processes()
    if CASE == "rounds":
        forward_context._select_a2_moe_comm_method = lambda *args: forward_context.MoECommType.ALLTOALL
    if CASE == "graphs":
        note_captures()
    engine = Engine()
    seen = {"processes": before, "case": globals()[CASE](engine)}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(seen))


main()
