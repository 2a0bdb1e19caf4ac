"""What the memory model is asked for a recipe: engine, layouts of pipeline stages, tokens of a micro-batch, recomputation."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from patchctl.errors import PatchctlError
from patchctl.language import message
from patchctl.terminal.text import device_count
from patchctl.training.models import Model
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.memory import (
    BF16,
    FP32,
    HCCL_BUFFER,
    Activations,
    Engine,
    Layout,
    bytes_under_fsdp,
    gathered_layer,
    hybrid_buffers,
    layer_activations,
    layer_input,
    logits_bytes,
    optimizer_bytes,
    sharded_training,
    stage_weights,
    trains_adapters,
)
from patchctl.training.recipes.conditions import number

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MEGATRON = f"{ACTOR}.megatron"
OVERRIDES = f"{MEGATRON}.override_transformer_config"
UTILISATION = Fraction(1, 2)  # verl v0.6.0, rollout.yaml
MOE_RECOMPUTED = ("level0", "level1")  # of MindSpeed's choices; the third is "disable"
CHUNK = f"{ROLLOUT}.engine_kwargs.vllm.additional_config.moe_chunk_tokens"


@dataclass(frozen=True)
class Training:
    """Bytes of an update on the device that needs most. `uneven` comes on top while all tokens of a layer are routed to one
    device, `elsewhere` is what the host keeps for one device, `resident` what stays on the device while the engine has it,
    `buffers` are those of hybrid data parallelism's messages."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    uneven: int
    elsewhere: int
    resident: int
    how: str
    buffers: int = 0

    @property
    def states(self) -> int:
        return self.weights + self.gradients + self.optimizer

    @property
    def total(self) -> int:
        """At the worst: one such layer in a step is enough to run out of memory."""
        return self.states + self.activations + self.uneven + self.buffers


class BadSizes(PatchctlError):
    """Parallel sizes do not divide the model; says which."""


def engine_of(case: Case, model: Model) -> Engine:
    """The rollout's copy of the model. Raises BadSizes."""
    tensor = _size(case, f"{ROLLOUT}.tensor_model_parallel_size")
    if model.heads % tensor:
        raise BadSizes(
            message(
                "{heads} attention heads over a rollout tensor parallel size of {size}", heads=model.heads, size=tensor
            )
        )
    if tensor > model.key_heads and tensor % model.key_heads and not model.latent:
        what = message(
            "{heads} key heads cannot be repeated over a rollout tensor parallel size of {size}",
            heads=model.key_heads,
            size=tensor,
        )
        raise BadSizes(what)
    spread = _size(case, f"{ROLLOUT}.expert_parallel_size") > 1
    return Engine(tensor, _size(case, f"{ROLLOUT}.data_parallel_size"), spread)


def longest(case: Case) -> int:
    """The tokens of the longest sequence."""
    given = case.number(f"{ROLLOUT}.max_model_len")
    return given or (case.number("data.max_prompt_length") or 0) + (case.number("data.max_response_length") or 0)


def generated_prompts(case: Case) -> int | None:
    """The prompts that a step generates for. verl's v1 trainer takes train_batch_size of them, in parts of gen_batch_size."""
    at_once = None if case.on("trainer.use_v1") else case.number("data.gen_batch_size")
    return at_once or case.number("data.train_batch_size")


