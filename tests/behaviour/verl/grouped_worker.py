"""For probe_grouped_load.py: verl's real Megatron workers on a CPU with MindSpeed's layers, and what they send out."""

import mindspeed_on_cpu

ADAPTOR = mindspeed_on_cpu.install()
mindspeed_on_cpu.take_value_models()
mindspeed_on_cpu.use_gloo_in_verl()

import os  # noqa: E402
import tempfile  # noqa: E402
import types  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import verl  # noqa: E402
from hydra import compose, initialize_config_dir  # noqa: E402
from megatron.core import parallel_state  # noqa: E402
from mindspeed.core.transformer.moe.moe_feature.gmm import experts as mindspeed_experts  # noqa: E402
from mindspeed.te.pytorch.module import grouped_linear  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from verl.models.mcore import get_mcore_weight_converter  # noqa: E402
from verl.utils.checkpoint.megatron_checkpoint_manager import get_dist_checkpoint_path  # noqa: E402, F401
from verl.utils.config import omega_conf_to_dataclass  # noqa: E402
from verl.utils.megatron_utils import per_tensor_generator, unwrap_model  # noqa: E402
from verl.workers import megatron_workers  # noqa: E402

LINEARS = ("gate", "up", "down")
SECTIONS = {"actor": "actor_rollout_ref.actor", "critic": "critic"}
OVERLAP = {"moe_token_dispatcher_type": "alltoall", "moe_grouped_gemm": True}
NAMES = {"qkv_layer_name": "self_attention.linear_qkv.", "gate_proj_layer_name": "linear_fc1."}
SIZES = {"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "ep": "expert_model_parallel_size"}


def use_parallel(sizes):
    """Makes Megatron's groups of these sizes anew; the process group is made once."""
    mindspeed_on_cpu.forget_attention_backend()
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        **{SIZES[name]: size for name, size in sizes.items()}, expert_tensor_parallel_size=1
    )


def configured(job):
    """The configuration as Hydra composes it from verl's own files and the overrides of a command line."""
    section = SECTIONS[job.get("role", "actor")]
    megatron = f"{section}.megatron"
    transformer = {"use_cpu_initialization": True, "moe_alltoall_overlap_comm": job.get("overlap", False)}
    transformer |= OVERLAP if job.get("overlap") else {}
    overrides = {
        f"{section}.ppo_mini_batch_size": 4,
        f"{section}.ppo_micro_batch_size_per_gpu": 2,
        f"{section}.optim.total_training_steps": 10,
        f"{section}.optim.lr_decay_steps": 10,
        f"{section}.checkpoint.save_contents": "[model]",
        f"{megatron}.use_dist_checkpointing": True,
        f"{megatron}.dist_checkpointing_path": job["checkpoint"],
        "actor_rollout_ref.model.path": job["model"],
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 2,
        "critic.model.path": job["model"],
        "critic.model.tokenizer_path": job["model"],
        **{f"{megatron}.{SIZES[name]}": size for name, size in job.get("parallel", {}).items()},
        **{f"+{megatron}.override_transformer_config.{name}": value for name, value in transformer.items()},
        **({f"{megatron}.grouped_experts": True} if job.get("grouped") else {}),
    }
    lines = [f"{key}={value}" for key, value in overrides.items()] + job.get("overrides", [])
    folder = os.path.join(os.path.dirname(verl.__file__), "trainer/config")
    with initialize_config_dir(folder, version_base=None):
        return compose("ppo_megatron_trainer", overrides=lines)


def loaded_worker(job):
    """The worker, its model, and by how many bytes the process grew while the checkpoint was loaded."""
    config, grown = configured(job), []
    if job.get("role") == "critic":
        # CriticWorker relies on another worker of the process having applied MindSpeed's settings.
        ADAPTOR.repatch({"moe_alltoall_overlap_comm": job.get("overlap", False), **OVERLAP})
        worker = megatron_workers.CriticWorker(omega_conf_to_dataclass(config.critic))
    else:
        # What validate_config does with the actor's section on the driver, before any worker starts.
        omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        worker = megatron_workers.ActorRolloutRefWorker(config=config.actor_rollout_ref, role=job.get("role", "actor"))
    with MeasuredLoad(grown):
        worker.init_model()
    module = worker.critic_module if job.get("role") == "critic" else worker.actor_module
    return worker, module, sum(grown)


