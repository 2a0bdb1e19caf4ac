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
"""actor_rollout_ref.actor.skip_old_log_prob: a step without the forward pass that computes the old log-probabilities.

With one epoch and one mini-batch a step, the update starts from the weights that the old log-probabilities would be
computed with. The actor then uses its own log-probabilities, detached, and returns the entropies that the trainer
reports. What cannot be computed so is refused: by `check_trainer` and `check_actor` before training starts, and by
`actor_keys` and `check_one_mini_batch` at the first update, before any weight changes.
"""

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from verl import DataProto

SWITCH = "actor_rollout_ref.actor.skip_old_log_prob"
ENTROPYS = "entropys"
# Numbers that Hugging Face's models use without a module for it: in the attention functions, and as noise on the
# inputs and scores of MoE routers (PhiMoE, Mixtral and others; the last is config.router_jitter_noise too).
RANDOM_IN_TRAINING = ("attention_dropout", "router_jitter_noise", "input_jitter_noise", "jitter_noise")
STRATEGIES = ("fsdp", "fsdp2", "megatron")


def check_trainer(trainer) -> None:
    """Refuses a trainer or a setting that needs old log-probabilities, and says what to set instead.

    Args:
        trainer: a RayPPOTrainer that has its ``config``.

    Raises:
        ValueError: as everything here that refuses.
    """
    actor = trainer.config.actor_rollout_ref.actor
    if actor.skip_old_log_prob is not True:
        raise ValueError(f"{SWITCH}={actor.skip_old_log_prob!r}: set it to True or False")
    _check_fit(type(trainer))
    check_configuration(trainer.config)
    prompts = trainer.prompts_per_update()
    if prompts != actor.ppo_mini_batch_size:
        _refuse(
            f"an update must be one mini-batch, and it gets {prompts} prompts; "
            f"set actor.ppo_mini_batch_size={prompts}, not {actor.ppo_mini_batch_size}"
        )


def check_configuration(config) -> None:
    """The part of it that needs no trainer, with the switch on."""
    actor, rollout, algorithm = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout, config.algorithm
    if actor.strategy not in STRATEGIES:
        _refuse(f"actor.strategy={actor.strategy} does not support it; use one of {', '.join(STRATEGIES)}")
    if actor.ppo_epochs != 1:
        _refuse(
            "from the second epoch on the old log-probabilities are not the update's; "
            f"set actor.ppo_epochs=1, not {actor.ppo_epochs}"
        )
    if actor.strategy == "megatron" and actor.shuffle:
        _refuse("the entropies come back in the order of the batch; set actor.shuffle=False")
    _check_readers(rollout, algorithm)


def _check_fit(trainer_class: type) -> None:
    """A trainer with a `fit` of its own computes old log-probabilities, unless it says that it need not."""
    owner = next(cls for cls in trainer_class.__mro__ if "fit" in vars(cls))
    if "prompts_per_update" not in vars(owner):
        _refuse(
            f"{owner.__module__}.{owner.__name__}.fit computes old log-probabilities in every step; "
            "leave the switch False with this trainer"
        )


def _check_readers(rollout, algorithm) -> None:
    """What else reads old log-probabilities or reports figures of them."""
    if algorithm.use_kl_in_reward:
        _refuse(
            "the reward's KL penalty needs old log-probabilities; "
            "set algorithm.use_kl_in_reward=False (and actor.use_kl_loss=True for a KL loss)"
        )
    if algorithm.get("rollout_is_threshold") is not None or algorithm.get("rollout_is", False):
        _refuse(
            "rollout importance sampling needs old log-probabilities; "
            "set algorithm.rollout_is_threshold=null and algorithm.rollout_is=False"
        )
    if rollout.get("calculate_log_probs", False):
        _refuse(
            "the rollout's log-probabilities are only compared with the old ones; "
            "set actor_rollout_ref.rollout.calculate_log_probs=False"
        )
    if algorithm.get("use_pf_ppo", False):
        _refuse(
            "pf_ppo resamples the batch before the update, which would then report the entropy of another batch; "
            "set algorithm.use_pf_ppo=False"
        )


