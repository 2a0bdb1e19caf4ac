"""Probe: what vllm-ascend 0.23's compiler asks torchair for, with static kernels. Usage: probe_static_kernel_0_23.py FOLDER MODEL JSON:
the folder of the stand-in for torchair, the model, arguments of vllm's EngineArgs."""

import json
import sys

sys.path.insert(0, sys.argv[1])

import recording_torchair

torchair = recording_torchair.install()


class CompilerConfig(recording_torchair.CompilerConfig):
    """With the option of debug that torchair has got since."""

    def __init__(self):
        super().__init__()
        switch = (False, [False, True])
        aclgraph = recording_torchair.Options("debug.aclgraph", {"disable_reinplace_inplaceable_ops_pass": switch})
        self._values["debug"] = recording_torchair.Options("debug", {"run_eagerly": switch, "aclgraph": aclgraph})


torchair.CompilerConfig = CompilerConfig

import torch  # noqa: E402  (torchair must be there before vllm-ascend is imported)
from vllm.config.utils import Range  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm_ascend.compilation.compiler_interface import AscendCompiler  # noqa: E402

ENGINE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 256}


def main():
    _, _, model, options = sys.argv
    config = EngineArgs(model=model, tokenizer=model, **ENGINE, **json.loads(options)).create_engine_config()
    compiler = AscendCompiler()
    compiler.compute_hash(config)
    compiled, _ = compiler.compile(torch.fx.symbolic_trace(lambda x: (x + 1,)), [torch.ones(2)], {}, Range(1, 256))
    (asked,) = torchair.configs
    aclgraph = asked.experimental_config.aclgraph
    result = {
        "result": [float(one) for one in compiled(torch.ones(2))[0]],
        "static_kernel": aclgraph._aclnn_static_shape_kernel,
        "static_shapes": aclgraph._aclnn_static_shape_kernel_sym_value_range,
    }
    print(json.dumps(result))


main()
