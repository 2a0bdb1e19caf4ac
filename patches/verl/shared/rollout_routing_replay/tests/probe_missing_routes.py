"""Probe: tokens for which the rollout returned no routes, through verl's Megatron engine.

Usage: probe_missing_routes.py CASE...   (of CASES; each is asked of every rank)

Real: what probe_rollout_routing_replay.py says, and verl's packing of sequences. Rows are zeroed as vLLM's buffers hold them where
nothing was captured. Prints what each case returns.
"""

import dataclasses
import json
import logging
import sys
import types

import numpy as np
import tiny_megatron  # before megatron: it replaces torch.cuda
import torch
import torch.distributed as dist
from probe_rollout_routing_replay import TAKEN, chosen, data, engine, mask_of, nested, routes_of, stored
from verl.models.mcore import util
from verl.utils import tensordict_utils as tu
from verl.utils.megatron.router_replay_utils import build_r3_replay_mask
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict
from verl.workers.config import McoreEngineConfig
from verl.workers.config.engine import EngineRouterReplayConfig

MASKS = [[1, 1, 1, 1], [1, 1, 0, 0, 1, 1]]
# Of the sequences; 6 and 7 tokens of them were read by the rollout. One layer alone is as good as none.
MISSING = [{0: "all", 2: "all", 5: "all"}, {3: "one layer"}]


class Waits:
    """Counts what would wait for a device: reads of values by the host."""

    def __enter__(self):
        self.count, self.real = 0, {name: getattr(torch.Tensor, name) for name in ("tolist", "item")}
        for name, read in self.real.items():
            setattr(torch.Tensor, name, self._counted(read))
        return self

    def _counted(self, read):
        def counted(tensor):
            self.count += 1
            return read(tensor)

        return counted

    def __exit__(self, *unused):
        for name, read in self.real.items():
            setattr(torch.Tensor, name, read)


def batch_of(missing):
    """The batch, its routes as they should have been, and with what was lost."""
    rows = [row for row, _ in stored(8, np.uint8, MASKS)]
    whole = [row["routed_experts"].clone() for row in rows]
    for row, lost in zip(rows, missing, strict=True):
        for token, how in lost.items():
            row["routed_experts"][token, 0 if how == "one layer" else slice(None)] = 0
    batch = data(rows, len(rows))
    batch["routed_experts"] = nested(row["routed_experts"] for row in rows)
    return rows, batch, whole


def made(action):
    one = engine("R3", 8)
    known = {field.name for field in dataclasses.fields(EngineRouterReplayConfig)}
    settings = {"missing_routes": action} if "missing_routes" in known else {}  # upstream has no such key
    one.engine_config = McoreEngineConfig(router_replay=EngineRouterReplayConfig(mode="R3", **settings))
    return one


def run(one, batch):
    TAKEN.clear()
    with torch.no_grad():
        return one.forward_backward_batch(batch, None, forward_only=True)


def passed(action, missing=MISSING):
    rows, batch, whole = batch_of(missing)
    output = run(made(action), batch)
    return {
        "told": reduce_metrics(rename_dict(output["metrics"], "actor/")),
        "wanted": routes_of(whole),
        "taken": chosen(TAKEN, rows),
    }


def alone():
    """The router's own choices, without replay."""
    rows, batch, _ = batch_of(MISSING)
    tu.assign_non_tensor(batch, enable_routing_replay=False)
    run(made("native"), batch)
    return chosen(TAKEN, rows)


def refused(missing=MISSING):
    """The error, and how many routers ran before it."""
    _, batch, _ = batch_of(missing)
    one = made("refuse")
    try:
        run(one, batch)
    except RuntimeError as error:
        return [str(error), len(TAKEN)]
    return [None, len(TAKEN)]


def reductions():
    """All-reduces of a pass, by what becomes of missing routes."""
    counts = {}
    for action in ("replay", "native"):
        one, (_, batch, _) = made(action), batch_of([{}, {}])
        real, calls = dist.all_reduce, []
        dist.all_reduce = lambda *args, real=real, calls=calls, **kwargs: calls.append(1) or real(*args, **kwargs)
        try:
            run(one, batch)
        finally:
            dist.all_reduce = real
        counts[action] = len(calls)
    return counts


def of_ranks():
    """Rank 1 alone has lost routes: the share, and the error, on each rank."""
    missing = MISSING if dist.get_rank() else [{}, {}]
    return {"native": passed("native", missing)["told"], "refuse": refused(missing)}


