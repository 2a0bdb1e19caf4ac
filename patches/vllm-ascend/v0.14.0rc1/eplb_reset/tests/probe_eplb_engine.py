"""Probe: a real engine whose experts are spread over two ranks, balanced on demand. Usage: probe_eplb_engine.py MODEL

Scheduler, worker, model runner, expert layers, planner process and exchange of experts are upstream's; the device below
is the stand-in of npu_engine, and gloo carries the experts. test_eplb_reset.py judges what is printed.
"""

import json
import os
import signal
import sys
from types import SimpleNamespace

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in this process, which is prepared
npu_engine.prepare(device="A2")

import torch  # noqa: E402  (what imports vllm comes after the preparation)
import torch.distributed as dist  # noqa: E402
from probe_eplb_common import (  # noqa: E402
    INTERVALS,
    UNTIL_FIRST_MOVE,
    Engine,
    HuggingFace,
    children,
    gather_as_hccl,
    make_llm,
    refusal,
)
from transformers import AutoModelForCausalLM  # noqa: E402
from vllm_ascend.eplb import on_demand  # noqa: E402

MODEL = sys.argv[1]


def one_round(engine, hf, **arguments):
    started = engine.rpc("eplb_start", **arguments)
    seen = {"children": children(), "buffer_bytes": started["buffer_bytes"]}
    seen |= {"tokens": engine.generate(), "hf": hf.tokens(), "moved": engine.placement()}
    return seen | {"stopped": engine.rpc("eplb_stop"), "resources": engine.resources(), "placement": engine.placement()}


def rounds(engine, hf):
    """Three times: start, generate through several moves, stop."""
    out = {"tokens": engine.generate(), "resources": engine.resources(), "placement": engine.placement()}
    engine.discard_what_sleep_discards()
    return out | {"rounds": [one_round(engine, hf) for _ in range(3)]}


def partly_moved(engine, hf):
    """Stop when one layer of two has been moved, with the exchange of the other one under way."""
    engine.rpc("eplb_start")
    engine.generate(steps=UNTIL_FIRST_MOVE + 1)
    engine.runner.eplb_updator.forward_before()
    out = {"exchange": engine.runner.eplb_updator.eplb_loader.state.name, "moved": engine.placement()}
    out |= {"stopped": engine.rpc("eplb_stop"), "placement": engine.placement()}
    return out | {"tokens": engine.generate(), "hf": hf.tokens()}


def new_weights(engine, hf):
    """Weights from training between two rounds, with what sleep mode discards discarded."""
    engine.discard_what_sleep_discards()
    hf.disturb()
    engine.load(hf.model.state_dict().items())
    resources = engine.resources()
    return {"loaded": resources, "round": one_round(engine, hf)}


def planner(engine, hf):
    """The planner's updates are one a layer; when it is killed, stop and start go on, and a waiting step fails."""
    pid = engine.rpc("eplb_start")["planner_pid"]
    maps = torch.stack([experts.global_expert_map for experts in engine.experts()])
    worker = engine.runner.eplb_updator.eplb_process.worker
    out = {"updates": [update[3] for update in worker.compose_expert_update_info_greedy(maps, maps)]}
    os.kill(pid, signal.SIGKILL)
    out |= {"stopped": engine.rpc("eplb_stop"), "round": one_round(engine, hf)}
    os.kill(engine.rpc("eplb_start")["planner_pid"], signal.SIGKILL)
    out["waiting"] = refusal(engine.generate)
    engine.rpc("eplb_abort")
    return out | {"children": children()}


class FailingRequest:
    """In place of an exchange's request, which fails."""

    def wait(self):
        raise RuntimeError("the exchange has failed")


def abort(engine):
    engine.generate()
    engine.rpc("eplb_abort")


def failing_stop(engine):
    """The exchange that the stop waits for fails on every rank."""
    engine.generate(steps=UNTIL_FIRST_MOVE + 1)
    updator = engine.runner.eplb_updator
    updator.forward_before()
    for request in updator.reqs:
        request.wait()
    updator.reqs = [FailingRequest()]
    engine.rpc("eplb_stop")


