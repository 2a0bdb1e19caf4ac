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
"""What hybrid data parallelism does not go with is refused at the start, with what to set instead."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

ACTOR = "actor_rollout_ref.actor"
KEY = f"{ACTOR}.megatron.hybrid_data_parallel"


def check_config(config: Any, mindspeed_is_there: bool) -> None:
    """Raises ValueError for a configuration of actor, rollout and reference that the switch does not go with."""
    actor = config.actor
    reference = (config.get("ref") or {}).get("megatron") or {}
    megatron = actor.get("megatron") or {}
    costs = megatron.get("hybrid_data_parallel_costs") or {}
    if not megatron.get("hybrid_data_parallel", False):
        if reference.get("hybrid_data_parallel", False):
            raise ValueError(f"actor_rollout_ref.ref.megatron.hybrid_data_parallel=True needs {KEY}=True")
        if megatron.get("hybrid_data_parallel_by_time", False):
            raise ValueError(f"{KEY}_by_time=True needs {KEY}=True; or set it to False")
        if set(costs.values()) - {None}:
            raise ValueError(f"{KEY}_costs need {KEY}=True; or leave them out")
        return
    from .packing import known_costs

    try:
        known_costs(costs)
    except ValueError as wrong:
        raise ValueError(f"{KEY}_costs.{wrong}") from None
    if megatron.get("hybrid_data_parallel_by_time", False) and not actor.use_dynamic_bsz:
        raise ValueError(
            f"{KEY}_by_time=True needs {ACTOR}.use_dynamic_bsz=True, or micro-batches are rows of a fixed number; "
            "or set it to False"
        )
    size = megatron.context_parallel_size
    transformer = megatron.get("override_transformer_config") or {}
    refusals = [
        (size < 2, f"needs {ACTOR}.megatron.context_parallel_size of 2 or more: its ranks are shared out"),
        (not mindspeed_is_there, "needs MindSpeed, whose ring attention takes the ranks of a micro-batch"),
        (
            int(transformer.get("context_parallel_size", 1)) != size,
            f"needs +{ACTOR}.megatron.override_transformer_config.context_parallel_size={size}, or MindSpeed does not "
            "put its ring attention in",
        ),
        (
            config.model.get("use_fused_kernels", False) or actor.get("use_fused_kernels", False),
            "needs actor_rollout_ref.model.use_fused_kernels=False",
        ),
        (
            # Upstream gives the reference this times log_prob_max_token_len_per_gpu, whatever groups there are.
            reference.get("hybrid_data_parallel", False) and reference.get("context_parallel_size", 1) != size,
            f"needs actor_rollout_ref.ref.megatron.context_parallel_size={size}, or the reference gets a part of its "
            "tokens a rank",
        ),
    ]
    for wrong, instead in refusals:
        if wrong:
            raise ValueError(f"{KEY}=True {instead}; or set it to False")


def refuse(megatron: Any, who: str) -> None:
    """Raises ValueError where a worker that does not know the switch was given it."""
    for name in ("hybrid_data_parallel", "hybrid_data_parallel_by_time"):
        if megatron.get(name, False):
            raise ValueError(f"{name} is for the actor and the reference policy; set it to False for {who}")


def prepare(modules: Any, tf_config: Any) -> bool:
    """Checks the model and makes the process groups; all ranks call it. Whether messages overlap is returned.

    Raises:
        ValueError: on every rank, for a model that does not take the ranks of a micro-batch on one of them.
    """
    reasons: list = [None] * dist.get_world_size()
    # A pipeline stage sees its own layers only; the others must not wait for it while it raises.
    dist.all_gather_object(reasons, _why_not(tf_config) or _why_layers_cannot(modules))
    reason = next(filter(None, reasons), None)
    if reason is not None:
        raise ValueError(f"{KEY}=True does not go with {reason}")
    from .groups import make_groups, warm_up

    # Of the configuration, because a stage may have no attention to ask, and has to make as many groups.
    overlap = bool(getattr(tf_config, "use_cp_send_recv_overlap", False))
    warm_up(make_groups(overlap))
    return overlap


def _why_layers_cannot(modules: Any) -> str | None:
    return next(filter(None, map(_why_attention_cannot, _attentions(modules))), None)


def _attentions(modules: Any) -> Iterator[Any]:
    for chunk in modules:
        for module in chunk.modules():
            if hasattr(module, "core_attention"):
                yield module.core_attention


def _why_attention_cannot(attention: Any) -> str | None:
    if not getattr(attention, "takes_packed_cp_group", False):
        return (
            f"the attention {type(attention).__name__}, which takes no ranks with a micro-batch; MindSpeed's with the "
            "patch hdp does, for a context parallel size of 2 or more"
        )
    return attention.why_not_packed_cp_group()


def _why_not(tf_config: Any) -> str | None:
    from megatron.core.packed_seq_params import PackedSeqParams

    if "cp_group" not in {field.name for field in dataclasses.fields(PackedSeqParams)}:
        return "a Megatron-LM without the patch hdp, whose PackedSeqParams has no cp_group"
    if getattr(tf_config, "multi_latent_attention", False):
        return "latent attention (multi_latent_attention), whose rotary embedding takes no ranks"
    if getattr(tf_config, "mtp_num_layers", None):
        return "multi-token prediction (mtp_num_layers)"
    if not getattr(tf_config, "variable_seq_lengths", False) and tf_config.pipeline_model_parallel_size > 1:
        return "variable_seq_lengths=False: micro-batches have as many tokens as they need"
    if tf_config.num_moe_experts:
        if tf_config.moe_token_dispatcher_type == "allgather":
            return "moe_token_dispatcher_type=allgather, which needs as many tokens on every rank; set alltoall"
        for key in ("moe_z_loss_coeff", "moe_expert_capacity_factor", "moe_pad_expert_input_to_capacity"):
            if getattr(tf_config, key, None):
                return f"{key}, which counts as many tokens on every rank; leave it out"
        if getattr(tf_config, "moe_router_load_balancing_type", "none") == "sinkhorn":
            return "moe_router_load_balancing_type=sinkhorn, which routes by all tokens of a rank; set none"
        balanced = getattr(tf_config, "moe_router_load_balancing_type", "none") != "none"
        if balanced and getattr(tf_config, "moe_aux_loss_coeff", 0.0):
            return "moe_aux_loss_coeff above 0, which counts as many tokens on every rank; set it to 0"
    return None
