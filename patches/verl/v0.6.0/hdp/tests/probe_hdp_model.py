"""For probe_hdp_actor.py: verl's real Megatron actor over a tiny GPT model with MindSpeed's ring attention, on gloo.

Weights are made from their names, so that they are the same however the model is cut by tensor and pipeline
parallelism, and gradients are put together again in the same way. Stood for are the device, the operators of an NPU
(npu_attention, and a root mean square norm) and the optimizer, which keeps the gradients it is given.
"""

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()
mindspeed_on_cpu.use_gloo_in_verl()

import os  # noqa: E402
import zlib  # noqa: E402
from types import SimpleNamespace  # noqa: E402

import npu_attention  # noqa: E402
import tiny_megatron  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch_npu  # noqa: E402
import verl  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from megatron.core import parallel_state as mpu  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.enums import ModelType  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.tensor_parallel import random as megatron_random  # noqa: E402
from megatron.core.transformer.module import Float16Module  # noqa: E402
from transformers import Qwen3Config  # noqa: E402
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.workers.actor.megatron_actor import MegatronPPOActor  # noqa: E402

LAYERS = 4
ACTOR, REFERENCE = "actor_rollout_ref.actor", "actor_rollout_ref.ref"


def use_reference_operators():
    """What MindSpeed calls of an NPU, and what Megatron's recomputation asks of CUDA's generators."""
    npu_attention.install()
    torch_npu.npu_rms_norm = lambda x, weight, epsilon=1e-6: (_rms_norm(x, weight, epsilon), None)
    megatron_random._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    megatron_random._set_cuda_rng_state = lambda *args, **kwargs: None


def _rms_norm(x, weight, epsilon):
    normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + epsilon)
    return (normed * weight.float()).to(x.dtype)


def use_parallel(tp=1, cp=1, pp=1, vpp=None, ep=1, overlap=False, window=1):
    """MindSpeed's patches for these sizes, and Megatron's groups; the process group is made once.

    `vpp` virtual stages a pipeline stage, `ep` ranks that share out the experts, `window` ranks in an inner ring.
    """
    mindspeed_on_cpu.forget_attention_backend()
    ADAPTOR.repatch(
        {
            "context_parallel_size": cp,
            "use_flash_attn": True,
            "use_fused_ring_attention_update": True,
            "use_cp_send_recv_overlap": overlap,
            "cp_window_size": window,
        }
    )
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    if mpu.model_parallel_is_initialized():
        mpu.destroy_model_parallel()
    mpu.initialize_model_parallel(
        tp,
        pp,
        vpp,
        context_parallel_size=cp,
        expert_model_parallel_size=ep,
        expert_tensor_parallel_size=1 if ep > 1 else None,
    )


class PackedAttention(torch.nn.Module):
    """Attention over packed sequences of one process, to compare with: PyTorch's own, a sequence at a time."""

    def __init__(self, *args, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, packed_seq_params=None, **unused):
        return tiny_megatron.packed_attention(query, key, value, packed_seq_params.cu_seqlens_q_padded)


