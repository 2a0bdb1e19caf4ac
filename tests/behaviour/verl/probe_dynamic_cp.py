"""Probe: verl's Megatron engine for an NPU on a batch of sequences of several lengths: a forward pass, and a PPO step.

Usage: probe_dynamic_cp.py MODEL SETTINGS LENGTHS WHOLE   (a Hugging Face model's folder; what McoreEngineConfig is told and the lengths of the
sequences, as JSON; a file)

Real: verl's engine with its scheduler, loss, bridge and optimizer, MindSpeed's layers and ring, Megatron-LM, gloo. NPU operators are reference
implementations in plain PyTorch. "dtype" may be float32, which verl refuses as a setting, so that little is lost to rounding.
One rank alone writes its results to WHOLE; of several each prints how far its own are from those: of the forward pass log-probabilities
and entropies in the batch's order (null where verl gives it none), of the step the loss, the gradient's norm, and the largest differences
of gradients (relative to the largest of each parameter) and of parameters afterwards, where tensor parallelism has not cut them. And of
each micro-batch the ranks that share it, its rows on this rank, and its sequences. "error" is what the engine was refused with, else
null; "too long" what a sequence ends with that is one token longer than all ranks have room for.
"""

import sys

import npu_training
import npu_training_0_9
import torch
import torch.distributed as dist
import torch_npu
from patchctl_standins import training
from verl.plugin.platform import platform_npu

npu_training.answer_for_the_device(torch_npu)
npu_training_0_9.name_the_device(platform_npu)
training.before_adaptor()
from mindspeed import megatron_adaptor  # noqa: E402

training.after_adaptor(megatron_adaptor)

import json  # noqa: E402
import re  # noqa: E402
from functools import partial  # noqa: E402

from megatron.core import parallel_state as mpu  # noqa: E402
from tensordict import TensorDict  # noqa: E402
from verl.models.mcore import model_forward  # noqa: E402
from verl.trainer.config import CheckpointConfig  # noqa: E402
from verl.utils import tensordict_utils as tu  # noqa: E402
from verl.workers.config import ActorConfig, HFModelConfig, McoreEngineConfig, McoreOptimizerConfig  # noqa: E402
from verl.workers.engine.base import EngineRegistry  # noqa: E402
from verl.workers.utils.losses import ppo_loss  # noqa: E402

SHARED = []


