"""Devices, streams and events: one CPU, where everything has finished when the call returns."""

import torch
import torch.distributed

from . import graphs
from .unknown import StandInModule


class Stream:
    """A stream on which work is done at once."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, *args):
        pass

    def wait_event(self, *args):
        pass

    def record_event(self, *args):
        return Event()

    def synchronize(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


class Event:
    """An event that has always happened already."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        pass

    def wait(self, *args):
        pass

    def reset(self, *args):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True

    def elapsed_time(self, other):
        return 0.0


def make_npu_module():
    """`torch.npu`: no device is there; what sets, waits or empties does nothing."""
    npu = StandInModule("torch_npu.npu")
    npu.Stream, npu.Event, npu.ExternalEvent = Stream, Event, Event
    npu.NPUGraph, npu.graph = graphs.NPUGraph, graphs.graph
    npu.graph_pool_handle = lambda: 0
    npu.graph_task_group_begin, npu.graph_task_group_end = graphs.task_group_begin, graphs.task_group_end
    npu.graph_task_update_begin, npu.graph_task_update_end = graphs.task_update_begin, graphs.task_update_end
    npu.is_available = lambda: False
    npu.device_count = lambda: 0
    npu.current_device = lambda: 0
    npu.current_stream = npu.default_stream = lambda *args: Stream()
    npu.stream = lambda stream: stream
    for name in ("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all"):
        setattr(npu, name, lambda *args: None)
    return npu


def _histc_of_integers_too(histc):
    """torch.histc as an NPU has it, which counts integers too (TokenDispatcherWithAll2AllV counts expert ids so)."""

    def counted(values, bins=100, **bounds):
        if values.is_floating_point():
            return histc(values, bins=bins, **bounds)
        if bounds != {"min": 0, "max": bins}:
            raise NotImplementedError("the stand-in counts integers one by one, from 0 on")
        return torch.bincount(values.flatten().long(), minlength=bins)[:bins].to(values.dtype)

    return counted


def extend_torch():
    """What importing torch_npu adds to torch itself."""
    try:
        torch.utils.rename_privateuse1_backend("npu")  # torch.device("npu") becomes a legal name
    except RuntimeError:
        pass  # the process has renamed it before
    torch.version.cann = "8.5.0"
    torch.distributed.Backend.HCCL = "hccl"
    if not hasattr(torch.distributed, "is_hccl_available"):
        torch.distributed.is_hccl_available = lambda: False
    torch.histc = _histc_of_integers_too(torch.histc)
    torch.Tensor.npu = lambda self, *args, **kwargs: self
    torch.Tensor.is_npu = property(lambda self: False)
    # Without an accelerator there is nothing to pin for, and CPU torch raises. Pinned memory is memory of its own: verl gives
    # the storage of a tensor up once it has a pinned copy.
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self.clone()
