"""Probe: what an engine computes with after sleep at level 2 and new weights.

Usage: probe_level2_state.py STANDIN EXCHANGE MODEL SETTINGS

STANDIN prepares the engine, EXCHANGE is how tokens reach the experts of other ranks (`allgather` or `alltoall`), SETTINGS are the engine's. Asleep,
and again when it is mapped, all memory that load_model allocated is overwritten with ones: what somebody else left there. Weights are loaded
as verl loads them: awake, by a checkpoint's names, then process_weights_after_loading. Prints for each time the engine's greedy tokens and how
far the worst of them is behind Hugging Face's best; which tensors differ from a freshly loaded engine's when at the end the first weights are
there again; which buffers have another address; how many tokens experts were given, and whether that was as before at each waking; how many
bytes were overwritten; how many requests were aborted; and the names that a checkpoint of the model would have.
"""

import hashlib
import importlib
import json
import os
import sys
from contextlib import contextmanager
from typing import ClassVar

import npu_engine

STANDIN, EXCHANGE, MODEL, SETTINGS = sys.argv[1:]
SETTINGS = json.loads(SETTINGS)
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
importlib.import_module(STANDIN).prepare(*(["A2"] if STANDIN != "npu_engine_0_23" else []))

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm import SamplingParams  # noqa: E402
from vllm.model_executor.model_loader.utils import process_weights_after_loading  # noqa: E402
from vllm_ascend import ascend_forward_context as forward_context  # noqa: E402
from vllm_ascend.ops import rotary_embedding  # noqa: E402
from vllm_ascend.ops.fused_moe import moe_comm_method  # noqa: E402
from vllm_ascend.worker import worker as workers  # noqa: E402

PROMPTS, CYCLES = [[10, 11, 12, 13, 14], [20, 21, 22]], 10
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
ALONE = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
os.environ |= {name: os.environ.get(name, value) for name, value in ALONE.items()}
if SETTINGS.get("data_parallel_size"):
    del PROMPTS[: int(os.environ["RANK"])]  # so that ranks with less to do take empty steps
COUNTS = "moe_load"
OF_A_STEP = (COUNTS, "key_cache", "value_cache", "_cos", "_sin", "_cos_mla", "_sin_mla", "_cos_slice", "_sin_slice")


class Recorded(TorchDispatchMode):
    """Notes the storages of what operators make."""

    def __init__(self, storages):
        super().__init__()
        self.storages = storages

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [one for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.device.type == "cpu"]
        self.storages += [StorageWeakRef(one.untyped_storage()) for one in tensors]
        return made


class Overwritten(npu_engine.MemoryPool):
    """A pool whose memory is somebody else's while it sleeps: what is not to be kept is ones afterwards."""

    storages: ClassVar[dict[str, list[StorageWeakRef]]] = {}
    bytes = 0

    @contextmanager
    def use_memory_pool(self, tag):
        with Recorded(self.storages.setdefault(tag, [])):
            yield

    def sleep(self, offload_tags):
        self._overwrite([tag for tag in self.storages if tag not in offload_tags])

    def wake_up(self, tags):
        self._overwrite(tags)

    def _overwrite(self, tags):
        for tag in tags:
            for weak in {one.cdata for one in self.storages.get(tag, ())}:
                storage = torch.UntypedStorage._new_with_weak_ptr(weak)
                if storage is not None:
                    torch.empty(0, dtype=torch.uint8).set_(storage).fill_(255)
                    Overwritten.bytes += storage.nbytes()


workers.CaMemAllocator = Overwritten
forward_context._select_a2_moe_comm_method = lambda *args: forward_context.MoECommType[EXCHANGE.upper()]


def state(model):
    """All tensors that the model computes with, by name: parameters, buffers, and what is neither."""
    found = dict(model.named_parameters()) | {k: v for k, v in model.named_buffers() if not k.endswith(COUNTS)}
    for name, module in model.named_modules():
        for owner in (module, getattr(module, "impl", None)):
            found |= _tensors(name, owner)
    for kind, method in moe_comm_method._MoECommMethods.items():
        found |= _tensors(str(kind), method.token_dispatcher)
    return found | _tensors("rotary_embedding", rotary_embedding)


def _tensors(prefix, owner):
    """Tensors that are attributes of an object, but for those that each step writes before it reads them."""
    members = vars(owner).items() if owner is not None else ()
    return {f"{prefix}.{name}": one for name, one in members if isinstance(one, torch.Tensor) and name not in OF_A_STEP}


def digests(model):
    return {
        name: hashlib.sha256(one.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()).hexdigest()
        + str(one.shape)
        for name, one in state(model).items()
    }


