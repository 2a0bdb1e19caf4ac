# Copyright 2025 Individual Contributor: patchctl
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Latent attention (MLA) of a vllm-ascend engine that gets new weights between generations.

For decoding vllm-ascend multiplies with W_UV and W_UK_T, copies of the two halves of kv_b_proj that it makes once, when
the engine is built (`AscendMLAImpl.process_weights_after_loading`). vllm's weight loaders write kv_b_proj, and decoding
would go on with the projections of before the update. Here both are written again, into the memory that they have:
captured graphs know their addresses, and sleep mode its pool.
"""

KEY = "rollout.moe_update_weights"
PROJECTIONS = ("q_proj", "fused_qkv_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj")


def latent_layers(model) -> list:
    """All layers of latent attention of the model, in order."""
    from vllm.attention.layer import MLAAttention

    return [module for module in model.modules() if isinstance(module, MLAAttention)]


def check_attention(model) -> None:
    """Refuses latent attention whose projections this cannot renew.

    Args:
        model: vllm's model, built and loaded.

    Raises:
        ValueError: names the layer and why.
    """
    for layer in latent_layers(model):
        reason = _why_not(layer.impl)
        if reason:
            raise ValueError(f"{KEY}=True: {layer.layer_name} of {type(model).__name__} cannot be updated: {reason}")


def renew_projections(model) -> None:
    """Writes W_UV and W_UK_T of every layer from its kv_b_proj, in their own memory and without any other."""
    for layer in latent_layers(model):
        impl = layer.impl
        # kv_b_proj is (heads * (nope + v), latent); see AscendMLAImpl.process_weights_after_loading.
        heads = impl.kv_b_proj.weight.data.view(impl.num_heads, -1, impl.kv_lora_rank)
        keys, values = heads.split([impl.qk_nope_head_dim, impl.v_head_dim], dim=1)
        impl.W_UK_T.copy_(keys)
        impl.W_UV.copy_(values.transpose(1, 2))


def _why_not(impl) -> str | None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm_ascend.attention.mla_v1 import AscendMLAImpl

    # SFA gives kv_b_proj up when it has made its copies; context parallel ones were not tried.
    if type(impl) is not AscendMLAImpl:
        return f"{type(impl).__name__} is not vllm-ascend's AscendMLAImpl, take a model with plain latent attention"
    for name in PROJECTIONS:
        projection = getattr(impl, name)
        if projection is not None and not isinstance(projection.quant_method, UnquantizedLinearMethod):
            return f"its {name} is quantised, and verl sends weights that are not: take a model that is not quantised"
    if impl.layer_sharding_kwargs:
        return "its weights are spread over ranks: leave layer_sharding out of additional_config"
    return _why_not_slept(impl)


def _why_not_slept(impl) -> str | None:
    """Sleep keeps buffers and nothing else. Angles of a rotary embedding without scaling are copies of none."""
    from vllm_ascend.ops import rotary_embedding

    angles = rotary_embedding._cos_cache
    if not impl.vllm_config.model_config.enable_sleep_mode or angles is None:
        return None
    if any(buffer.data_ptr() == angles.data_ptr() for buffer in impl.rotary_emb.buffers()):
        return None
    return (
        "its rotary embedding has no scaling, and vllm-ascend keeps its angles where sleep loses them: set "
        "rollout.free_cache_engine=False, or take a model with rope_scaling, as DeepSeek-V3 and R1"
    )
