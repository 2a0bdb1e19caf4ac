"""Probe: compiles a graph with vllm-ascend's compiler, as its configuration says.

Usage: probe_static_kernel.py MODEL JSON; the JSON holds arguments of vllm's EngineArgs.
"""

import json
import sys

import recording_torchair

torchair = recording_torchair.install()

import torch  # noqa: E402  (torchair must be there before vllm-ascend is imported)
from vllm.config.utils import Range  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.compilation.compiler_interface import AscendCompiler  # noqa: E402
from vllm_ascend.utils import COMPILATION_PASS_KEY  # noqa: E402

ENGINE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 256}


def engine_config(model, options):
    return EngineArgs(model=model, tokenizer=model, **ENGINE, **options).create_engine_config()


def compile_graph(config):
    """What vllm does with each piece of the model's graph when the compiler is the platform's."""
    compiler = AscendCompiler()
    compiler.compute_hash(config)
    graph = torch.fx.symbolic_trace(lambda x: (x + 1,))
    passes = {COMPILATION_PASS_KEY: lambda graph: graph}
    compiled, _ = compiler.compile(graph, [torch.ones(2)], passes, Range(1, 256))
    return compiled(torch.ones(2))


def main():
    config = engine_config(sys.argv[1], json.loads(sys.argv[2]))
    seen = {"capture_sizes": list(config.compilation_config.cudagraph_capture_sizes)}
    try:
        result = compile_graph(config)
    except Exception as error:
        return seen | {"error": f"{type(error).__name__}: {error}"}
    seen["result"] = [float(one) for one in result[0]]
    seen["compiled_by_torchair"] = torchair.compiled
    if torchair.configs:
        [asked] = torchair.configs
        options = asked.experimental_config.aclgraph
        seen |= {
            "mode": asked.mode,
            "run_eagerly": asked.debug.run_eagerly,
            "static_kernel": options._aclnn_static_shape_kernel,
            "static_shapes": options._aclnn_static_shape_kernel_sym_value_range,
        }
    return seen


if __name__ == "__main__":
    print(json.dumps(main()))
