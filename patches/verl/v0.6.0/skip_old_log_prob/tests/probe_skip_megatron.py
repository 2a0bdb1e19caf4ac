"""Probe: RayPPOTrainer.fit over verl's Megatron worker and MegatronPPOActor.

Usage: probe_skip_megatron.py MODEL CASE...   (names of CASES)

Real: the trainer, the worker's compute_log_prob, compute_ref_log_prob and update_actor, the actor, Megatron's GPT
model, DDP, distributed optimizer and schedules. The responses come from Hugging Face's MODEL, whose weights do not
change; as far as this feature goes a response may come from anywhere. With two processes the model is cut into two
pipeline stages; both run the same trainer, and what the last stage answers is handed to both, as collecting does.
"""

import copy
import json
import os
import sys
from types import SimpleNamespace

GROUP = {name: os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")}

import trainer_in_process as tip  # noqa: E402  (it sets the variables above for one process)

if GROUP["WORLD_SIZE"]:
    os.environ.update(GROUP)

import megatron_cpu  # noqa: E402  (before megatron)
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.transformer.dot_product_attention import DotProductAttention  # noqa: E402
from omegaconf import open_dict  # noqa: E402
from probe_skip_common import ACTOR, BOTH_ACTORS, COMMON, SKIP, UnevenWorkers, compare, refusal  # noqa: E402

MODEL, *NAMES = sys.argv[1:]
STAGES = int(GROUP["WORLD_SIZE"] or 1)
CASES = {
    **BOTH_ACTORS,
    "other_micro_batches": [f"{ACTOR}.ppo_micro_batch_size_per_gpu=4"],
}


class PackedAttention(DotProductAttention):
    """Attention over packed sequences, which Megatron leaves to Transformer Engine: PyTorch's, a sequence at a time."""

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **unused):
        return tiny_megatron.packed_attention(query, key, value, packed_seq_params.cu_seqlens_q_padded)


def gpt(transformer_config):
    """This pipeline stage's part of a GPT model with rotary embedding and random weights."""
    torch.manual_seed(7)
    spec = get_gpt_layer_local_spec(normalization="RMSNorm")
    spec.submodules.self_attention.submodules.core_attention = PackedAttention
    return GPTModel(
        transformer_config,
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=128,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        rotary_base=10000,
    )


class MegatronWorkers(UnevenWorkers):
    """The same group over verl's Megatron worker."""

    def __init__(self, config, engines=1):
        tip._fsdp_worker = _megatron_worker
        super().__init__(config, engines)

    def trained_model(self):
        return self.worker.actor.actor_module[0]

    def _watch_update(self):
        optimizer = self.worker.actor_optimizer
        step = optimizer.step

        def recorded():
            self.gradients.append([weight.main_grad.clone() for weight in self.trained_model().parameters()])
            return step()

        optimizer.step = recorded

    def compute_log_prob(self, batch):
        return self._of_last_stage(super().compute_log_prob(batch))

    def update_actor(self, batch):
        return self._of_last_stage(super().update_actor(batch))

    def _of_last_stage(self, answer):
        answers = [answer]
        dist.broadcast_object_list(answers, src=STAGES - 1)
        return answers[0]


def _megatron_worker(config, model):
    """verl's Megatron worker without its `__init__` and `init_model`, which need NCCL and Transformer Engine."""
    from verl.utils.config import omega_conf_to_dataclass
    from verl.utils.flops_counter import FlopsCounter
    from verl.workers.actor.megatron_actor import MegatronPPOActor
    from verl.workers.megatron_workers import ActorRolloutRefWorker

    class Worker(ActorRolloutRefWorker):
        world_size = STAGES

    worker = Worker.__new__(Worker)
    worker.config = copy.deepcopy(config)
    with open_dict(worker.config):
        worker.config.actor.ppo_mini_batch_size *= config.rollout.n
    worker._is_actor = worker._is_ref = True
    worker._is_offload_param = worker._is_offload_optimizer = worker._ref_is_offload_param = False
    worker.flops_counter = FlopsCounter(model.config)
    stages = {
        "pipeline_model_parallel_size": STAGES,
        "pipeline_dtype": torch.float32,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # there are no experts, but variable lengths refuse the default
    }
    transformer_config = tiny_megatron.config(**stages if STAGES > 1 else {})
    ddp, worker.actor_optimizer = tiny_megatron.distributed(gpt(transformer_config))
    worker.actor_optimizer_scheduler = SimpleNamespace(step=lambda count: None)
    shared = {"model_config": worker.config.model, "hf_config": model.config, "tf_config": transformer_config}
    worker.actor = MegatronPPOActor(
        omega_conf_to_dataclass(worker.config.actor),
        actor_module=[ddp],
        actor_optimizer=worker.actor_optimizer,
        **shared,
    )
    reference = copy.deepcopy(ddp.module)
    worker.ref_policy = MegatronPPOActor(worker.config.ref, actor_module=[reference], actor_optimizer=None, **shared)
    return worker


def make_config(*overrides):
    return tip.compose_config(MODEL, *overrides, name="ppo_megatron_trainer")


def refusals():
    """What the actor refuses by itself, whatever the trainer said; and a transformer with dropout."""
    workers = MegatronWorkers(make_config(*COMMON, SKIP))
    actor, rows = workers.worker.actor, torch.zeros(8, 2)
    iterator = actor.make_minibatch_iterator
    return {
        "old_log_probs": refusal(lambda: iterator(_proto({"responses": rows, "old_log_probs": rows}))),
        "two_mini_batches": refusal(lambda: iterator(_proto({"responses": torch.zeros(16, 2)}))),
        "dropout": refusal(lambda: _with_dropout(actor)),
    }


def _with_dropout(actor):
    transformer_config = copy.copy(actor.tf_config)
    transformer_config.attention_dropout = 0.1
    return type(actor)(
        actor.config, actor.model_config, actor.hf_config, transformer_config, actor.actor_module, actor.actor_optimizer
    )


def _proto(tensors):
    from verl import DataProto

    return DataProto.from_dict(tensors)


def main():
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel(1, STAGES)
    megatron_cpu.adapt_megatron()
    result = {name: compare(make_config, MegatronWorkers, CASES[name]) for name in NAMES if name in CASES}
    if "refusals" in NAMES:
        result["refusals"] = refusals()
    dist.destroy_process_group()
    return result


print(json.dumps(main()))