def failures(engine, hf):
    """Balancing ends with an error after moves; the engine is refused until all weights have been loaded again."""
    out = {}
    for fail in (abort, failing_stop):
        engine.load(hf.model.state_dict().items())
        engine.rpc("eplb_start", reloaded=True)
        one = {"raised": refusal(fail, engine), "children": children(), "left": engine.placement()}
        one |= {"start": refusal(engine.rpc, "eplb_start"), "stop": engine.rpc("eplb_stop")}
        engine.load(hf.model.state_dict().items())
        one |= {"round": one_round(engine, hf, reloaded=True), "again": one_round(engine, hf)}
        out[fail.__name__] = one
    return out


def random_moves():
    """Of 200 random pairs of placements (experts twice on some ranks, slots permuted): those that moves do not join."""
    generator = torch.Generator().manual_seed(0)
    ranks, experts, slots = 3, 7, 4
    wrong = []
    for case in range(200):
        current, wanted = (_random_placement(generator, ranks, experts, slots) for _ in range(2))
        moves = on_demand.moves_between(_as_map(current, experts), _as_map(wanted, experts))
        held = [list(rank) for rank in current]
        for move in moves:
            held[move.target][move.target_slot] = current[move.source][move.source_slot]
        if held != wanted:
            wrong.append(case)
    return wrong


def _random_placement(generator, ranks, experts, slots):
    """For each rank the expert in each slot; every expert is somewhere."""
    while True:
        rows = [torch.randperm(experts, generator=generator)[:slots].tolist() for _ in range(ranks)]
        if len({expert for row in rows for expert in row}) == experts:
            return rows


def _as_map(placement, experts):
    return torch.tensor([[row.index(one) if one in row else -1 for one in range(experts)] for row in placement])


def refusals(engine):
    out = {"weights_for_loading": _start_with_transposed_weights(engine)}
    engine.rpc("eplb_start")
    out["start_twice"] = refusal(engine.rpc, "eplb_start")
    engine.rpc("eplb_stop")
    out["stop_twice"] = engine.rpc("eplb_stop")
    runner = engine.runner
    out["lora"] = _refusal_with(engine, runner, "lora_config", object())
    out["quantized"] = _refusal_with(engine, runner.vllm_config, "quant_config", object())
    out["model"] = _refusal_with(engine, runner.model_config.hf_text_config, "model_type", "gpt_oss")
    for key, value in {"mlp_only_layers": [1], "decoder_sparse_step": 2, "moe_layer_freq": 2}.items():
        out[key] = _refusal_with(engine, runner.model_config.hf_text_config, key, value)
    out["ranks"] = _refusal_with(engine, on_demand, "get_ep_group", lambda: SimpleNamespace(ranks=[2, 3]))
    out["within_step"] = _refusal_with(engine, runner, "execute_model_state", object())
    return out


def _start_with_transposed_weights(engine):
    engine.transpose_weights()
    try:
        return refusal(engine.rpc, "eplb_start")
    finally:
        engine.transpose_weights()


def _refusal_with(engine, place, name, value):
    before = getattr(place, name, None)
    setattr(place, name, value)
    try:
        return refusal(engine.rpc, "eplb_start")
    finally:
        setattr(place, name, before)


def main():
    dist.init_process_group("gloo")
    gather_as_hccl()
    engine = Engine(make_llm(MODEL, {"dynamic_eplb": True, "on_demand": True} | INTERVALS))
    hf = HuggingFace(AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32))
    result = rounds(engine, hf) | {"partly": partly_moved(engine, hf), "new_weights": new_weights(engine, hf)}
    result |= {"refused": refusals(engine), "wrong_moves": random_moves()}
    # The planner's last: the step that it fails is raised once more by the engine's next generation.
    result |= {"failures": failures(engine, hf), "planner": planner(engine, hf)}
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(result))


main()
