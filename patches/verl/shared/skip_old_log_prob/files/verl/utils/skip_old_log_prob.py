# Part of patchctl's patch skip_old_log_prob; not in upstream verl.
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
computed with. `ppo_loss` then uses its own log-probabilities, detached. What cannot be computed so is refused, always
with ValueError: by `check_configuration` before Ray starts, by `check_model` when the actor is made, and by
`check_update` before an update changes a weight.
"""

import torch
from omegaconf import OmegaConf

SWITCH = "actor_rollout_ref.actor.skip_old_log_prob"
# Numbers that Hugging Face's models use without a module for it: noise on the inputs and scores of MoE routers. Rates of
# functional dropout have many names: dropout, attention_dropout, residual_dropout, dropout_prob, layerdrop.
NOISES = ("router_jitter_noise", "input_jitter_noise", "jitter_noise")
STRATEGIES = ("fsdp", "fsdp2", "megatron")
READ_BY_ESTIMATORS = ("optimal_token_baseline", "tir_optimal_token_baseline")


def is_on(config) -> bool:
    """Whether the switch is on, in the whole configuration.

    Raises:
        ValueError: it is neither True nor False.
    """
    value = OmegaConf.select(config, SWITCH, default=False)
    if not isinstance(value, bool):
        raise ValueError(f"{SWITCH}={value!r} is neither True nor False: write {SWITCH}=False for off")
    return value


def check_configuration(config, runs_v1: bool = True) -> None:
    """Refuses settings that need old log-probabilities, and says what to set instead. Without the switch it asks nothing.

    Args:
        runs_v1: whether verl.trainer.main_ppo starts its v1 trainer, and not another entry point one of its own.
    """
    if not is_on(config):
        return
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    mode = config.trainer.v1.trainer_mode if runs_v1 and config.trainer.use_v1 else "another trainer than the v1 one"
    if mode not in ("sync", "colocate_async"):
        _refuse(
            f"{mode} computes them all the same; start verl.trainer.main_ppo with trainer.use_v1=True and "
            "trainer.v1.trainer_mode=sync"
        )
    if actor.strategy not in STRATEGIES:
        _refuse(f"actor.strategy={actor.strategy} was not tried with it; use one of {', '.join(STRATEGIES)}")
    if actor.ppo_epochs != 1:
        _refuse(f"from the second epoch on they are not the update's; set actor.ppo_epochs=1, not {actor.ppo_epochs}")
    prompts = config.data.train_batch_size
    if actor.ppo_mini_batch_size != prompts:
        _refuse(
            f"an update must be one mini-batch, and it gets {prompts} prompts; "
            f"set actor.ppo_mini_batch_size={prompts}, not {actor.ppo_mini_batch_size}"
        )
    if algorithm.use_kl_in_reward:
        _refuse("the reward's KL penalty reads them; set algorithm.use_kl_in_reward=False (actor.use_kl_loss=True)")
    correction = algorithm.get("rollout_correction", None) or {}
    if correction.get("bypass_mode", False):
        _refuse("bypass mode leaves that pass out itself; set algorithm.rollout_correction.bypass_mode=False, or this")
    if config.actor_rollout_ref.rollout.calculate_log_probs:
        _refuse(
            "the rollout's log-probabilities are compared with them and corrected by them; "
            "set actor_rollout_ref.rollout.calculate_log_probs=False"
        )
    if algorithm.adv_estimator in READ_BY_ESTIMATORS:
        _refuse(f"algorithm.adv_estimator={algorithm.adv_estimator} reads them; use another one, such as grpo")
    if (config.get("distillation", None) or {}).get("enabled", False):
        _refuse("the distillation loss reads them; set distillation.enabled=False")
    if _router_replay(actor) == "R2":
        _refuse("router replay R2 records its routes in that pass; set router_replay.mode=disabled or R3")


def _router_replay(actor) -> str:
    section = actor.get("megatron", None) or {}
    return (section.get("router_replay", None) or {}).get("mode", "disabled")


def _refuse(reason: str) -> None:
    raise ValueError(f"{SWITCH}=True: {reason}")


def check_model(engine) -> None:
    """Refuses a model whose two passes would differ by dropout or noise: `engine` has its ``module``, or a list of chunks."""
    chunks = engine.module if isinstance(engine.module, list) else [engine.module]
    tf_config = getattr(engine, "tf_config", None)
    names = ("hidden_dropout", "attention_dropout", "moe_input_jitter_eps")
    rates = (name for name in names if getattr(tf_config, name, None))
    found = next(rates, None) or next(filter(None, map(_dropout_in, chunks)), None)
    if found:
        _refuse(
            f"{found} is not 0, so that two passes with the same weights differ; set it to 0 in "
            "model.override_config (Megatron: actor.megatron.override_transformer_config)"
        )


def _dropout_in(model: torch.nn.Module) -> str | None:
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd) and module.p > 0:
            return f"the dropout of {name}"
        rates = dict(vars(module), config_dropout=getattr(getattr(module, "config", None), "dropout", 0))
        for attribute, rate in rates.items():
            if isinstance(rate, float) and rate > 0 and (attribute in NOISES or "drop" in attribute):
                return attribute.removeprefix("config_")
    return None


def check_update(data, ranks: int) -> None:
    """Refuses an update that is not one mini-batch, or whose trainer computed old log-probabilities all the same.

    Args:
        data: what update_actor gets on this rank; ``mini_batch_size`` counts the rows of all `ranks` that share a batch.
    """
    if "old_log_probs" in data.keys():
        _refuse("this trainer computed them all the same, so it does not support the switch; leave it False")
    rows, wanted = data.shape[0] * ranks, data["mini_batch_size"]
    if rows != wanted or data["epochs"] != 1:
        _refuse(
            f"an update gets {rows} responses, in mini-batches of {wanted} and {data['epochs']} epochs, and not one"
        )
