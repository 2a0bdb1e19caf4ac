"""What the resharding probes share: tiny models as verl builds them, with Transformer Engine's parameters on a CPU.

verl builds every model from Transformer Engine's layers, whose parameter names its weight converter expects. The
layers here have those names, shapes and tensor parallel attributes, and no forward pass: resharding needs none, and
calling one fails.
"""

import hashlib
from contextlib import ExitStack
from unittest import mock

import torch
from megatron.core import mpu
from megatron.core.models.gpt import gpt_layer_specs, moe_module_specs
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.transformer.moe import experts as moe_experts

COMMON = {
    # Experts are the largest weights, as in models of real size.
    "vocab_size": 32,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 96,
    "moe_intermediate_size": 192,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
# As verl's Megatron worker passes them to its generator.
NAMES = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
OVERRIDES = {
    "persist_layer_norm": False,
    "moe_shared_expert_overlap": False,
    "bias_activation_fusion": False,
    "bias_dropout_fusion": False,
    "masked_softmax_fusion": False,
}


class ColumnWithNorm(ColumnParallelLinear):
    """Parameters of TELayerNormColumnParallelLinear: RMSNorm's weight beside the linear's."""

    def __init__(self, input_size, *args, config, **kwargs):
        super().__init__(input_size, *args, config=config, **kwargs)
        self.layer_norm_weight = torch.nn.Parameter(torch.ones(input_size, dtype=config.params_dtype))

    def forward(self, *args, **kwargs):
        raise NotImplementedError("only its parameters are made")


class Norm(torch.nn.Module):
    """The parameter of TENorm."""

    def __init__(self, config, hidden_size, eps=1e-5):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))


class CoreAttention(torch.nn.Module):
    """TEDotProductAttention has no parameters."""

    def __init__(self, *args, **kwargs):
        super().__init__()


class GroupedLinear(torch.nn.Module):
    """Parameters of TEGroupedLinear without expert tensor parallelism: a weight of (out, in) for each local expert."""

    partition_dim: int

    def __init__(self, num_gemms, input_size, output_size, *, config, **kwargs):
        super().__init__()
        for expert in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
            # As Transformer Engine does, whatever the parallel size: upstream's generator goes by it.
            set_tensor_model_parallel_attributes(weight, True, self.partition_dim, 1)
            self.register_parameter(f"weight{expert}", weight)


class ColumnGrouped(GroupedLinear):
    partition_dim = 0


class RowGrouped(GroupedLinear):
    partition_dim = 1


def _transformer_engine():
    """Puts the layers above where Megatron's specifications look for Transformer Engine's."""
    layers = {
        "TEColumnParallelLinear": ColumnParallelLinear,
        "TERowParallelLinear": RowParallelLinear,
        "TELayerNormColumnParallelLinear": ColumnWithNorm,
        "TENorm": Norm,
        "TEDotProductAttention": CoreAttention,
        "TEColumnParallelGroupedLinear": ColumnGrouped,
        "TERowParallelGroupedLinear": RowGrouped,
        "TEGroupedMLP": moe_experts.TEGroupedMLP,
        "is_te_min_version": lambda version, check_equality=True: True,
    }
    stack = ExitStack()
    for module in (gpt_layer_specs, moe_module_specs):
        for name, layer in layers.items():
            stack.enter_context(mock.patch.object(module, name, layer, create=True))
    # GroupedMLP wants its kernels when it is made, not only when it is called.
    stack.enter_context(mock.patch.object(moe_experts.gg, "assert_grouped_gemm_is_available", lambda: None))
    return stack


def hf_config(family, experts):
    """Hugging Face's configuration of a tiny qwen3_moe or deepseek_v3."""
    from transformers import DeepseekV3Config, Qwen3MoeConfig

    if family == "deepseek_v3":
        config = DeepseekV3Config(
            **COMMON,
            n_routed_experts=experts,
            num_experts_per_tok=2,
            n_shared_experts=1,
            first_k_dense_replace=1,
            n_group=1,
            topk_group=1,
            q_lora_rank=32,
            kv_lora_rank=16,
            qk_nope_head_dim=16,
            qk_rope_head_dim=16,
            v_head_dim=16,
            rope_scaling=None,
            num_nextn_predict_layers=0,
        )
        config.architectures = ["DeepseekV3ForCausalLM"]
        return config
    config = Qwen3MoeConfig(**COMMON, num_experts=experts, num_experts_per_tok=2, num_key_value_heads=2, head_dim=16)
    config.architectures = ["Qwen3MoeForCausalLM"]
    return config


