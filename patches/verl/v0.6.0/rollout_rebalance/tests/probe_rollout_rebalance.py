"""Probe: requests move between the data-parallel engines of verl's vLLMRollout. Usage: probe_rollout_rebalance.py MODEL CASES

CASES is a JSON list of {"procs", "settings", "loads", "whole", "broken"}: a world of that many processes, each with a real
vLLMRollout, and names of LOADS, which are generated one after the other, each first without rebalancing and then with it;
with "whole" also verl's own generate_sequences, with "broken" a rank that fails there. Prints a list, by case, of lists by rank.
"""

import json
import os
import sys

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # the engine stays in the rank's process, which is prepared
npu_engine.prepare(device="A2")

import probe_rollout_dp_ranks as world  # noqa: E402  (what imports vllm comes after the preparation)
import rebalance_loads as loads  # noqa: E402
import verl.workers.rollout.vllm_rollout.vllm_rollout_spmd  # noqa: E402, F401  (once, before the ranks are forked)
import vllm.model_executor.models.qwen3_moe  # noqa: E402, F401
import vllm_ascend.worker.worker  # noqa: E402, F401

MODEL = sys.argv[1]
CASES = json.loads(sys.argv[2])


def run_case(case):
    rollout = loads.make_rollout(MODEL, case["settings"])
    order = list(loads.ORDER)
    recorder = loads.Recorder(rollout)
    found = {name: loads.with_and_without(rollout, recorder, name) for name in case["loads"]}
    result = {"loads": found, "rank": recorder.rank, "tensor_parallel": recorder.tensor_parallel, "order": order}
    if case.get("whole"):
        result["timed"] = loads.timed(rollout, recorder)
        result["as_verl_does"] = loads.as_verl_does(rollout, recorder)
    if where := case.get("broken"):
        result["broken"] = loads.broken(rollout, recorder, where)
    if where != "model":  # there the others are told by the connection that ends
        loads.leave()
    return result


def main():
    print(json.dumps([world.run_world(case["procs"], lambda rank, case=case: run_case(case)) for case in CASES]))


main()
