"""What the probes of eplb_reset share: a tiny engine with experts on two ranks, and the same model from Hugging Face."""

import gc
import os

import npu_engine
import psutil
import torch
import torch.distributed as dist
from vllm import SamplingParams

COLLECT, PLAN = 4, 2  # steps; then one layer moves a step
UNTIL_FIRST_MOVE = COLLECT + PLAN
STEPS = 40
PROMPTS = [[10, 11, 12, 13, 14], [20, 21, 22]]
INTERVALS = {"expert_heat_collection_interval": COLLECT, "algorithm_execution_interval": PLAN}


def gather_as_hccl():
    """HCCL gathers into any tensor of the right size, as EplbUpdator asks; gloo only into the concatenated shape."""
    gather = dist.all_gather_into_tensor

    def gather_flat(output, tensor, *args, **kwargs):
        return gather(output.view(-1), tensor.contiguous().view(-1), *args, **kwargs)

    dist.all_gather_into_tensor = gather_flat


def refusal(call, *args):
    try:
        call(*args)
    except Exception as error:  # the probe reports what was raised, whatever it is
        return f"{type(error).__name__}: {error}"
    return None


def children():
    """How many processes this one has started that are still there, dead ones that nobody waited for included.

    Python's own resource tracker is not counted: it comes with the first shared memory, vllm's, and stays.
    """
    return sum(not _is_resource_tracker(one) for one in psutil.Process().children(recursive=True))


def _is_resource_tracker(process):
    try:
        return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
    except psutil.ZombieProcess:
        return False


class HuggingFace:
    """Greedy tokens of the same weights, from Hugging Face's implementation."""

    def __init__(self, model):
        self.model = model

    def tokens(self):
        return [self._greedy(prompt) for prompt in PROMPTS]

    def _greedy(self, prompt):
        out = self.model.generate(
            input_ids=torch.tensor([prompt]), max_new_tokens=STEPS, do_sample=False, eos_token_id=None
        )
        return out[0, len(prompt) :].tolist()

    def disturb(self):
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.05)


def make_llm(model, eplb_config):
    return npu_engine.small_llm(
        model,
        tensor_parallel_size=int(os.environ["WORLD_SIZE"]),
        enable_expert_parallel=True,
        enable_prefix_caching=False,
        additional_config={"eplb_config": eplb_config},
    )


class Engine:
    """A vllm LLM that has one rank's worker in this process, and what balancing does to it."""

    def __init__(self, llm):
        self.llm = llm
        self.runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self.model = self.runner.get_model()
        self.loaded = self._weights()

    def rpc(self, method, **arguments):
        (answer,) = self.llm.collective_rpc(method, kwargs=arguments)
        return answer

    def generate(self, steps=STEPS):
        """Greedy tokens; each step is one forward pass."""
        params = SamplingParams(temperature=0, max_tokens=steps, ignore_eos=True)
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in PROMPTS], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in outputs]

    def experts(self):
        return [layer.mlp.experts for layer in self.model.model.layers]

    def resources(self):
        gc.collect()
        process = psutil.Process()
        return {
            "children": children(),
            "threads": process.num_threads(),
            "files": process.num_fds(),
            "shared_memory": [path for path in os.listdir("/dev/shm") if f"_{os.getpid()}_" in path],
            "tensor_bytes": _tensor_bytes(),
        }

    def placement(self):
        return {
            "maps": [[one.global_expert_map.tolist(), one.log2phy.tolist()] for one in self.experts()],
            "weights_as_loaded": all(map(torch.equal, self._weights(), self.loaded)),
            "loads": sum(int(one.moe_load.sum()) for one in self.experts()),
            "balancing": bool(self.runner.dynamic_eplb),
        }

    def discard_what_sleep_discards(self):
        """At level 2 what load_model allocated loses its contents, but for parameters and buffers (NPUWorker.sleep)."""
        for experts in self.experts():
            assert not {"log2phy", "moe_load"} & dict(experts.named_buffers()).keys()
            experts.log2phy.fill_(1 << 20)
            experts.moe_load.fill_(-7)

    def load(self, state):
        """As a trainer does after wake_up: into the layout for loading, then processed into that for computing."""
        self.transpose_weights()
        self.model.load_weights(state)
        self.process_weights()

    def process_weights(self):
        for experts in self.experts():
            experts.quant_method.process_weights_after_loading(experts)
        self.loaded = self._weights()

    def transpose_weights(self):
        """Into the layout for loading, as views, as NPUWorker.wake_up does; called twice, nothing has changed."""
        for experts in self.experts():
            for name in ("w13_weight", "w2_weight"):
                weight = torch.nn.Parameter(getattr(experts, name).data.transpose(1, 2), requires_grad=False)
                weight.weight_loader = experts.weight_loader
                setattr(experts, name, weight)

    def _weights(self):
        return [weight.data.clone() for one in self.experts() for weight in (one.w13_weight, one.w2_weight)]


def _tensor_bytes():
    tensors = [one for one in gc.get_objects() if type(one) in (torch.Tensor, torch.nn.Parameter)]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())