def _values(place, shape):
    generator = torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(place.encode()).digest()[:4], "big"))
    return torch.randn(shape, generator=generator)


class Model:
    """This rank's part of a model in bfloat16, and what verl's generator needs to name its weights.

    `family` is qwen3_moe or deepseek_v3, with "_grouped" behind it when Megatron's GroupedMLP holds the experts.
    """

    def __init__(self, family, experts=8, chunks=1):
        from verl.models.mcore import get_mcore_weight_converter, hf_to_mcore_config
        from verl.models.mcore.registry import init_mcore_model

        self.arguments = (family.removesuffix("_grouped"), experts, chunks)
        self.grouped = family.endswith("_grouped")
        self.hf = hf_config(self.arguments[0], experts)
        self.tf = hf_to_mcore_config(self.hf, torch.bfloat16, **OVERRIDES, moe_use_legacy_grouped_gemm=self.grouped)
        self.experts = self.tf.num_moe_experts
        self.converter = get_mcore_weight_converter(self.hf, torch.bfloat16)
        self.chunks = []
        with _transformer_engine():
            for chunk in range(chunks):
                if chunks > 1:
                    mpu.set_virtual_pipeline_model_parallel_rank(chunk)
                first = mpu.is_pipeline_first_stage(ignore_virtual=chunks == 1)
                last = mpu.is_pipeline_last_stage(ignore_virtual=chunks == 1)
                self.chunks.append(init_mcore_model(self.tf, self.hf, first, last))
                self._fill(chunk)

    def _fill(self, chunk):
        """Random values that depend on the weight's place in the whole model only, so replicas are equal."""
        from verl.utils.model import normalize_model_name

        stage = mpu.get_pipeline_model_parallel_rank()
        for name, weight in self.chunks[chunk].state_dict().items():
            if torch.is_tensor(weight) and "_extra_state" not in name:
                place = normalize_model_name(name, stage, chunk, self.tf)
                if place.endswith((".mlp.experts.weight1", ".mlp.experts.weight2")):
                    self._fill_grouped(place, weight)
                    continue
                if ".mlp.experts.linear_fc" in place:
                    prefix, _, local = place.rpartition(".weight")
                    place = f"{prefix}.weight{self.first_expert + int(local)}"
                weight.copy_(_values(place, weight.shape))

    def _fill_grouped(self, place, weight):
        """The same values, as GroupedMLP lays them out: one expert after the other, each transposed."""
        prefix, _, number = place.rpartition(".weight")
        rows = self.tf.hidden_size if number == "1" else self.tf.moe_ffn_hidden_size
        for local, expert in enumerate(weight.view(self.local_experts, rows, -1)):
            whole = f"{prefix}.linear_fc{number}.weight{self.first_expert + local}"
            expert.copy_(_values(whole, expert.t().shape).t())

    @property
    def local_experts(self):
        return self.experts // mpu.get_expert_model_parallel_world_size()

    @property
    def first_expert(self):
        return mpu.get_expert_model_parallel_rank() * self.local_experts

    def reference(self):
        """The same weights in Transformer Engine's layout, the only one that upstream's generator can name."""
        return Model(*self.arguments) if self.grouped else self

    def trained(self, name):
        """The values that an expert's weight, by its name of Hugging Face's, has in training."""
        _, _, layer, _, _, expert, projection, _ = name.split(".")
        hidden, ffn = self.tf.hidden_size, self.tf.moe_ffn_hidden_size
        prefix = f"decoder.layers.{layer}.mlp.experts"
        if projection == "down_proj":
            return _values(f"{prefix}.linear_fc2.weight{expert}", (hidden, ffn)).bfloat16()
        gate, up = _values(f"{prefix}.linear_fc1.weight{expert}", (2 * ffn, hidden)).bfloat16().chunk(2)
        return gate if projection == "gate_proj" else up

    def weights(self, reshard=None):
        """verl's generator over this model, or that of the exchange."""
        from verl.utils.megatron_utils import per_tensor_generator

        generator = reshard.weights if reshard else per_tensor_generator
        return generator(self.chunks, self.hf, self.converter, self.tf, NAMES)
