"""In a process with an engine, with RECIPE_LOOKED_INTO: what the engine holds after an update, and what memory the update took.

In the folder RECIPE_WATCHED: `held.UPDATE.RANK.safetensors`, every parameter of the engine's model, as its kernels read it, and what
is derived of latent attention's (W_UV, W_UK_T); `held.UPDATE.RANK.json`, where this rank is and what was measured.
"""

import json
import weakref
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

DERIVED = ("W_UV", "W_UK_T")


class Taken(TorchDispatchMode):
    """Bytes of the memory that operators make within it: all together, and the most that there was at a time.

    A view, and what is written in place, is in memory that was given. What a backend makes inside (gloo's messages) is not seen.
    """

    def __init__(self):
        super().__init__()
        self.made = self.now = self.most = 0
        self._looks = True

    @contextmanager
    def aside(self):
        """What is made in here is not of the update."""
        self._looks = False
        try:
            yield
        finally:
            self._looks = True

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if self._looks:
            known = {one._cdata for one in _memories([args, kwargs])}
            for memory in _memories(result):
                if memory._cdata not in known:
                    known.add(memory._cdata)
                    self._take(memory)
        return result

    def _take(self, memory):
        size = memory.nbytes()
        self.made, self.now = self.made + size, self.now + size
        self.most = max(self.most, self.now)
        weakref.finalize(memory, self._give_back, size)

    def _give_back(self, size):
        self.now -= size


def _memories(values):
    tensors = (one for one in tree_iter(values) if isinstance(one, torch.Tensor) and one.device.type != "meta")
    return [one.untyped_storage() for one in tensors]


def held_by(engine):
    """The tensors of an engine by name: vllm's names of parameters, and LAYER.W_UV and W_UK_T."""
    from vllm.attention.layer import MLAAttention

    model = model_of(engine)
    latent = [module for module in model.modules() if isinstance(module, MLAAttention)]
    derived = {f"{layer.layer_name}.{name}": getattr(layer.impl, name) for layer in latent for name in DERIVED}
    return {name: one.data for name, one in model.named_parameters()} | derived


def model_of(engine):
    return engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()


def place_of(engine):
    """This rank's place in the tensor parallel group, and the experts that each layer keeps."""
    from vllm.distributed import parallel_state
    from vllm.model_executor.layers.fused_moe import FusedMoE

    group, experts = parallel_state.get_tp_group(), {}
    for name, module in model_of(engine).named_modules():
        if isinstance(module, FusedMoE):
            places = range(module.global_num_experts) if module._expert_map is None else module._expert_map.tolist()
            experts[name] = [expert for expert, place in enumerate(places) if place >= 0]
    return {"tensor rank": group.rank_in_group, "tensor ranks": group.world_size, "experts": experts}


@contextmanager
def looked_into(engine, file):
    """Around an update; `file` makes the name of a file of its ending, and is asked afterwards. Yields what measures."""
    from safetensors.torch import save_file

    before = {name: one.data_ptr() for name, one in held_by(engine).items()}
    with Taken() as taken:
        yield taken
    held = held_by(engine)
    save_file({name: one.detach().clone().contiguous() for name, one in held.items()}, file("safetensors"))
    found = {
        "made": taken.made,
        "most": taken.most,
        "held": sum(one.nbytes for one in held.values()),
        "addresses kept": {name: one.data_ptr() for name, one in held.items()} == before,
    }
    with open(file("json"), "w", encoding="utf-8") as out:
        json.dump(found | place_of(engine), out)
