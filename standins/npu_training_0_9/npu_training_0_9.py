"""npu_training for verl v0.9.0, which asks a platform of its own for its device, and for the vllm that its server starts."""

import os


def name_the_device(platform_npu):
    """verl.plugin.platform.platform_npu: the NPU's tensors are the CPU's, its backend is gloo, and its memory is no other process's."""
    import torch
    import torch.utils._device

    # Lists the functions that `with torch.device(...)` answers for, once a process: before npu_attention, which MindSpeed's adaptor
    # brings, wraps them. Otherwise transformers 5 takes itself not to be on the meta device, and leaves rotary positions unset.
    torch.utils._device._device_constructors()
    os.environ.setdefault("VERL_ENGINE_DEVICE", "npu")  # the engine that an NPU has, by verl's own variable
    torch.npu.get_device_capability = lambda device=None: None  # as torch_npu has it: an NPU has none
    npu = platform_npu.PlatformNPU
    npu.device_name = "cpu"
    npu.device_module = torch.cpu
    npu.communication_backend_name = lambda self: "gloo"
    npu.is_ipc_supported = lambda self: False  # weights go through shared memory, as on an NPU whose driver is older
    npu.current_device = lambda self: torch.cpu.current_device()
    npu.set_device = lambda self, device_index: None
    npu.synchronize = lambda self, device_index=None: None
    npu.empty_cache = lambda self: None
    npu.manual_seed = npu.manual_seed_all = lambda self, seed: torch.manual_seed(seed)
    npu.set_allocator_settings = lambda self, settings: None


def prepare_on_import(vllm):
    """For an environment, as npu_engine has it: vllm 0.23 was imported, and nothing of it is used yet. The engine has processes of
    its own, each of which comes here."""
    import npu_engine
    import npu_engine_0_23
    import torch_npu

    # Of the same memory, which nothing frees here.
    torch_npu._C._weak_ref_tensor = lambda tensor: tensor.view(tensor.shape)
    _accelerator_answers()
    npu_engine_0_23.prepare()
    npu_engine.leave_compilation_out()


def _accelerator_answers():
    """torch's own module for whatever accelerator there is, which vllm 0.23 asks in place of torch.cuda: it names the NPU of torch_npu's
    stand-in, for which torch has no driver."""
    import torch

    accelerator = torch.accelerator
    for name in ("synchronize", "empty_cache", "set_device_index", "reset_peak_memory_stats"):
        setattr(accelerator, name, lambda *args: None)
    for name in ("current_device_index", "memory_reserved", "max_memory_allocated"):
        setattr(accelerator, name, lambda *args: 0)
