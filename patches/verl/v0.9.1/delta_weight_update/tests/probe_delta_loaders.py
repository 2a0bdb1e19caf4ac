"""Probe: a worker's loaders of other kinds, a large tensor of experts, and the device's communicator of an update that brings all weights again.

Prints what a rank of two holds of weights that vLLM's loaders assign by slices, stage in a buffer of their own, or load and then compute with,
and whether the changes were taken; what the trainer says to experts that are packed in a tensor of 2^31 elements or fewer; and how many
communicators were made and given back.
"""

import npu_engine_0_23

npu_engine_0_23.prepare()

import json  # noqa: E402  (the platform must be prepared first)
from types import SimpleNamespace  # noqa: E402

import torch  # noqa: E402
from verl.checkpoint_engine import CheckpointEngineRegistry, delta_in_place_engine  # noqa: E402
from verl.workers.rollout.vllm_rollout.delta_in_place import InPlace  # noqa: E402

ROWS = 4  # of a rank, half of a weight's


class Model(torch.nn.Module):
    def __init__(self, load):
        super().__init__()
        self.load = load
        self.part = torch.nn.Parameter(torch.zeros(ROWS, 2, dtype=torch.bfloat16), requires_grad=False)
        self.rest = torch.nn.Parameter(torch.zeros(ROWS, 64, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, weights):
        for name, weight in weights:
            own = weight.narrow(0, 0, ROWS)
            self.load(self.part.data, own) if name == "part" else self.rest.data.copy_(own)


def by_slices(part, own):
    """As mamba_v2_sharded_weight_loader."""
    part[0:2, ...] = own[0:2, ...]
    part[2:4, ...] = own[2:4, ...]


def by_a_buffer(part, own):
    part.copy_(torch.empty_like(part).copy_(own))


def with_what_it_wrote(part, own):
    """As composed_weight_loader."""
    part.copy_(own)
    part.copy_(-part.float().exp())


def changes(name, before, after):
    where = (before != after).view(-1).nonzero().view(-1)
    engine = CheckpointEngineRegistry.new("delta_in_place", bucket_size=1 << 20)
    return engine._pieces(name, tuple(after.shape), where.to(torch.int32), after.view(-1)[where], range(len(where)))


def loaded(load):
    """Whether two updates of changes were taken, and whether what the worker holds is then what whole weights make."""
    model, whole, worker = Model(load), Model(load), InPlace()
    now = {"part": torch.rand(2 * ROWS, 2).bfloat16(), "rest": torch.rand(2 * ROWS, 64).bfloat16()}
    worker.begin([model], True)
    model.load_weights(now.items())
    taken = [worker.end([model])]
    for _ in range(2):
        before, now = now, {name: weight.clone() for name, weight in now.items()}
        now["part"][1, 0] += 1
        now["rest"][:, :60] += 1
        worker.begin([model], False)
        worker.write([model], [one for name in now for one in changes(name, before[name], now[name])])
        taken.append(worker.end([model]))
        if not taken[-1]:
            break
    whole.load_weights(now.items())
    return [taken, all(torch.equal(*pair) for pair in zip(model.parameters(), whole.parameters(), strict=True))]


def said_to(experts, model_type):
    """Of a meta tensor, which has no elements."""
    named = {"model.layers.3.mlp.experts.gate_up_proj": torch.empty(experts, device="meta")}
    engine = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type=model_type)),
        module=SimpleNamespace(named_parameters=named.items),
    )
    try:
        delta_in_place_engine.NamedAsExported(engine)
    except ValueError as error:
        return str(error)


def communicators(kind):
    """How many were made and given back in four updates, of which the second and the last bring changes."""
    made, back = [], []
    if kind == "npu":
        given = SimpleNamespace(comm="it", hccl=SimpleNamespace(hcclCommDestroy=back.append))
    else:
        given = SimpleNamespace(destroy=lambda: back.append("it"))
    delta_in_place_engine.get_nccl_backend = lambda: kind
    delta_in_place_engine.stateless_init_process_group = lambda *of: made.append(of) or given
    side = CheckpointEngineRegistry.new("delta_in_place", bucket_size=1 << 20, is_master=True)
    for whole in (True, False, True, False):
        side.init_process_group(0, 1, side.prepare()["address"], whole)
    return [len(made), back]


def main():
    found = {load.__name__: loaded(load) for load in (by_slices, by_a_buffer, with_what_it_wrote)}
    found["experts"] = [
        said_to((256, 4096, 7168), "deepseek_v3"),
        said_to((128, 1536, 4096), "qwen3_moe"),
        said_to((256, 4096, 7168), "gpt_oss"),
    ]
    found["communicators"] = [communicators(kind) for kind in ("npu", "nccl")]
    print(json.dumps(found))


main()
