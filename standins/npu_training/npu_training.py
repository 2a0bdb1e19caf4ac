"""The device under verl's FSDP workers, on a CPU. Needs `torch_npu` and `npu_attention`; each function is called after the
module that it speaks of was imported (patchctl_standins.at_start), or by hand.

The NPU is there for whoever asks: verl and transformers take their NPU code, which calls torch_npu's operators. Its tensors
are on the CPU, so the device's name is "cpu" and its collectives are gloo's.
"""

import functools

import acl
import npu_attention
import torch
import torch.distributed

GIBIBYTE = 1 << 30


class DeviceIndex(str):
    """The current device as verl's FSDP workers use it: tensors are sent to it, and it stands behind the device's name
    (load_fsdp_model_to_gpu). torch's own "cpu" would read `cpu:cpu` there, and torch knows no tensor on device 0 of an NPU."""

    def __format__(self, spec):
        return "0"


def answer_for_the_device(torch_npu):
    """torch.npu says that an NPU is there, torch.cpu answers what verl asks the module of its device, and attention is real."""
    torch.npu.is_available = lambda: True
    torch.npu.device_count = lambda: acl.rt.get_device_count()[0]
    torch_npu.npu_fusion_attention = npu_attention.fusion_attention
    # A barrier asks which accelerator there is, and the NPU that torch_npu's stand-in names has no driver.
    torch._C._get_accelerator = lambda *args: torch.device("cpu")
    # torch.compile traces an accelerator's streams where there is one.
    torch.accelerator.is_available = lambda: False
    cpu = torch.cpu
    cpu.current_device = lambda: DeviceIndex("cpu")
    cpu.set_device = cpu.empty_cache = cpu.ipc_collect = cpu.reset_peak_memory_stats = lambda *args: None
    cpu.get_rng_state, cpu.set_rng_state = torch.get_rng_state, torch.set_rng_state
    cpu.manual_seed = cpu.manual_seed_all = torch.manual_seed
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cpu, name, lambda *args: 0)
    cpu.mem_get_info = lambda *args: (GIBIBYTE, GIBIBYTE)
    torch.distributed.init_process_group = _each_device_once(torch.distributed.init_process_group)
    torch.distributed.all_gather = _of_any_shape(torch.distributed.all_gather)


def name_the_device(device):
    """verl.utils.device: the NPU's tensors are the CPU's, and its backend is gloo."""
    device.get_device_name = lambda: "cpu"
    device.get_nccl_backend = lambda: "gloo"


def synchronise_modules_of_the_device(init_utils):
    """torch.distributed.fsdp._init_utils: FSDP sends a module's first values between devices, and refuses to on a CPU; an index
    is one of an accelerator."""
    init_utils._check_module_states_for_sync_module_states = lambda module_states: None
    init_utils._get_device_from_device_id = lambda device_id, *args: None if device_id is None else torch.device("cpu")


def _each_device_once(start):
    """verl's FSDP worker names a backend for the CPU and one for the device, and torch refuses one device twice."""

    @functools.wraps(start)
    def started(backend=None, *args, **settings):
        if backend is not None and "," in backend:
            backend = ",".join(dict.fromkeys(backend.split(",")))
        return start(backend, *args, **settings)

    return started


def _of_any_shape(gather):
    """HCCL and NCCL gather as many numbers as there are; gloo wants the shapes equal, too (verl's topk_reduce_ratio_min_max
    gathers a number into lists of one)."""

    @functools.wraps(gather)
    def gathered(tensor_list, tensor, *args, **settings):
        same = all(one.numel() == tensor.numel() for one in tensor_list)
        return gather(tensor_list, tensor.reshape(tensor_list[0].shape) if same else tensor, *args, **settings)

    return gathered
