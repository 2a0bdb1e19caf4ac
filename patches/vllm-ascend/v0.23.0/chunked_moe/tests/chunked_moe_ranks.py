"""What probes of the experts below the engine begin with. Imported after npu_experts_0_23.prepare."""

import os

import torch
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm_ascend import ascend_forward_context
from vllm_ascend.utils import adapt_patch

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def start(model):
    """The process groups of an engine whose expert parallel group is all ranks, and its configuration."""
    args = EngineArgs(
        model=model,
        tokenizer=model,
        dtype="float32",
        max_model_len=64,
        tensor_parallel_size=RANKS,
        enable_expert_parallel=True,
        distributed_executor_backend="external_launcher",
        additional_config={"moe_chunk_tokens": 1},  # the sizes are set below, method by method
    )
    config = args.create_engine_config()
    adapt_patch()
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm_ascend.distributed.parallel_state import init_ascend_model_parallel

    with set_current_vllm_config(config):
        init_distributed_environment(RANKS, RANK, "env://", RANK, "gloo")
        ensure_model_parallel_initialized(RANKS, 1)
        init_ascend_model_parallel(config.parallel_config)
    ascend_forward_context._mc2_tokens_capacity = 0
    return config


def make_layer(config, settings):
    """Experts of these sizes (`experts`, `k`, `hidden`, `width`), this rank's made; their methods of exchange are the engine's."""
    from vllm_ascend.ops.fused_moe.fused_moe import AscendFusedMoE

    with set_current_vllm_config(config):
        layer = AscendFusedMoE(
            num_experts=settings["experts"],
            top_k=settings["k"],
            hidden_size=settings["hidden"],
            intermediate_size=settings["width"],
            params_dtype=torch.float32,
            renormalize=True,
            prefix="measured.experts",
        )
    for weight in (layer.w13_weight, layer.w2_weight):
        torch.nn.init.normal_(weight, std=0.05, generator=torch.Generator().manual_seed(RANK))
    layer.quant_method.process_weights_after_loading(layer)
    return layer
