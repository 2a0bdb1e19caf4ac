"""Makes verl's Megatron code run on a CPU with MindSpeed's real layers. Import it before verl; needs `torch_npu` too.

Transformer Engine does not exist here, and not on an NPU either: there MindSpeed's adaptor puts its own layers in its
place, among them the expert layers of both layouts (TEGroupedMLP over MindSpeedTEGroupedLinear, and GroupedMLP with
weight1 and weight2 once `moe_alltoall_overlap_comm` is set). The adaptor is the real one. Stood for are the device
(`torch.cpu` is asked what an accelerator's module answers), the backend (gloo), and the CUDA generators.

`install` refuses the NPU operators of attention and norms: a whole forward pass would compute with mocks. In an environment
with the stand-ins (patchctl_standins.at_start) they are reference operators, and whole steps run.
"""

import os
import sys
import types

import megatron_cpu
import torch
import torch.distributed

RANKS = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
GIBIBYTE = 1 << 30


def install():
    """Imports MindSpeed's adaptor and adapts torch and Megatron; returns the adaptor."""
    before_adaptor()
    from mindspeed import megatron_adaptor

    _adapt()
    _without_npu_operators()
    return megatron_adaptor


def before_adaptor():
    """What has to be in place when MindSpeed's adaptor is imported."""
    for name, value in RANKS.items():
        os.environ.setdefault(name, value)
    # The megatron-core package has no megatron.training; MindSpeed then takes its own arguments, as it does for verl.
    sys.modules["megatron.training"] = None
    _use_gloo()
    _extend_cpu_module()


def after_adaptor(adaptor):
    """For an environment: MindSpeed's adaptor was imported. A whole training step runs, with reference operators."""
    import mindspeed_ops
    import npu_attention

    _adapt()
    npu_attention.install()
    mindspeed_ops.install()


def _adapt():
    megatron_cpu.adapt_megatron()
    _without_generators()


def take_value_models():
    """Lets value models be built: verl's head for them lies in a package that imports flash_attn and apex for old models."""
    for name in ("flash_attn.layers", "flash_attn.layers.rotary", "flash_attn.bert_padding"):
        module = types.ModuleType(name)
        for function in ("apply_rotary_emb", "index_first_axis", "pad_input", "unpad_input"):
            setattr(module, function, _refused(f"{name}.{function}"))
        sys.modules[name] = module
    # MindSpeed makes this module of apex, without the name that those old models import.
    norms = sys.modules["apex.normalization.fused_layer_norm"]
    norms.fused_rms_norm_affine = _refused("apex.fused_rms_norm_affine")


def forget_attention_backend():
    """Before another model is built in the process: Megatron sets these and refuses another model's choice."""
    for name in ("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        os.environ.pop(name, None)


def use_gloo_in_verl():
    """verl names no backend for a CPU."""
    import verl.utils.device

    verl.utils.device.get_nccl_backend = lambda: "gloo"


def _use_gloo():
    """The conversion script asks for nccl by name."""
    start = torch.distributed.init_process_group

    def with_gloo(backend=None, **settings):
        return start("gloo", **settings)

    torch.distributed.init_process_group = with_gloo
    # A barrier asks which accelerator there is, and the NPU that torch_npu's stand-in names has no driver.
    torch._C._get_accelerator = lambda *args: torch.device("cpu")


def _extend_cpu_module():
    cpu = torch.cpu
    cpu.current_device = lambda: 0
    cpu.manual_seed = torch.manual_seed
    cpu.set_device = cpu.empty_cache = lambda *args: None
    cpu.get_rng_state, cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cpu, name, lambda *args, **kwargs: 0)
    cpu.mem_get_info = lambda *args: (GIBIBYTE, GIBIBYTE)


def _without_generators():
    """Parameters are loaded or made with the CPU's generator; there are no others to seed."""
    import megatron.core.tensor_parallel as tensor_parallel
    import megatron.core.tensor_parallel.random as rng

    for module in (tensor_parallel, rng):
        module.model_parallel_cuda_manual_seed = lambda *args, **kwargs: None
    # Recomputation keeps the generator's state: here it is the CPU's, which is kept beside it.
    rng._get_cuda_rng_state = lambda *args, **kwargs: torch.get_rng_state()
    rng._set_cuda_rng_state = lambda *args, **kwargs: None


def _without_npu_operators():
    import torch_npu

    for name in ("npu_rms_norm", "npu_fusion_attention", "npu_rotary_mul"):
        setattr(torch_npu, name, _refused(f"torch_npu.{name}"))


def _refused(name):
    def operator(*args, **kwargs):
        raise NotImplementedError(f"{name} has no reference implementation here")

    return operator
