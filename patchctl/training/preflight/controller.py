"""What the workers send to the controller in a step, and what it keeps: verl v0.6.0's single controller.

A worker group's call is answered by every device, although only one of those that share a part of the batch is listened to:
`ray.get` comes before the choice (single_controller/ray/base.py, func_generator; base/decorator.py, collect_nd_compute). A part
is 1/dp of the batch, so that all replies together are the batch times the devices that share a part.
tests/behaviour/verl/test_controller_memory.py counts the bytes over a real Ray.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from patchctl.language import message
from patchctl.training.preflight.case import Case
from patchctl.training.preflight.sizes import ACTOR, MEGATRON, ROLLOUT, BadSizes

INT64, FLOAT32 = 8, 4
V1 = "trainer.use_v1"  # of verl v0.9.0, whose workers answer nothing: the batch is in TransferQueue
COPIES = 2  # the object in Ray's store, and the tensors that the controller makes of it


@dataclass(frozen=True)
class Reply:
    """What all devices together answer to one call: bytes, and what they are."""

    call: str
    bytes: int
    what: str


@dataclass(frozen=True)
class Lengths:
    """Samples that are trained in a step and that are generated at once; tokens of a prompt and of a response."""

    trained: int
    generated: int
    prompt: int
    response: int


@dataclass(frozen=True)
class Sharing:
    """How many devices have the same part of the batch: in training, of these on the last pipeline stage, in the rollout."""

    training: int
    last_stage: int
    rollout: int


@dataclass(frozen=True)
class Switches:
    """Whether old log-probabilities are left out, there is a reference model, and the rollout gives its log-probabilities."""

    skips: bool = False
    reference: bool = False
    log_probs: bool = False


@dataclass(frozen=True)
class Controller:
    """The replies by call, and the batch that grows on the controller meanwhile."""

    replies: tuple[Reply, ...]
    batch: int

    @property
    def largest(self) -> Reply:
        return max(self.replies, key=lambda r: r.bytes)

    @property
    def needed(self) -> int:
        """While the largest replies come: these, and the batch with what of it is on its way to the workers."""
        return COPIES * (self.largest.bytes + self.batch)


def controller_of(case: Case) -> Controller | None:
    """None where the recipe does not say how much there is, or for a trainer without such answers. Raises BadSizes."""
    lengths = _lengths(case)
    if lengths is None or case.on(V1):
        return None
    switches = Switches(
        case.on(f"{ACTOR}.skip_old_log_prob"),
        case.on(f"{ACTOR}.use_kl_loss") or case.on("algorithm.use_kl_in_reward"),
        case.on(f"{ROLLOUT}.calculate_log_probs"),
    )
    return controller(lengths, sharing_of(case), switches)


def controller(lengths: Lengths, sharing: Sharing, switches: Switches) -> Controller:
    """The replies of a step."""
    return Controller(tuple(_replies(lengths, sharing, switches)), _batch(lengths, switches))


def _replies(of: Lengths, sharing: Sharing, switches: Switches) -> Iterator[Reply]:
    """Five tensors of int64 from the rollout (vllm_rollout_spmd.py); fields of fp32 as long as the response elsewhere."""
    field = of.trained * of.response * FLOAT32
    generation = of.generated * _generated(of, switches)
    rollout = message("prompts, responses, ids, mask and positions")
    yield Reply("generate_sequences", generation * sharing.rollout, rollout)
    if not switches.skips:
        yield Reply("compute_log_prob", 2 * field * sharing.training, message("old log-probabilities and entropies"))
    if switches.reference:
        yield Reply("compute_ref_log_prob", field * sharing.training, message("the reference's log-probabilities"))
    if switches.skips:
        yield Reply("update_actor", field * sharing.last_stage, message("the update's entropies (skip_old_log_prob)"))


def _generated(of: Lengths, switches: Switches) -> int:
    """Bytes of a sample as the rollout gives it: prompt, response, and three tensors of both."""
    return 4 * INT64 * (of.prompt + of.response) + FLOAT32 * of.response * switches.log_probs


def _batch(of: Lengths, switches: Switches) -> int:
    """What the trainer's batch holds when it is updated: generation, the response's mask, and of fp32 scores, advantages (the
    returns are the same tensor for GRPO and DAPO), old and the reference's log-probabilities."""
    fields = 2 + (not switches.skips) + switches.reference
    return of.trained * (_generated(of, switches) + INT64 * of.response + fields * FLOAT32 * of.response)


def sharing_of(case: Case) -> Sharing:
    """Raises BadSizes."""
    rollout = max(1, case.number(f"{ROLLOUT}.tensor_model_parallel_size") or 1)
    if case.text(f"{ACTOR}.strategy") != "megatron":
        training = max(1, case.number(f"{ACTOR}.ulysses_sequence_parallel_size") or 1)
        return Sharing(training, training, rollout)
    tensor, pipeline, context = (
        case.number(f"{MEGATRON}.{name}_parallel_size") or 1 for name in ("tensor_model", "pipeline_model", "context")
    )
    if min(tensor, pipeline, context) < 1:
        raise BadSizes(message("a parallel size below 1"))
    return Sharing(tensor * pipeline * context, tensor * context, rollout)


def _lengths(case: Case) -> Lengths | None:
    prompts, samples = case.number("data.train_batch_size"), case.number(f"{ROLLOUT}.n")
    prompt, response = case.number("data.max_prompt_length"), case.number("data.max_response_length")
    if not prompts or not samples or prompt is None or not response:
        return None
    generated = case.number("data.gen_batch_size") or prompts
    return Lengths(prompts * samples, generated * samples, prompt, response)
