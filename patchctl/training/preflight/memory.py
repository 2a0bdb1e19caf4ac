"""Bytes on one device: weights and KV cache of the rollout, weights, gradients, optimizer and activations of training;
and of a checkpoint.

Pure arithmetic over `model.Model` and parallel sizes. docs/preflight.md has the formulae, and a table that compares them with
the figures of a document linked from 002 (its GB are GiB: 2^30 bytes).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from patchctl.training.models import Experts, Model, Split, tensors
from patchctl.training.recipes.conditions import Facts

BF16 = 2
FP32 = 4
ADAM = 3 * FP32  # the fp32 copy of a parameter and its two moments
VOCABULARY_MULTIPLE = 64  # vllm pads the vocabulary to it (vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE)
HCCL_BUFFER = 200 << 20  # CANN's default of HCCL_BUFFSIZE; a communicator has one to send from and one to receive in
BLOCK = 128  # tokens of a KV block of vllm-ascend

Parts = dict[str, int]
"""Bytes by part of the model."""
# FSDP's key, and that of Megatron-LM from verl 0.9 on.
_RANKS = ("actor_rollout_ref.model.lora_rank", "actor_rollout_ref.model.lora.rank")


@dataclass(frozen=True)
class Engine:
    """One copy of the model in the rollout: tensor parallel size, data parallel size, and whether experts are spread over
    both (expert_parallel_size) rather than each cut over both."""

    tensor: int
    data: int = 1
    spread_experts: bool = False

    @property
    def devices(self) -> int:
        return self.tensor * self.data


@dataclass(frozen=True)
class Layout:
    """Megatron's sizes. `stage_layers` is how many layers the stage looked at holds."""

    devices: int
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    expert_tensor: int = 1
    stage_layers: int = 0

    @property
    def replicas(self) -> int:
        """Devices that share the optimizer's states of a dense parameter: data and context parallel together."""
        return max(1, self.devices // (self.tensor * self.pipeline))

    @property
    def expert_replicas(self) -> int:
        """The same of an expert's parameter."""
        return max(1, self.devices // (self.pipeline * self.expert * self.expert_tensor))


@dataclass(frozen=True)
class Activations:
    """What one layer keeps for its backward pass. `worst` is `mlp` with all tokens routed to one device's experts."""

    attention: int
    mlp: int
    worst: int


def engine_weights(model: Model, engine: Engine) -> Parts:
    """The rollout's weights on a device, in bf16."""
    found = Counter[str]()
    for tensor in tensors(model):
        found[tensor.part] += _engine_share(tensor.each, tensor.split, model, engine) * tensor.layers * BF16
    return found


def _engine_share(each: int, split: Split, model: Model, engine: Engine) -> int:
    if split == "vocabulary":
        return _padded(model.vocabulary, VOCABULARY_MULTIPLE) // engine.tensor * model.hidden
    if split == "heads" or split == "columns":
        return each // engine.tensor
    if split == "key heads":  # more ranks than heads: vllm repeats them
        return each // min(engine.tensor, model.key_heads)
    if split == "experts" and model.experts:
        if engine.spread_experts:
            return each // model.experts.count * _ceiling(model.experts.count, engine.devices)
        return each // engine.devices
    return each


def kv_bytes(model: Model, tensor: int) -> int:
    """The KV cache of one token on a device. Latent attention keeps one vector for all heads, on every rank."""
    if model.latent:
        return (model.latent.rank + model.latent.rope) * BF16 * model.layers
    heads = max(1, model.key_heads // tensor)
    return 2 * heads * model.head * BF16 * model.layers


def prefill_bytes(model: Model, engine: Engine, tokens: int, chunk: int | None = None) -> int:
    """What one layer holds at least while `tokens` are prefilled at once; the experts `chunk` tokens at a time.

    A lower bound: residual, normed input and the widest layer's inner tensors; kernels' workspace and graphs come on top.
    """
    kept = 2 * tokens * model.hidden * BF16
    if model.experts:
        rows = min(tokens, chunk or tokens) * model.experts.chosen
        cut = 1 if engine.spread_experts else engine.devices
        return kept + rows * (2 * model.hidden + 2 * model.experts.width // cut) * BF16
    return kept + tokens * 3 * model.width // engine.tensor * BF16


def sequences_that_fit(budget: int, model: Model, tensor: int, length: int) -> int:
    """How many sequences of `length` tokens the KV cache holds at once on a data parallel rank."""
    return max(0, budget) // (_padded(length, BLOCK) * kv_bytes(model, tensor))


def stage_weights(model: Model, layout: Layout, *, first: bool = False, last: bool = False) -> Parts:
    """Megatron's parameters of a pipeline stage on a device, counted and not weighed: times BF16 they are the weights.

    `first` and `last` say whether the stage has the embedding and the head. Dense layers before the mixtures of experts
    (DeepSeek) are taken for such: the stage is no smaller.
    """
    experts = model.experts
    stage = replace(
        model,
        layers=layout.stage_layers,
        experts=replace(experts, layers=layout.stage_layers) if experts else None,
    )
    found = Counter[str]()
    for tensor in tensors(stage):
        if (tensor.part == "embedding" and not first) or (tensor.part == "head" and not last):
            continue
        found[tensor.part] += _stage_share(tensor.each, tensor.split, layout) * tensor.layers
    return found


def _stage_share(each: int, split: Split, layout: Layout) -> int:
    if split in ("vocabulary", "heads", "key heads", "columns"):
        return each // layout.tensor
    if split == "experts":
        return each // (layout.expert * layout.expert_tensor)
    return each


def optimizer_bytes(parameters: Mapping[str, int], layout: Layout) -> int:
    """Adam's states of a stage on a device, spread by the distributed optimizer; on the host with swap_optimizer."""
    experts = parameters.get("experts", 0)
    dense = sum(parameters.values()) - experts
    return ADAM * dense // layout.replicas + ADAM * experts // layout.expert_replicas


def layer_activations(model: Model, layout: Layout, tokens: int) -> Activations:
    """What one layer keeps for `tokens` tokens of a micro-batch (before context parallelism), without recomputation.

    Attention: input, normed input, projection, rotated queries and keys, attention's result, output. MLP: rows sent in, the
    two gates, rows sent back. With tensor parallelism, what is outside of the cut matrices is cut along the sequence.
    """
    here = tokens // layout.context
    part = here // layout.tensor
    queries, keys = _projected(model)
    inner = (queries + 2 * keys) + (queries + keys) + queries
    attention = BF16 * (3 * part * model.hidden + here * inner // layout.tensor)
    if model.experts is None:
        mlp = BF16 * (2 * part * model.hidden + here * 2 * model.width // layout.tensor)
        return Activations(attention, mlp, mlp)
    rows = part * model.experts.chosen
    mlp = BF16 * rows * (2 * model.hidden + 2 * model.experts.width // layout.expert_tensor)
    return Activations(attention, mlp, mlp * worst_imbalance(model.experts, layout.expert))


def worst_imbalance(experts: Experts, ranks: int) -> int:
    """How many times the balanced share of rows one of `ranks` devices can get: a token has as many rows there as experts
    that it chooses, and no more than the device has."""
    return max(1, min(experts.chosen, _ceiling(experts.count, ranks)) * ranks // experts.chosen)


def layer_input(model: Model, layout: Layout, tokens: int) -> int:
    """What is kept of a layer that is recomputed whole: its input."""
    return BF16 * (tokens // layout.context // layout.tensor) * model.hidden


def logits_bytes(model: Model, layout: Layout, tokens: int) -> int:
    """The logits of a micro-batch in fp32 on a device of the last stage."""
    return FP32 * (tokens // layout.context) * (_padded(model.vocabulary, layout.tensor) // layout.tensor)


def hybrid_buffers(context: int, overlap: bool, buffer: int = HCCL_BUFFER) -> int:
    """HCCL's buffers for the process groups that hybrid data parallelism adds: a device is in one ring of each size that
    divides the context parallel group's, and with `overlap` in a second one of the same ranks (docs/hdp.md)."""
    rings = sum(context % size == 0 for size in range(2, context))
    return rings * (2 if overlap else 1) * 2 * buffer


def sharded_training(model: Model, devices: int, each: int = FP32) -> Parts:
    """FSDP over all devices: weights, gradients and Adam's two moments, `each` bytes a number, cut into `devices` parts."""
    share = each * _ceiling(model.parameters, devices)
    return {"weights": share, "gradients": share, "optimizer": 2 * share}


def bytes_under_fsdp(facts: Facts, of: str = "actor") -> int:
    """Of a parameter as FSDP holds it: verl loads the actor in fp32, or as `model_dtype` says, and all that Adam keeps follows."""
    said = facts.text(f"actor_rollout_ref.{of}.fsdp_config.model_dtype") or "fp32"
    return FP32 if said in ("fp32", "float32") else BF16


def gathered_layer(model: Model) -> int:
    """The bf16 weights of the largest layer, or of the embedding where that is larger: FSDP gathers one at a time."""
    whole = {t.part: t.each for t in tensors(model) if t.part == "embedding"}
    layer = sum(t.each for t in tensors(model) if t.part not in ("embedding", "head") and t.layers > 1)
    return BF16 * max(layer, *whole.values())


def _projected(model: Model) -> tuple[int, int]:
    """The widths of all queries, and of all keys (those of latent attention are written out for training)."""
    if model.latent:
        width = model.heads * (model.latent.nope + model.latent.rope)
        return width, width
    return model.heads * model.head, model.key_heads * model.head


def _padded(count: int, multiple: int) -> int:
    return _ceiling(count, multiple) * multiple


def _ceiling(count: int, parts: int) -> int:
    return -(-count // parts)


def trains_adapters(facts: Facts) -> bool:
    """Whether a run trains adapters beside weights that stay as they are."""
    return any((facts.text(key) or "0") != "0" for key in _RANKS)


def bytes_of_checkpoint(model: Model, facts: Facts) -> int:
    """Weights and optimizer states on disk: bf16 and Adam under Megatron, weights and two moments under FSDP.

    Of adapters verl saves the whole model all the same (fsdp_checkpoint_manager.py, save_lora_only is False), and an optimizer of the
    adapters alone, which are about a hundredth and count for nothing here."""
    megatron = facts.text("actor_rollout_ref.actor.strategy") == "megatron"
    each = bytes_under_fsdp(facts)
    weights, optimizer = (BF16, ADAM) if megatron else (each, 2 * each)
    return model.parameters * (weights if trains_adapters(facts) else weights + optimizer)