def warnings():
    """What two passes with lost routes log, and one whose routers choose one expert each."""
    from verl.utils.megatron import missing_routes

    lines, handler = [], logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    missing_routes.logger.addHandler(handler)
    missing_routes._told.clear()
    for _ in range(2):
        passed("native")
    of_two = list(lines)
    missing_routes._told.clear()
    _, batch, _ = batch_of([{}, {}])
    single = nested(one[..., :1] * 0 for one in batch["routed_experts"].unbind())
    config = made("refuse").engine_config
    share = missing_routes.count_missing_routes({"routed_experts": single}, None, config, None)
    return {"two passes": of_two, "top-k of 1": lines[len(of_two) :], "share of 1": share}


def of_layers():
    """Which rows have routes in a model whose first layer is dense, from all its layers and from the second and third alone."""
    from verl.utils.megatron.missing_routes import have_routes

    config = types.SimpleNamespace(num_layers=3, moe_layer_freq=[0, 1, 1])
    routes = torch.tensor([[[0, 0], [1, 2], [2, 0]], [[0, 0], [5, 5], [2, 0]], [[0, 0], [0, 0], [0, 0]]])
    return [have_routes(routes, config).tolist(), have_routes(routes[:, 1:], config).tolist()]


def native_without_values():
    """The error with which a mask ends on a device that has shapes alone."""
    from verl.utils.megatron.missing_routes import without_missing_routes

    offsets = torch.tensor([0, 5, 12], device="meta")
    mask = torch.nested.nested_tensor_from_jagged(torch.empty(12, dtype=torch.bool, device="meta"), offsets=offsets)
    values = torch.empty(12, 3, 2, dtype=torch.int16, device="meta")
    routes = torch.nested.nested_tensor_from_jagged(values, offsets=offsets)
    try:
        made = without_missing_routes(mask, routes, types.SimpleNamespace(num_layers=3, moe_layer_freq=[0, 1, 1]))
    except (RuntimeError, NotImplementedError) as error:
        return str(error)
    assert made.values().shape == (12,)
    return None


def padded_masks():
    """Random batches of the trainers that pad: prompts on the left, responses on the right, some with no token."""
    draw, equal = np.random.default_rng(0), 0
    for _ in range(300):
        size = int(draw.integers(1, 7))
        prompts, responses = draw.integers(1, 5, size), draw.integers(0, 9, size)
        attention, written = torch.zeros(size, 4 + 9, dtype=torch.long), torch.zeros(size, 9, dtype=torch.long)
        wanted = []
        for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
            attention[row, 4 - prompt : 4 + response] = 1
            wrote = torch.from_numpy(draw.integers(0, 2, response))
            written[row, :response] = wrote
            wanted.append(mask_of(int(prompt + response), wrote))
        lengths = [int(one) for one in prompts + responses]
        made = build_r3_replay_mask(nested(torch.arange(one) for one in lengths), written, attention)
        equal += torch.equal(made.values(), torch.cat(wanted))
    return {"batches": 300, "equal": equal}


def packed(sequences, on_npu):
    """Packs a jagged mask of random lengths as for an NPU or another device. Returns the reads of values, and whether rows, positions
    and what MindSpeed is given are those of the sequences one by one."""
    lengths = np.random.default_rng(sequences).integers(1, 30, sequences).tolist()
    mask, given = nested(torch.arange(length) % 3 == 0 for length in lengths), []
    for name, function, keep in (  # MindSpeed keeps them for its attention
        ("mindspeed.core.context_parallel.get_batch_utils", "set_actual_seq_len", lambda ends: None),
        ("mindspeed.utils", "set_position_ids", given.append),
    ):
        sys.modules[name] = types.SimpleNamespace(**{function: keep})
    util.is_npu_available = on_npu
    with Waits() as waits:
        rows, _, positions = util.preprocess_thd_engine(mask, pre_process=True)
    wanted = torch.cat([torch.arange(length) for length in lengths])
    same = torch.equal(rows.flatten(), mask.values()) and torch.equal(positions.flatten(), wanted)
    for one in given:
        same &= torch.equal(one, wanted.int()[:, None]) and one.dtype == torch.int32
    return [waits.count, same, len(given)]


def packing():
    """Of 2 sequences and of 64. Last of the cases: it leaves the module at that of an NPU."""
    return [[packed(sequences, on_npu) for sequences in (2, 64)] for on_npu in (False, True)]


CASES = {
    "native": lambda: passed("native"),
    "replay": lambda: passed("replay"),
    "nothing missing": lambda: passed("refuse", [{}, {}]),
    "alone": alone,
    "refuse": refused,
    "reductions": reductions,
    "ranks": of_ranks,
    "warnings": warnings,
    "layers": of_layers,
    "native without values": native_without_values,
    "padded masks": padded_masks,
    "packing": packing,
}


def main():
    tiny_megatron.initialise()
    print(json.dumps([CASES[case]() for case in sys.argv[1:]]))


if __name__ == "__main__":
    main()