class MeasuredLoad:
    """Measures the peak of resident memory of each load_mcore_dist_weights, above that before the call."""

    def __init__(self, grown):
        self.grown, self.load = grown, megatron_workers.load_mcore_dist_weights

    def __enter__(self):
        megatron_workers.load_mcore_dist_weights = self._measured

    def __exit__(self, *exc):
        megatron_workers.load_mcore_dist_weights = self.load

    def _measured(self, *args, **kwargs):
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak starts again from here
        before = memory_bytes("VmRSS")
        self.load(*args, **kwargs)
        self.grown.append(memory_bytes("VmHWM") - before)


def memory_bytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) * 1024


def expert_layers(module):
    """(index of the layer, its routed experts) of every MoE layer."""
    found = []
    for chunk in module:
        layers = unwrap_model(chunk).decoder.layers
        found += [(layer.layer_number - 1, layer.mlp.experts) for layer in layers if hasattr(layer.mlp, "experts")]
    return found


def wrong_experts(module, model):
    """Hugging Face names of this rank's experts whose parameters hold something else, in either layout.

    Grouped weights are taken apart here as Megatron's GroupedMLP.forward does it, not by the code under test.
    """
    original, wrong = hugging_face_weights(model), []
    for index, layer in expert_layers(module):
        first = parallel_state.get_expert_model_parallel_rank() * layer.num_local_experts
        for local in range(layer.num_local_experts):
            prefix = f"model.layers.{index}.mlp.experts.{first + local}"
            for name, tensor in zip(LINEARS, expert_weights(layer, local), strict=True):
                key = f"{prefix}.{name}_proj.weight"
                wrong += [] if torch.equal(tensor, original[key]) else [key]
    return wrong


def expert_weights(layer, local):
    """Gate, up and down of one local expert, each [outputs, inputs]."""
    if hasattr(layer, "weight1"):
        experts, hidden = layer.num_local_experts, layer.config.hidden_size
        first = layer.weight1.view(experts, hidden, -1)[local].T
        second = layer.weight2.view(experts, -1, hidden)[local].T
    else:
        first, second = (getattr(linear, f"weight{local}") for linear in (layer.linear_fc1, layer.linear_fc2))
    return (*first.chunk(2), second)


def weight_converter(worker):
    return get_mcore_weight_converter(worker.hf_config, worker.dtype)


def given_to_rollout(worker, module):
    """What update_weights would receive: [(name, tensor)]."""
    return list(per_tensor_generator(module, worker.hf_config, weight_converter(worker), worker.tf_config, NAMES))


def hugging_face_weights(model):
    weights = {}
    for file in sorted(os.listdir(model)):
        if file.endswith(".safetensors"):
            weights |= load_file(os.path.join(model, file))
    return weights


def compared(given, model):
    """The rollout's tensors against the Hugging Face checkpoint: equal bit for bit, in the dtype of the latter."""
    original = hugging_face_weights(model)
    names = [name for name, _ in given]
    return {
        "names": len(names),
        "missing": sorted(set(original) - set(names)),
        "different": sorted(name for name, tensor in given if not same(tensor, original.get(name))),
        "twice": sorted({name for name in names if names.count(name) > 1}),
        "contiguous": all(tensor.is_contiguous() for _, tensor in given),
    }


def same(tensor, original):
    return original is not None and tensor.shape == original.shape and torch.equal(tensor.to(original.dtype), original)


def shared_folder(name):
    """A folder that all ranks see."""
    folder = [tempfile.mkdtemp(prefix=name, dir=os.getcwd())]
    dist.broadcast_object_list(folder, src=0)
    return folder[0]


def use_reference_grouped_gemm():
    """Stands for MindSpeed's grouped matrix product: each expert's rows times its matrix, in plain torch."""

    class ReferenceOps:
        @staticmethod
        def gmm(rows, matrices, counts, trans_b=False, gemm_fusion=False, original_weight=None):
            assert not trans_b and not gemm_fusion
            parts = rows.split(counts.tolist())
            return torch.cat([part @ matrix for part, matrix in zip(parts, matrices, strict=True)])

    mindspeed_experts.gg = types.SimpleNamespace(ops=ReferenceOps)
    grouped_linear.Ops = ReferenceOps


def grouped_forward(layer, hidden, counts):
    """MindSpeed's forward pass of grouped experts without overlap; `counts` rows of `hidden` for each expert."""
    use_reference_grouped_gemm()
    output, _ = mindspeed_experts.GmmExpertsImpl.forward(layer, hidden, counts, torch.ones(len(hidden)))
    return output