def sequences_of_a_rank(case: Case, engine: Engine) -> int | None:
    """How many sequences a data parallel rank of the rollout is given at once; None where the batch is not said."""
    prompts, samples = generated_prompts(case), case.number(f"{ROLLOUT}.n")
    return -(-prompts * samples * engine.tensor // case.run.engine_devices) if prompts and samples else None


def utilisation(case: Case) -> Fraction:
    """The share of the device that the engine takes."""
    text = case.text(f"{ROLLOUT}.gpu_memory_utilization")
    if text is None:
        return UTILISATION
    share = number(text)
    if share is None or not 0 < share <= 1:
        raise BadSizes(message("{name} is {value}", name=f"{ROLLOUT}.gpu_memory_utilization", value=text))
    return share


def training_of(case: Case, model: Model) -> Training:
    """The update's memory on the device that needs most. Raises BadSizes."""
    if case.text(f"{ACTOR}.strategy") == "megatron":
        return max((_megatron(case, model, *stage) for stage in _stages(case, model)), key=lambda t: t.total)
    return _fsdp(case, model)


def _size(case: Case, key: str) -> int:
    """A parallel size, 1 where nobody gives it. Raises BadSizes for one that is none."""
    found = case.number(key)
    if found is not None and found < 1:
        raise BadSizes(message("{name} is {value}", name=key, value=found))
    return found or 1


def _stages(case: Case, model: Model) -> list[tuple[Layout, int]]:
    """The first pipeline stage, which keeps most micro-batches, and the last, which has the logits. Raises BadSizes."""
    pipeline = _size(case, f"{MEGATRON}.pipeline_model_parallel_size")
    tensor = _size(case, f"{MEGATRON}.tensor_model_parallel_size")
    expert = _size(case, f"{MEGATRON}.expert_model_parallel_size")
    if model.heads % tensor:
        what = message("{heads} attention heads over a tensor parallel size of {size}", heads=model.heads, size=tensor)
        raise BadSizes(what)
    if model.experts and model.experts.count % expert:
        experts = model.experts.count
        raise BadSizes(
            message("{experts} experts over an expert parallel size of {size}", experts=experts, size=expert)
        )
    first, last = _layers_of_stages(case, model.layers, pipeline)
    layout = Layout(
        devices=case.devices,
        tensor=tensor,
        pipeline=pipeline,
        context=_size(case, f"{MEGATRON}.context_parallel_size"),
        expert=expert,
        expert_tensor=_size(case, f"{MEGATRON}.expert_tensor_parallel_size"),
        stage_layers=first,
    )
    if pipeline == 1:
        return [(layout, 0)]
    return [(layout, 0), (replace(layout, stage_layers=last), pipeline - 1)]


def _layers_of_stages(case: Case, layers: int, pipeline: int) -> tuple[int, int]:
    """Layers of the first and of the last stage. Raises BadSizes where the rest cannot be shared evenly."""
    first = case.number(f"{OVERRIDES}.num_layers_in_first_pipeline_stage")
    last = case.number(f"{OVERRIDES}.num_layers_in_last_pipeline_stage")
    others = pipeline - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    if rest < 0 or (others == 0 and rest) or (others and rest % others):
        what = message(
            "{layers} layers over {stages} pipeline stages (first {first}, last {last})",
            layers=layers,
            stages=pipeline,
            first=first,
            last=last,
        )
        raise BadSizes(what)
    each = rest // others if others else 0
    return first or each, last or each


def _megatron(case: Case, model: Model, layout: Layout, stage: int) -> Training:
    tokens = _tokens(case, layout.context)
    counted = stage_weights(model, layout, first=stage == 0, last=stage == layout.pipeline - 1)
    parameters = sum(counted.values())
    adapters = trains_adapters(case.facts)  # of a frozen model: gradients and states of next to nothing
    gradients, optimizer = (0, 0) if adapters else (FP32 * parameters, optimizer_bytes(counted, layout))
    elsewhere, resident = _off_the_devices(case, "megatron", BF16 * parameters, gradients, optimizer, BF16 * parameters)
    swapped = case.on(f"{OVERRIDES}.swap_optimizer")
    hybrid, overlaps = case.on(f"{MEGATRON}.hybrid_data_parallel"), case.on(f"{OVERRIDES}.use_cp_send_recv_overlap")
    one = layer_activations(model, layout, tokens)
    kept, at_work, how = _kept(case, one, layer_input(model, layout, tokens), layout.stage_layers)
    in_flight = layout.pipeline - stage
    activations = in_flight * kept + at_work * (one.attention + one.mlp)
    if stage == layout.pipeline - 1:
        activations += logits_bytes(model, layout, tokens)
    return Training(
        BF16 * parameters,
        gradients,
        0 if swapped else optimizer,
        activations,
        one.worst - one.mlp,
        elsewhere,
        resident,
        message(
            "stage {stage} of {stages}, {layers} layers, micro-batches in flight {in_flight}, {how}",
            stage=stage + 1,
            stages=layout.pipeline,
            layers=layout.stage_layers,
            in_flight=in_flight,
            how=how,
        ),
        hybrid_buffers(layout.context, overlaps, _hccl_buffer(case)) if hybrid else 0,
    )


def moving_buffers(case: Case) -> int:
    """HCCL's buffers of the process group that rollout_rebalance moves requests with: the engine has less for its cache."""
    return 2 * _hccl_buffer(case) if case.on(f"{ROLLOUT}.rollout_rebalance.enable") else 0


def _hccl_buffer(case: Case) -> int:
    given = case.in_effect.get("HCCL_BUFFSIZE", "")
    return int(given) << 20 if given.isdigit() else HCCL_BUFFER


def _kept(case: Case, one: Activations, layer_input: int, layers: int) -> tuple[int, int, str]:
    """What a stage keeps of a micro-batch between its forward and its backward pass, how many of its layers are at work at
    once, and how it was told.

    Megatron's two methods: `block` recomputes the first N layers of a stage, `uniform` all of them, N at a time.
    """
    zero_memory = case.text(f"{OVERRIDES}.moe_zero_memory") in MOE_RECOMPUTED
    each = one.attention if zero_memory else one.attention + one.mlp
    how = message("MoE layers recomputed (moe_zero_memory)") if zero_memory else message("nothing recomputed")
    if case.text(f"{OVERRIDES}.recompute_granularity") != "full":
        return layers * each, 1, how
    asked = max(1, min(_size(case, f"{OVERRIDES}.recompute_num_layers"), layers))
    if case.text(f"{OVERRIDES}.recompute_method") != "block":
        whole = (
            message("layers recomputed, {count} at a time", count=asked) if asked > 1 else message("layers recomputed")
        )
        return -(-layers // asked) * layer_input, asked, whole
    if asked >= layers:
        return layers * layer_input, 1, message("layers recomputed")
    some = message("{count} of them recomputed", count=asked)
    some = message("{what}, {more}", what=some, more=how) if zero_memory else some
    return asked * layer_input + (layers - asked) * each, 1, some


def _fsdp(case: Case, model: Model) -> Training:
    context = _size(case, f"{ACTOR}.ulysses_sequence_parallel_size")
    # Of fewer key heads than ranks verl repeats each.
    if model.heads % context or (model.key_heads % context and context % model.key_heads):
        raise BadSizes(
            message(
                "{heads} attention heads and {keys} key heads over a Ulysses sequence parallel size of {size}",
                heads=model.heads,
                keys=model.key_heads,
                size=context,
            )
        )
    layout = Layout(devices=case.devices, context=context, stage_layers=model.layers)
    tokens = _tokens(case, context)
    shards = _fsdp_shards(case)
    parts = sharded_training(model, shards, bytes_under_fsdp(case.facts))
    checkpointed = not case.off("actor_rollout_ref.model.enable_gradient_checkpointing")
    one = layer_activations(model, layout, tokens)
    kept = layer_input(model, layout, tokens) if checkpointed else one.attention + one.mlp
    activations = (
        model.layers * kept + one.attention + one.mlp + logits_bytes(model, layout, tokens) + gathered_layer(model)
    )
    recomputed = message("layers recomputed") if checkpointed else message("nothing recomputed")
    how = message("FSDP over {devices}, {how}", devices=device_count(shards), how=recomputed)
    gradients, optimizer = (0, 0) if trains_adapters(case.facts) else (parts["gradients"], parts["optimizer"])
    # verl before 0.9 loads a reference as bfloat16.
    one_of_reference = bytes_under_fsdp(case.facts, "ref") if case.is_of("verl", ">=0.9") else BF16
    reference = one_of_reference * -(-model.parameters // shards)
    # Gradients are freed with each step.
    elsewhere, resident = _off_the_devices(case, "fsdp_config", parts["weights"], 0, optimizer, reference)
    uneven = one.worst - one.mlp
    return Training(parts["weights"], gradients, optimizer, activations, uneven, elsewhere, resident, how)


def _off_the_devices(
    case: Case, engine: str, weights: int, gradients: int, optimizer: int, reference: int
) -> tuple[int, int]:
    """Of these bytes of a device, those that the run's settings move to the host, and those that stay."""
    actor = f"{ACTOR}.{engine}"
    all_of_it = case.on(f"{actor}.offload_policy")  # FSDP2's own
    of_model = all_of_it or case.on(f"{actor}.param_offload")  # Megatron's takes the gradients along, and frees them
    of_states = all_of_it or case.on(f"{actor}.optimizer_offload") or case.on(f"{OVERRIDES}.swap_optimizer")
    # FSDP keeps a reference there whatever its settings say.
    of_reference = engine != "megatron" or case.on(f"actor_rollout_ref.ref.{engine}.param_offload")
    parts = [(weights, of_model), (optimizer, of_states)]
    parts += [(reference, of_reference)] if has_reference(case) else []
    stays = sum(size for size, moved in parts if not moved) + (0 if of_model else gradients)
    return sum(size for size, moved in parts if moved), stays


def has_reference(case: Case) -> bool:
    """Whether answers are compared with those of a reference model of its own; adapters have the frozen one."""
    if case.is_of("verl", ">=0.9") and trains_adapters(case.facts):
        return False
    return case.on(f"{ACTOR}.use_kl_loss") or case.on("algorithm.use_kl_in_reward")


def _fsdp_shards(case: Case) -> int:
    """Over how many devices a copy of the model is cut: verl v0.6.0, fsdp_workers.py, create_device_mesh. Raises BadSizes."""
    size = case.number(f"{ACTOR}.fsdp_config.fsdp_size") or -1
    if not 0 < size < case.devices:
        return case.devices
    if case.devices % size:
        raise BadSizes(message("{devices} devices over an fsdp_size of {size}", devices=case.devices, size=size))
    return size


def _tokens(case: Case, context: int) -> int:
    """The tokens of a micro-batch over all context or sequence parallel ranks."""
    if case.on(f"{ACTOR}.use_dynamic_bsz"):
        return (case.number(f"{ACTOR}.ppo_max_token_len_per_gpu") or 0) * context
    return _size(case, f"{ACTOR}.ppo_micro_batch_size_per_gpu") * longest(case)