class Engine:
    def __init__(self):
        self.hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        self.llm = npu_engine.small_llm(MODEL, enable_sleep_mode=True, **SETTINGS)
        self.worker = self.llm.llm_engine.model_executor.driver_worker.worker
        self.worker.model_runner.eplb_warmup()  # which a profile run begins with, and here none is made
        self.model = self.worker.model_runner.get_model()
        self.counted = True
        self.first = self.checkpoint()
        self.fresh = digests(self.model)
        self.places = {name: one.data_ptr() for name, one in self.model.named_buffers()}

    def checkpoint(self):
        folder = f"weights-{os.environ['RANK']}-{len(os.listdir('.'))}"
        self.hf.save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")

    def disturb(self, seed):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in self.hf.parameters():
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.01)
        return self.checkpoint()

    def load(self, tensors, to_the_end=True):
        for experts in (module for module in self.model.modules() if hasattr(module, "w13_weight")):
            for weight in (experts.w13_weight, experts.w2_weight):  # verl's patch_vllm_moe_model_weight_loader
                weight.weight_loader = experts.weight_loader
        self.model.load_weights(iter(tensors.items()))
        if to_the_end:
            process_weights_after_loading(self.model, self.worker.model_config, torch.device("cpu"))

    def cycle(self, tensors, order=("weights", "kv_cache"), to_the_end=True):
        before = self.counts()
        self.llm.sleep(level=2)
        for tag in order:
            self.llm.wake_up(tags=[tag])
            if tag == "weights":
                self.load(tensors, to_the_end)
        self.counted &= before == self.counts()
        self.llm.reset_prefix_cache()

    def counts(self):
        """How many tokens each expert was given, where that is counted."""
        return [one.moe_load.tolist() for one in self.model.modules() if hasattr(one, "moe_load")]

    def abort_all(self):
        """Requests that have begun, and that nobody waits for."""
        engine, names = self.llm.llm_engine, [f"aborted {number}" for number in range(len(PROMPTS))]
        for name, prompt in zip(names, PROMPTS, strict=True):
            engine.add_request(name, {"prompt_token_ids": prompt}, GREEDY)
        for _ in range(2):
            engine.step()
        begun = engine.get_num_unfinished_requests()
        engine.abort_request(names)
        return begun

    def tokens(self):
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in PROMPTS], GREEDY, use_tqdm=False)
        given = [list(one.outputs[0].token_ids) for one in outputs]
        return [given, max(map(self.behind, PROMPTS, given))]

    @torch.no_grad()
    def behind(self, prompt, answer):
        """How far Hugging Face has an answer's worst token behind its best one, in standard deviations of its logits: 0 where it would give
        the same, little where two tokens or experts are as good, and 3 or so for a token of no meaning."""
        logits = self.hf(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(-1, torch.tensor(answer)[:, None]).squeeze(-1)
        return float(((logits.amax(-1) - chosen) / logits.std(-1)).max())


def main():
    alone = {"init_method": "tcp://127.0.0.1:0", "rank": 0, "world_size": 1} if os.environ["WORLD_SIZE"] == "1" else {}
    dist.init_process_group("gloo", **alone)
    engine = Engine()
    rounds = {"loaded": engine.tokens()}
    for seed in range(CYCLES):
        engine.cycle(engine.disturb(seed))
        rounds[f"cycle {seed}"] = engine.tokens()
    engine.cycle(engine.disturb(CYCLES), order=("kv_cache", "weights"))
    rounds["cache first"] = engine.tokens()
    tensors = engine.disturb(CYCLES + 1)
    engine.cycle(dict(list(tensors.items())[: len(tensors) // 2]), to_the_end=False)
    engine.cycle(tensors)
    rounds["after half an update"] = engine.tokens()
    aborted = engine.abort_all()
    engine.cycle(engine.disturb(CYCLES + 2))
    rounds["after aborted requests"] = engine.tokens()
    engine.hf = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    engine.cycle(engine.first)
    rounds["first again"] = engine.tokens()
    now = digests(engine.model)
    result = {
        "tokens": rounds,
        "other": sorted(name for name in engine.fresh | now if engine.fresh.get(name) != now.get(name)),
        "moved": sorted(
            name for name, one in engine.model.named_buffers() if one.data_ptr() != engine.places.get(name)
        ),
        "counts": [sum(map(sum, engine.counts())), engine.counted],
        "overwritten": Overwritten.bytes,
        "aborted": aborted,
        "checkpoint": sorted(engine.model.state_dict()),
    }
    print(json.dumps(result))
    if "additional_config" in SETTINGS:
        engine.worker.model_runner.eplb_updator.shutdown()
    dist.destroy_process_group()


main()
