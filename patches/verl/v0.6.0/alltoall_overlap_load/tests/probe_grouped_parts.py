"""Probe: parts of the load of grouped experts that no small model comes to: names that look like exempt ones, and virtual stages.

Prints what `check_keys` says for each (wanted keys, stored keys, value model) of CASES, None where it is content, and the virtual pipeline ranks
that are current in `in_virtual_stages` and after it.
"""

import json

import megatron_cpu  # noqa: F401  (before megatron)
from megatron.core import parallel_state
from verl.models.mcore.grouped_experts import check_keys, in_virtual_stages

CASES = {
    "head": (["output_layer.weight"], [], True),
    "head of no value model": (["output_layer.weight"], [], False),
    "like a head": (["decoder.my_output_layer_norm.weight"], [], True),
    "stored like a head": ([], ["decoder.output_layers.weight"], True),
    "extra state": (["decoder.layers.0.mlp.linear_fc1._extra_state/shard_0_1"], [], False),
    "like an extra state": (["decoder.layers.0.my_extra_state"], [], False),
}


def said(wanted, stored, is_value_model):
    try:
        check_keys(wanted, stored, is_value_model)
    except ValueError as error:
        return str(error)
    return None


def virtual_stages():
    current = parallel_state.get_virtual_pipeline_model_parallel_rank
    parallel_state.set_virtual_pipeline_model_parallel_rank(1)
    seen = [(stage, model, current()) for stage, model in in_virtual_stages(["a", "b", "c"])]
    found = {"seen": seen, "after": current()}
    try:
        for stage, _ in in_virtual_stages(["a", "b"]):
            raise InterruptedError(f"in stage {stage}")
    except InterruptedError:
        found["after an error"] = current()
    parallel_state.set_virtual_pipeline_model_parallel_rank(None)
    return found | {"alone": [(stage, current()) for stage, _ in in_virtual_stages(["a"])]}


print(json.dumps({"keys": {name: said(*case) for name, case in CASES.items()}, "stages": virtual_stages()}))