def transformer_config(bf16=False, recompute=False, experts=None):
    pipeline = mpu.get_pipeline_model_parallel_world_size()
    virtual = mpu.get_virtual_pipeline_model_parallel_world_size()
    dtype = torch.bfloat16 if bf16 else torch.float32
    changes = {
        "num_layers": LAYERS,
        "bf16": bf16,
        "params_dtype": dtype,
        "pipeline_model_parallel_size": pipeline,
        "sequence_parallel": mpu.get_tensor_model_parallel_world_size() > 1,
        "variable_seq_lengths": True,
        "moe_token_dispatcher_type": "alltoall",  # also without experts: variable lengths refuse the default
    }
    if pipeline > 1:
        changes |= {"pipeline_dtype": dtype, "deallocate_pipeline_outputs": False, "batch_p2p_comm": False}
    if virtual:
        # As verl sets them (mcore/config_converter.py).
        changes |= {"virtual_pipeline_model_parallel_size": virtual, "overlap_p2p_comm": True}
    if experts:
        changes |= {
            "num_moe_experts": experts,
            "moe_router_topk": 2,
            "moe_router_load_balancing_type": "none",
            "expert_tensor_parallel_size": mpu.get_expert_tensor_parallel_world_size(),
        }
    if recompute:
        changes |= {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    return tiny_megatron.config(**changes)


def model_chunks(config, one_process, salt=""):
    """This rank's parts of the model: as many as there are virtual stages."""
    chunks = []
    for stage in range(mpu.get_virtual_pipeline_model_parallel_world_size() or 1):
        if mpu.get_virtual_pipeline_model_parallel_world_size():
            mpu.set_virtual_pipeline_model_parallel_rank(stage)
        chunks.append(model(config, one_process, salt))
    return chunks


def model(config, one_process, salt=""):
    """This rank's part of the model, under Megatron's DDP; another `salt` makes other weights."""
    spec = get_gpt_layer_local_spec(num_experts=config.num_moe_experts, normalization="RMSNorm")
    if one_process:
        spec.submodules.self_attention.submodules.core_attention = PackedAttention
    part = GPTModel(
        config,
        spec,
        vocab_size=tiny_megatron.VOCABULARY,
        max_sequence_length=512,
        pre_process=mpu.is_pipeline_first_stage(),
        post_process=mpu.is_pipeline_last_stage(),
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        rotary_base=10000,
    )
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            whole = made_weight(salt + global_name(name, part), whole_shape(name, parameter))
            parameter.copy_(own_part(whole, name, parameter))
    part.model_type = ModelType.encoder_or_decoder
    wrapped = Float16Module(config, part) if config.bf16 else part
    ddp = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), wrapped)
    ddp.model_type = part.model_type
    return ddp


def global_name(name, part):
    """The parameter's name with its layer counted from the first stage, and its expert from the first rank."""
    pieces = name.split(".")
    if "layers" in pieces:
        at = pieces.index("layers") + 1
        pieces[at] = str(part.decoder.layers[int(pieces[at])].layer_number - 1)
    if "local_experts" in pieces:
        at = pieces.index("local_experts") + 1
        own = part.config.num_moe_experts // mpu.get_expert_model_parallel_world_size()
        pieces[at] = str(int(pieces[at]) + own * mpu.get_expert_model_parallel_rank())
    return ".".join(pieces)


def _cut_dimension(name, parameter):
    """The dimension that tensor parallelism cuts; None where this rank has the whole. Experts are not cut here."""
    if not getattr(parameter, "tensor_model_parallel", False) or "local_experts" in name:
        return None
    return parameter.partition_dim


def whole_shape(name, parameter):
    shape, cut = list(parameter.shape), _cut_dimension(name, parameter)
    if cut is not None:
        shape[cut] *= mpu.get_tensor_model_parallel_world_size()
    return shape


def made_weight(name, shape):
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if len(shape) == 1:
        return 1 + 0.1 * torch.randn(shape, generator=generator)
    return torch.randn(shape, generator=generator) * shape[1] ** -0.5


def own_part(whole, name, parameter):
    cut, size = _cut_dimension(name, parameter), mpu.get_tensor_model_parallel_world_size()
    if cut is None:
        return whole
    rank = mpu.get_tensor_model_parallel_rank()
    # Gate and up are one matrix, and every rank has a part of both.
    halves = whole.chunk(2, cut) if "linear_fc1" in name else [whole]
    return torch.cat([half.chunk(size, cut)[rank] for half in halves], cut)


