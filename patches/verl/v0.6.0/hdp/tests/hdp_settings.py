"""For the probes of hybrid_data_parallel: configurations as verl composes them, and upstream's own classes given them.

Import what stands for a device (megatron_cpu, or probe_hdp_model with MindSpeed) before calling anything here.
"""

import os
from tempfile import TemporaryDirectory

MEGATRON = "actor_rollout_ref.actor.megatron"
SWITCH = f"{MEGATRON}.hybrid_data_parallel=True"
RANKS = f"{MEGATRON}.context_parallel_size=2"
RANKS_OF_REFERENCE = "actor_rollout_ref.ref.megatron.context_parallel_size=2"
PATCHED = f"+{MEGATRON}.override_transformer_config.context_parallel_size=2"
ACCEPTED = [SWITCH, RANKS, RANKS_OF_REFERENCE, PATCHED]
# What verl's dataclasses want, whatever is tested.
BASE = [
    "actor_rollout_ref.model.path=none",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1",
    "critic.ppo_micro_batch_size_per_gpu=1",
]


def composed(*overrides):
    """The configuration of verl's Megatron trainer with these lines of a command line."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = os.path.join(os.path.dirname(verl.__file__), "trainer/config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_megatron_trainer", overrides=[*BASE, *overrides])


def said(call):
    """The message of a refusal; None where there is none."""
    try:
        call()
    except (ValueError, NotImplementedError) as error:
        return str(error)
    return None


def make(who, config):
    """One of upstream's classes, made as upstream makes it from the composed configuration.

    `who` is a role of ActorRolloutRefWorker, "critic", "reward model", or the name of a class of the engine workers.
    """
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers import engine, megatron_workers

    if who == "critic":
        return megatron_workers.CriticWorker(omega_conf_to_dataclass(config.critic))
    if who == "reward model":
        return megatron_workers.RewardModelWorker(config.reward_model)
    if not hasattr(engine, who):
        return megatron_workers.ActorRolloutRefWorker(config=config.actor_rollout_ref, role=who)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    return getattr(engine, who)(
        model_config=model_config(),
        engine_config=actor.megatron,
        optimizer_config=actor.optim,
        checkpoint_config=actor.checkpoint,
    )


def model_config():
    """An engine's own kind of model configuration; of a model whose weights there are none of."""
    from transformers import Qwen3Config
    from verl.workers.config import HFModelConfig

    with TemporaryDirectory() as folder:
        Qwen3Config(architectures=["Qwen3ForCausalLM"], num_hidden_layers=2).save_pretrained(folder)
        return HFModelConfig(path=folder, load_tokenizer=False)


def place(who, made):
    """Its place among the data parallel ranks, which a worker's constructor looks up last; an engine is asked for it."""
    mesh = {"critic": "critic", "reward model": "reward"}.get(who, "actor")
    if hasattr(made, "_query_dispatch_info"):
        return [made._query_dispatch_info(mesh), made._query_collect_info(mesh)]
    return [made.get_data_parallel_rank(), made.is_mp_src_rank_with_outputs()]