def nested(rows):
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def batch(lengths, old=None):
    """Prompts are a third of each sequence; advantages and old log-probabilities are made up."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(4, 500, (length,), generator=generator) for length in lengths]
    prompts = [max(1, length // 3) for length in lengths]
    answers = [row[count:] for row, count in zip(rows, prompts, strict=True)]
    floats = [[torch.randn(len(row), generator=generator) for row in answers] for _ in range(2)]
    fields = {
        "input_ids": nested(rows),
        "position_ids": nested([torch.arange(length) for length in lengths]),
        "prompts": nested([row[:count] for row, count in zip(rows, prompts, strict=True)]),
        "responses": nested(answers),
        "response_mask": nested([torch.ones_like(row) for row in answers]),
        "loss_mask": nested([torch.ones_like(row) for row in answers]),
        "advantages": nested(floats[0]),
        "old_log_probs": nested([-6 + 0.1 * row for row in floats[1]]),
    }
    made = TensorDict(fields, batch_size=len(rows))
    tu.assign_non_tensor(made, temperature=1.0, use_dynamic_bsz=False, micro_batch_size_per_gpu=1)
    tu.assign_non_tensor(made, use_fused_kernels=False, calculate_entropy=True, global_batch_size=len(rows))
    return made


def engine(model, settings):
    dtype = settings.pop("dtype", "bfloat16")
    config = McoreEngineConfig(vanilla_mbridge=True, use_distributed_optimizer=False, **settings)
    config.__dict__["dtype"] = dtype
    made = EngineRegistry.get_engine_cls("language_model", "megatron")(
        HFModelConfig(path=model),
        config,
        McoreOptimizerConfig(lr=1e-2, lr_warmup_steps=0, total_training_steps=10),
        CheckpointConfig(),
    )
    made.initialize()
    return made


def watch():
    """What verl packs for each micro-batch: the first call of each is that of its ids."""
    preprocess = model_forward.preprocess_thd_engine

    def noted(input_ids, *args, **settings):
        packed = preprocess(input_ids, *args, **settings)
        if not settings.get("need_roll") and input_ids.dtype == torch.int64:
            size = settings.get("local_cp_size")
            rows = int(packed[1].cu_seqlens_q_padded[-1]) // (size or mpu.get_context_parallel_world_size())
            SHARED.append([size, rows, input_ids.offsets().diff().tolist()])
        return packed

    model_forward.preprocess_thd_engine = noted


def results(made, lengths, mode):
    with made.eval_mode():
        outputs = made.infer_batch(batch(lengths)).get("model_output", {})
    config = ActorConfig(strategy="megatron", rollout_n=1, use_dynamic_bsz=True, entropy_coeff=0.01, loss_agg_mode=mode)
    with made.train_mode():
        trained = made.train_batch(batch(lengths), partial(ppo_loss, config=config))
        gradients = {name: weight.main_grad.clone() for name, weight in weights(made)}
    # The last place of a sequence has no token to predict.
    found = {name: [row[:-1] for row in outputs[name].unbind()] for name in ("log_probs", "entropy") if name in outputs}
    if "grad_norm" in trained.get("metrics", {}):
        found |= {"loss": float(sum(trained["loss"])), "norm": float(trained["metrics"]["grad_norm"])}
    return found | {"gradients": gradients, "parameters": {name: one.detach().clone() for name, one in weights(made)}}


def weights(made):
    """By the names that they have in a model of one stage, with all experts on each rank."""
    stages = mpu.get_pipeline_model_parallel_world_size()
    first = mpu.get_pipeline_model_parallel_rank() * made.tf_config.num_layers // stages
    experts = (made.tf_config.num_moe_experts or 0) // mpu.get_expert_model_parallel_world_size()
    expert = mpu.get_expert_model_parallel_rank() * experts
    for name, weight in made.module[0].named_parameters():
        name = re.sub(r"layers\.(\d+)", lambda found: f"layers.{int(found[1]) + first}", name)
        yield re.sub(r"(experts\..*\.weight)(\d+)", lambda found: f"{found[1]}{int(found[2]) + expert}", name), weight


def apart(found, whole):
    """How far the results are from the other ones."""
    far = {
        name: max(map(difference, found[name], whole[name])) if name in found else None
        for name in ("log_probs", "entropy")
    }
    far |= {name: abs(found[name] / whole[name] - 1) if name in found else None for name in ("loss", "norm")}
    pairs = {
        name: (found["gradients"][name], gradient)
        for name, gradient in whole["gradients"].items()
        if name in found["gradients"] and found["gradients"][name].shape == gradient.shape
    }
    return far | {
        "gradients": max(difference(one, other) / float(other.abs().max()) for one, other in pairs.values()),
        "parameters": max(difference(found["parameters"][name], whole["parameters"][name]) for name in pairs),
        "compared": len(pairs),
    }


def difference(one, other):
    assert one.shape == other.shape
    return float((one - other).abs().max())


def refused(made, length):
    try:
        with made.eval_mode():
            made.infer_batch(batch([length, 3]))
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def main(model, settings, lengths, file):
    dist.init_process_group("gloo")
    settings, lengths = json.loads(settings), json.loads(lengths)
    mode = settings.pop("loss_agg_mode", "token-mean")
    watch()
    try:
        made = engine(model, settings)
    except (ValueError, NotImplementedError, AssertionError, RuntimeError) as error:
        return {"error": f"{type(error).__name__}: {error}", "groups": mpu.is_initialized()}
    found = {"error": None, "engine": type(made).__name__}
    computed = results(made, lengths, mode)
    if dist.get_world_size() == 1:
        torch.save(computed, file)
        return found
    found |= {"shared": SHARED.copy()} | apart(computed, torch.load(file))
    if room := settings.get("max_seqlen_per_dp_cp_rank"):
        found["too long"] = refused(made, room * mpu.get_data_parallel_world_size(with_context_parallel=True) + 1)
    return found


print(json.dumps(main(*sys.argv[1:])))
dist.barrier()
dist.destroy_process_group()
