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
"""Expert weights of a vllm-ascend engine that gets new weights between generations.

vllm-ascend's expert kernels read w13 as (experts, hidden, 2 * intermediate) and w2 as (experts, intermediate, hidden).
vllm's weight loaders write both with the last two dimensions the other way round. After the first loading
`AscendUnquantizedFusedMoEMethod.process_weights_after_loading` transposes them, once; nobody does after an update.

Here the loaders write through a transposed view of the same memory, and the kernels' layout is put back when they have
finished. No weight is copied or moved: `process_weights_after_loading` would make new tensors outside sleep mode's
memory pool, which sleep could not free, and at addresses that a captured graph does not know.

Which layout a weight has is read off its strides: the kernels' is the contiguous one. Shapes would not tell, when a
matrix is square.
"""

import importlib.util
from contextlib import contextmanager

KEY = "rollout.moe_update_weights"
NZ = "VLLM_ASCEND_ENABLE_NZ"
WEIGHTS = ("w13_weight", "w2_weight")


def check_settings(config) -> None:
    """Refuses, before an engine is built, what cannot be updated right.

    Args:
        config: RolloutConfig with moe_update_weights=True.

    Raises:
        ValueError: names the key and what to set instead.
    """
    check_rollout(config)
    if importlib.util.find_spec("vllm_ascend") is None:
        raise ValueError(f"{KEY}=True is for vllm-ascend, which is not installed: set it to False")
    from vllm_ascend import envs

    level = envs.VLLM_ASCEND_ENABLE_NZ
    # wake_up of vllm-ascend raises for any level but 0, whatever the weights' format.
    if level and config.free_cache_engine:
        raise ValueError(
            f"{KEY}=True with rollout.free_cache_engine=True needs the environment variable {NZ}=0, and it is {level}"
        )
    if level == 2 and config.dtype != "float32":
        raise ValueError(
            f"{KEY}=True: with {NZ}=2 the expert weights are in FRACTAL_NZ, which the weight loaders cannot write: set "
            f"{NZ} to 0 or 1"
        )


def check_rollout(config) -> None:
    """The part of it that the configuration alone tells; `config` may be its section."""
    if (config.name, config.mode) != ("vllm", "sync"):
        raise ValueError(
            f"{KEY}=True is for rollout.name=vllm with rollout.mode=sync, not {config.name} with {config.mode}: set it "
            "to False"
        )


def check_engine(engine) -> None:
    """Refuses an engine whose expert weights this cannot update.

    Args:
        engine: vllm's LLM.

    Raises:
        ValueError: the model is dense, has multi-head latent attention, or its experts are quantised or not
            vllm-ascend's.
    """
    from vllm_ascend.ops.fused_moe.fused_moe import AscendUnquantizedFusedMoEMethod

    model = engine_model(engine)
    layers = expert_layers(model)
    if not layers:
        raise ValueError(f"{KEY}=True, and {type(model).__name__} has no experts: set it to False")
    _check_attention(model)
    for layer in layers:
        if not isinstance(layer.quant_method, AscendUnquantizedFusedMoEMethod):
            method = getattr(layer.quant_method, "quant_method", layer.quant_method)
            raise ValueError(
                f"{KEY}=True: the experts of {layer.layer_name} are kept by {type(method).__name__}, and only weights "
                "that vllm-ascend keeps unquantised can be updated (verl sends them unquantised): set it to False, or "
                "take a model that is not quantised"
            )
        for name in WEIGHTS:
            kernel_view(getattr(layer, name).data, name)


def _check_attention(model) -> None:
    """Refuses multi-head latent attention, whatever its implementation (vllm-ascend's MLA and SFA).

    Both make W_UV and W_UK_T of kv_b_proj when the engine is built (process_weights_after_loading in attention/mla_v1.py
    and sfa_v1.py); SFA gives up kv_b_proj's own memory then. load_weights writes kv_b_proj only, so that decoding would
    go on with the projections of before the update, and nothing would tell.
    """
    from vllm.attention.layer import MLAAttention

    for module in model.modules():
        if isinstance(module, MLAAttention):
            raise ValueError(
                f"{KEY}=True: {module.layer_name} of {type(model).__name__} is multi-head latent attention (MLA). "
                "vllm-ascend copies W_UV and W_UK_T out of its kv_b_proj when the engine is built, and no update renews "
                f"them, with {KEY}=False neither: take a model without MLA"
            )


def engine_model(engine):
    """The model in vllm's LLM, without the wrapper that graph capture puts around it."""
    return engine.llm_engine.model_executor.driver_worker.worker.model_runner.get_model()


def expert_layers(model) -> list:
    """All expert layers of the model, in order."""
    from vllm.model_executor.layers.fused_moe.layer import FusedMoE

    return [module for module in model.modules() if isinstance(module, FusedMoE)]


@contextmanager
def loading_expert_weights(engine):
    """Within it the weight loaders of vllm's model write expert weights right; afterwards the kernels read them right.

    May be entered in either layout and any number of times. What stops the loading does not keep the layout from being
    put back.

    Args:
        engine: vllm's LLM.
    """
    for layer in expert_layers(engine_model(engine)):
        for name in WEIGHTS:
            weight = getattr(layer, name)
            weight.data = kernel_view(weight.data, name).transpose(1, 2)
            # process_weights_after_loading and wake_up make new parameters and forget the loader.
            weight.weight_loader = layer.weight_loader
    try:
        yield
    finally:
        restore_expert_weights(engine)


def restore_expert_weights(engine) -> None:
    """Puts all expert weights into the layout that the kernels read; those that have it stay as they are.

    wake_up of vllm-ascend v0.14.0rc1 leaves them in the loaders' layout.
    """
    for layer in expert_layers(engine_model(engine)):
        for name in WEIGHTS:
            weight = getattr(layer, name)
            weight.data = kernel_view(weight.data, name)


def kernel_view(weight, name: str):
    """The view of a weight, given in one of the two layouts, that the kernels read.

    Args:
        weight: tensor (experts, rows, columns).
        name: for the message.

    Raises:
        RuntimeError: the weight is in neither layout.
    """
    if weight.is_contiguous():
        return weight
    view = weight.transpose(1, 2)
    if not view.is_contiguous():
        raise RuntimeError(
            f"{KEY}: {name} with shape {tuple(weight.shape)} and strides {weight.stride()} is neither as vllm-ascend's "
            "kernels read it nor as its weight loaders write it"
        )
    return view