def whole_gradients(ddp):
    """{name: gradient} of this rank's parameters: the parts of tensor parallel ranks together."""
    part, found = ddp.module.module if ddp.config.bf16 else ddp.module, {}
    for name, parameter in part.named_parameters():
        grad, cut = parameter.main_grad.float(), _cut_dimension(name, parameter)
        if cut is not None:
            parts = [torch.empty_like(grad) for _ in range(mpu.get_tensor_model_parallel_world_size())]
            dist.all_gather(parts, grad.contiguous(), group=mpu.get_tensor_model_parallel_group())
            halves = [one.chunk(2, cut) if "linear_fc1" in name else (one,) for one in parts]
            grad = torch.cat([half for column in zip(*halves, strict=True) for half in column], cut)
        found[global_name(name, part)] = grad.clone()
    return found


class RecordingOptimizer:
    """Takes no step; keeps the gradients that it would step with."""

    def __init__(self, chunks):
        self.chunks, self.gradients = chunks, {}

    def zero_grad(self):
        pass

    def step(self):
        self.gradients = {name: grad for ddp in self.chunks for name, grad in whole_gradients(ddp).items()}
        return True, 1.0, 0


def actor_config(job, rows):
    tokens, fixed = job.get("tokens"), job.get("rows", rows)
    overrides = {
        "actor_rollout_ref.model.path": "none",
        f"{ACTOR}.ppo_mini_batch_size": rows,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu": fixed,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": fixed,
        f"{ACTOR}.entropy_coeff": 0.01,
        f"{ACTOR}.use_dynamic_bsz": bool(tokens),
        f"{ACTOR}.ppo_max_token_len_per_gpu": tokens or 1,
        f"{ACTOR}.loss_agg_mode": job.get("mean", "token-mean"),
        f"{ACTOR}.use_kl_loss": job.get("kl", False),
        f"{ACTOR}.kl_loss_coef": 0.5,
        **({f"{ACTOR}.{name}": 1000.0 for name in CLIPS} if job.get("unclipped") else {}),
        **{f"{who}.megatron.{name}": job.get(key, 1) for key, name in SIZES.items() for who in (ACTOR, REFERENCE)},
        # The reference's follows this one.
        **({f"{ACTOR}.megatron.hybrid_data_parallel": True} if job.get("hdp") else {}),
        **({f"{ACTOR}.megatron.hybrid_data_parallel_by_time": True} if job.get("by_time") else {}),
        **{f"{ACTOR}.megatron.hybrid_data_parallel_costs.{name}": cost for name, cost in job.get("costs", {}).items()},
    }
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer/config")
    with initialize_config_dir(folder, version_base=None):
        lines = [f"{key}={value}" for key, value in overrides.items()]
        return compose("ppo_megatron_trainer", overrides=lines).actor_rollout_ref


CLIPS = ("clip_ratio", "clip_ratio_low", "clip_ratio_high", "clip_ratio_c")
SIZES = {
    "tp": "tensor_model_parallel_size",
    "cp": "context_parallel_size",
    "pp": "pipeline_model_parallel_size",
}


def make_actor(job, rows):
    """The actor of a job (see probe_hdp_actor.py), after MindSpeed's patches and Megatron's groups are in place."""
    config = job_config(job)
    chunks = model_chunks(config, one_process=dist.get_world_size() == 1)
    section = omega_conf_to_dataclass(actor_config(job, rows).actor)
    return _actor(section, config, chunks, RecordingOptimizer(chunks))


def make_reference(job, rows):
    """The reference policy, with other weights; the worker too gives it the configuration as it was composed."""
    config = job_config(job)
    chunks = model_chunks(config, one_process=dist.get_world_size() == 1, salt="reference ")
    return _actor(actor_config(job, rows).ref, config, chunks, None)


def job_config(job):
    return transformer_config(job.get("bf16", False), job.get("recompute", False), job.get("experts"))


def _actor(section, config, chunks, optimizer):
    return MegatronPPOActor(
        config=section,
        model_config=SimpleNamespace(),
        hf_config=Qwen3Config(architectures=["Qwen3ForCausalLM"]),
        tf_config=config,
        actor_module=chunks,
        actor_optimizer=optimizer,
    )