def _refuse(reason: str) -> None:
    raise ValueError(f"{SWITCH}=True: {reason}")


def check_actor(actor, expected: type, modules, tf_config=None) -> None:
    """Refuses an actor whose update is not the patched one, and a model whose two passes differ by dropout or noise.

    Args:
        actor: the object that runs the update. A subclass (recipe/sppo, recipe/spin) has an update of its own.
        modules: the model (chunks) that it trains.
        tf_config: Megatron's TransformerConfig, where there is one.
    """
    if type(actor) is not expected:
        name = f"{type(actor).__module__}.{type(actor).__name__}"
        _refuse(f"{name} is not {expected.__name__}, and its update may need old log-probabilities; leave it False")
    dropout = _dropout_in_transformer_config(tf_config) or next(filter(None, map(_dropout_in, modules)), None)
    if dropout:
        _refuse(
            f"{dropout} is not 0, so two passes with the same weights differ; set it to 0 with model.override_config "
            "(Megatron: actor.megatron.override_transformer_config)"
        )


def _dropout_in_transformer_config(tf_config) -> str | None:
    names = ("hidden_dropout", "attention_dropout", "moe_input_jitter_eps")
    return next((name for name in names if getattr(tf_config, name, None)), None)


def _dropout_in(model: torch.nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"the dropout of {name}"
        for attribute in RANDOM_IN_TRAINING:
            rate = getattr(module, attribute, 0)
            if isinstance(rate, float) and rate > 0:
                return attribute
    return None


def actor_keys(select_keys: list[str], data: "DataProto") -> list[str]:
    """The keys of the batch that the update needs. Refuses a batch that has old log-probabilities all the same: they
    come from a trainer that does not know the switch.
    """
    if "old_log_probs" in data.batch.keys():
        _refuse("this trainer computed old log-probabilities all the same, so it does not support it; leave it False")
    return [key for key in select_keys if key != "old_log_probs"]


def check_one_mini_batch(rows: int, config) -> None:
    """`rows` responses came to this rank; both they and ``config.ppo_mini_batch_size`` are counted a rank here."""
    if rows != config.ppo_mini_batch_size or config.ppo_epochs != 1:
        _refuse(
            f"this rank's update gets {rows} responses in mini-batches of {config.ppo_mini_batch_size} and "
            f"{config.ppo_epochs} epochs; set actor.ppo_mini_batch_size to the prompts of a step and actor.ppo_epochs=1"
        )


def in_batch_order(entropys: list[torch.Tensor], indices: list[list[int]] | None) -> torch.Tensor:
    """The entropies of the micro-batches, (rows, response length) each, as one tensor on the CPU, in the batch's order.

    Args:
        indices: for dynamic micro-batches, the rows of the batch that each of them holds.
    """
    joined = torch.cat(entropys, dim=0).cpu()
    if indices is None:
        return joined
    rows = torch.tensor([row for micro_batch in indices for row in micro_batch], dtype=torch.long)
    restored = torch.empty_like(joined)
    restored[rows] = joined
    return restored


def move_entropys_to_batch(output: "DataProto") -> "DataProto":
    """The worker's answer to update_actor with the entropies as a tensor of the batch, which the ranks' answers are
    joined by, and not among the metrics, which are averaged. A pipeline stage before the last one has none.
    """
    from verl import DataProto

    entropys = output.meta_info["metrics"].pop(ENTROPYS, None)
    return output if entropys is None else DataProto.from_dict({ENTROPYS: entropys}, meta_info=output.meta_info)


def entropy_metrics(actor_output: "DataProto", batch: "DataProto", loss_agg_mode: str) -> dict[str, Any]:
    """``actor/entropy`` as `fit` computes it from compute_log_prob's answer: over the tokens of the whole batch."""
    from verl.trainer.ppo.core_algos import agg_loss

    entropys, mask = actor_output.batch[ENTROPYS], batch.batch["response_mask"]
    entropy = agg_loss(loss_mat=entropys, loss_mask=mask, loss_agg_mode=loss_agg_mode)
    return {"actor/entropy": entropy.detach().item()}
