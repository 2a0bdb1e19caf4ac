"""Probe: what operators_0_23 adds to probe_moe_ops.py, which runs first, on its operators.

Usage: probe_moe_ops_0_23.py VLLM_ASCEND. Prints what that probe does, which `schemas` are those of the tree's csrc/torch_binding.cpp,
`fused`, the largest difference of the fused product from product, SwiGLU and quantisation one after the other (in steps of the
quantisation), and what is refused.
"""

import contextlib
import io
import json
import pathlib
import re
import runpy
import sys

import operators_0_23  # noqa: F401  (imported for the operators that it defines)
import torch
import torch_npu

OPERATORS = ("moe_gating_top_k", "npu_moe_init_routing_custom", "grouped_matmul_swiglu_quant_weight_nz")


def of_the_older_probe():
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        older = runpy.run_path(str(pathlib.Path(__file__).with_name("probe_moe_ops.py")))
    return older, json.loads(printed.getvalue())


def fused(older):
    x, ids, _ = older["routed"]()
    rows, _, counts, scales = older["route"](x, ids, quant_mode=1)
    generator = torch.Generator().manual_seed(4)
    shape = (older["EXPERTS"], older["HIDDEN"], 2 * older["WIDTH"])
    weight = torch.randint(-127, 128, shape, generator=generator).to(torch.int8)
    scale = torch.rand(len(weight), weight.shape[2], generator=generator) / 100
    made, made_scales, _ = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz(
        rows, weight, scale, scales, counts.cumsum(0)
    )
    meant = older["by_expert"](rows.float() * scales[:, None], counts, weight.float() * scale[:, None])
    gate, up = meant.chunk(2, -1)
    return older["in_steps"](made, made_scales, torch.nn.functional.silu(gate) * up)


def refusals(older):
    x, ids, _ = older["routed"]()
    gate, route, logits = older["gate"], older["route"], torch.zeros(2, 8)
    nz = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz
    calls = {
        "logits of three dimensions": lambda: gate(logits[None], 2),
        "a bias of another type": lambda: gate(logits.half(), 2, bias=torch.zeros(8)),
        "a bias for fewer experts": lambda: gate(logits, 2, bias=torch.zeros(7)),
        "more experts than there are": lambda: gate(logits, 9),
        "more than the chosen groups have": lambda: gate(logits, 5, groups=(2, 4)),
        "groups that do not share the experts": lambda: gate(logits, 2, groups=(1, 3)),
        "more groups than there are": lambda: gate(logits, 2, groups=(5, 4)),
        "the best two of groups of one": lambda: gate(logits, 2, groups=(2, 8)),
        "another norm": lambda: gate(logits, 2, norm_type=2),
        "too many experts": lambda: gate(torch.zeros(1, 2049), 2),
        "tokens without experts": lambda: route(x, ids[1:]),
        "tokens of three dimensions": lambda: route(x[None], ids),
        "experts beyond the last": lambda: route(x, ids, 0, older["EXPERTS"] + 1),
        "no experts": lambda: route(x, ids, 2, 2),
        "a limit of SwiGLU": lambda: nz(x.to(torch.int8), *[torch.zeros(1)] * 4, swiglu_limit=7.0),
        "quantising to floats": lambda: torch_npu.npu_dynamic_quant(x, dst_type=torch.float8_e4m3fn),
    }
    return {name: older["raised"](call) for name, call in calls.items()}


def schemas(tree):
    """Whether each operator's arguments and results here are those that the tree declares."""
    source = pathlib.Path(tree, "csrc/torch_binding.cpp").read_text(encoding="utf-8")
    definitions = (
        "".join(re.findall(r'"([^"]*)"', one)) for one in re.findall(r'ops\.def\(\s*((?:"[^"]*"\s*)+)', source)
    )
    declared = {text.partition("(")[0].strip(): text for text in definitions}
    return {name: _shape(torch._C.parse_schema(declared[name])) == _shape(_here(name)) for name in OPERATORS}


def _here(name):
    return getattr(torch.ops._C_ascend, name).default._schema


def _shape(schema):
    arguments = [(one.name, str(one.type), one.default_value, one.kwarg_only) for one in schema.arguments]
    return arguments, [str(one.type) for one in schema.returns]


older, result = of_the_older_probe()
result |= {"schemas": schemas(sys.argv[1]), "fused": fused(older), "refused by 0.23": refusals(older)}
print(json.dumps(result))
