"""A tiny GPT model under Megatron's own DDP and distributed optimizer, on CPU and gloo. Needs `megatron_cpu`."""

import os
from itertools import pairwise

import megatron_cpu
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.transformer import TransformerConfig

VOCABULARY = 512
SEQUENCE = 16


def initialise(tensor_parallel=1, context_parallel=1, expert_parallel=1):
    """Starts gloo with the ranks of the environment (one process without them) and Megatron's groups."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        os.environ.setdefault(name, value)
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(
        tensor_parallel,
        context_parallel_size=context_parallel,
        expert_model_parallel_size=expert_parallel,
        expert_tensor_parallel_size=1 if expert_parallel > 1 else None,
    )
    megatron_cpu.adapt_megatron()


def packed_attention(query, key, value, bounds):
    """PyTorch's causal attention over packed sequences, one at a time, which Megatron leaves to Transformer Engine.

    query [tokens, heads, width], key and value [tokens, groups, width]; `bounds` int [sequences + 1], the cumulated
    lengths. Returns [tokens, heads * width].
    """
    outputs = []
    for first, end in pairwise(bounds.tolist()):
        heads, keys, values = (tensor[first:end].transpose(0, 1) for tensor in (query, key, value))
        repeats = len(heads) // len(keys)
        keys, values = keys.repeat_interleave(repeats, 0), values.repeat_interleave(repeats, 0)
        out = torch.nn.functional.scaled_dot_product_attention(heads, keys, values, is_causal=True)
        outputs.append(out.transpose(0, 1).reshape(end - first, -1))
    return torch.cat(outputs)


def config(**changes):
    """A transformer of two layers without any fused kernel."""
    values = {
        "num_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 2,
        "kv_channels": 16,
        "ffn_hidden_size": 128,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "normalization": "RMSNorm",
        "gated_linear_unit": True,
        "activation_func": torch.nn.functional.silu,
        "add_bias_linear": False,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "masked_softmax_fusion": False,
        "apply_rope_fusion": False,
        "gradient_accumulation_fusion": False,
        "persist_layer_norm": False,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "expert_model_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
    }
    return TransformerConfig(**(values | changes))


def gpt(transformer_config, seed=0):
    """A GPT model with rotary embedding and random weights."""
    torch.manual_seed(seed)
    spec = get_gpt_layer_local_spec(num_experts=transformer_config.num_moe_experts, normalization="RMSNorm")
    return GPTModel(
        transformer_config,
        spec,
        vocab_size=VOCABULARY,
        max_sequence_length=128,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        rotary_base=10000,
    )


def distributed(model):
    """The model under DDP, and the distributed optimizer over it."""
    ddp_config = DistributedDataParallelConfig(use_distributed_optimizer=True, grad_reduce_in_fp32=True)
    ddp = DistributedDataParallel(model.config, ddp_config, model)
    bf16 = model.config.bf16
    optimizer_config = OptimizerConfig(
        optimizer="adam",
        lr=1e-2,
        bf16=bf16,
        params_dtype=torch.bfloat16 if bf16 else torch.float32,
        use_distributed_optimizer=True,
        clip_grad=1.0,
    )
    return ddp, get_megatron_optimizer(optimizer_config, [ddp])


def train_step(ddp, optimizer, seed):
    """One real step (forward, backward, gradient reduction, update) on random tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (2, SEQUENCE), generator=generator)
    positions = torch.arange(SEQUENCE).expand(2, -1)
    mask = torch.ones(1, 1, SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)
    ddp.zero_grad_buffer()
    optimizer.zero_grad()
    ddp(tokens, positions, mask, labels=tokens).float().mean().backward()
    ddp.finish_grad_sync()
    succeeded, *_ = optimizer.step()
    assert succeeded
