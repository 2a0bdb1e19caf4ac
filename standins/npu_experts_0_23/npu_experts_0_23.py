"""npu_engine_0_23 with experts: vllm-ascend 0.23's own expert layer, on reference operators (`torch_npu`, `operators_0_23`)."""

import npu_engine
import npu_engine_0_23
import operators_0_23  # noqa: F401  (imported for the operators that it defines)


def prepare(device="A3"):
    """As npu_engine_0_23.prepare, for models with experts. `device` is as in npu_engine.prepare."""
    older = npu_engine.prepare
    npu_engine.prepare = lambda: older(device)
    npu_engine_0_23._register_customop = _register_customop
    npu_engine_0_23.prepare()
    npu_engine.prepare = older


def _register_customop(vllm_config=None):
    """Of vllm-ascend's layers the experts alone; see npu_engine."""
    from vllm.model_executor.custom_op import CustomOp, op_registry_oot
    from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE

    if "FusedMoE" not in op_registry_oot:  # a second engine in this process
        CustomOp.register_oot(_decorated_op_cls=AscendFusedMoE, name="FusedMoE")
