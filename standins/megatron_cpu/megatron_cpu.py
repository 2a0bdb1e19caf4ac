"""Stands for the CUDA device that Megatron-core asks for: maps its calls to the CPU. Import it before megatron.

Devices and streams do nothing, `device="cuda"` (or an index) becomes the CPU, and `Tensor.type()` still answers
"torch.cuda.*Tensor", which Megatron uses as a key. `adapt_megatron` then replaces what needs Transformer Engine, a CUDA
generator, or the torch version that core_v0.12.1 was written for. Arithmetic and collectives (gloo) are real.
"""

import functools
from contextlib import nullcontext

import torch

CPU = torch.device("cpu")
TENSOR_TYPES = ("Float", "Int", "Long", "Byte", "Double", "BFloat16")


class Event:
    """An event that has always happened already."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, *args):
        pass

    def wait(self, *args):
        pass

    def synchronize(self):
        pass


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


# Who is given a device. No TorchFunctionMode over everything: an engine in the same process compiles its model, which cannot be
# traced under one.
FACTORIES = (
    *(
        "arange",
        "as_tensor",
        "empty",
        "empty_like",
        "empty_strided",
        "eye",
        "full",
        "full_like",
        "linspace",
        "ones",
        "ones_like",
    ),
    *("rand", "randint", "randn", "randperm", "tensor", "zeros", "zeros_like"),
)
METHODS = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros")


def _on_the_cpu(function):
    """`function` with the CPU in the place of a CUDA device, which may be an index; pinning asks a device's driver."""

    @functools.wraps(function)
    def made(*args, **kwargs):
        if _is_device(kwargs.get("device")):
            kwargs["device"] = CPU
        kwargs.pop("pin_memory", None)
        return function(*args, **kwargs)

    return made


def _to_the_cpu(function):
    """`to` of a tensor or module, which takes a device, a dtype or another tensor at its first place."""

    @functools.wraps(function)
    def moved(self, *args, **kwargs):
        if args and _is_device(args[0]):
            args = (CPU, *args[1:])
        if _is_device(kwargs.get("device")):
            kwargs["device"] = CPU
        return function(self, *args, **kwargs)

    return moved


def _is_device(value):
    """Whether it names a CUDA device, or an NPU, which has this name on a machine with MindSpeed."""
    return type(value) is int or (isinstance(value, (str, torch.device)) and str(value).startswith(("cuda", "npu")))


def _cuda_type_name(tensor, *args, **kwargs):
    if args or kwargs:
        return _TENSOR_TYPE(tensor, *args, **kwargs)
    return "torch.cuda." + _TENSOR_TYPE(tensor).removeprefix("torch.").removeprefix("cuda.")


def _install():
    cuda = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.is_initialized = lambda: False
    for name in ("set_device", "synchronize", "empty_cache"):
        setattr(cuda, name, lambda *args: None)
    cuda.Stream, cuda.Event = Stream, Event
    cuda.current_stream = cuda.default_stream = lambda *args: Stream()
    cuda.stream = lambda stream: stream
    for name in TENSOR_TYPES:
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.cpu.empty_cache = lambda: None
    torch.Tensor.type = _cuda_type_name
    for name in FACTORIES:
        setattr(torch, name, _on_the_cpu(getattr(torch, name)))
    for name in METHODS:
        setattr(torch.Tensor, name, _on_the_cpu(getattr(torch.Tensor, name)))
    for kind in (torch.Tensor, torch.nn.Module):
        kind.to = _to_the_cpu(kind.to)


class NoRngTracker:
    """Stands for the CUDA RNG tracker: tests use no dropout, and parameters are initialised with CPU generators."""

    def fork(self, *args, **kwargs):
        return nullcontext()

    def get_states(self):
        return {"model-parallel-rng": torch.get_rng_state()}  # verl refuses a checkpoint without any

    def is_initialized(self):
        return True

    def add(self, *args):
        pass

    def reset(self):
        pass

    def set_states(self, states):
        pass


def _keep_on_cpu(tensor, as_numpy=False, record_stream=False):
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def adapt_megatron():
    """Makes Megatron-core run without Transformer Engine and CUDA, and with torch 2.13 and numpy 2."""
    import megatron.core.dist_checkpointing.strategies.filesystem_async as filesystem_async
    import megatron.core.optimizer.distrib_optimizer as distrib_optimizer
    import megatron.core.tensor_parallel.random as rng
    import megatron.core.transformer.moe.token_dispatcher as token_dispatcher
    import numpy
    from torch.distributed.checkpoint.filesystem import SerializationFormat

    rng._CUDA_RNG_STATE_TRACKER = NoRngTracker()
    rng._CUDA_RNG_STATE_TRACKER_INITIALIZED = True
    token_dispatcher.maybe_move_tensor_to_cpu = _keep_on_cpu
    # FP8 only; it comes from Transformer Engine.
    distrib_optimizer.quantize_param_shard = lambda *args, **kwargs: None
    # numpy 2 dropped the name; dist_checkpointing's validation calls it.
    numpy.product = numpy.prod
    # torch gave the function this required argument after core_v0.12.1 was released.
    filesystem_async._write_item = functools.partial(
        filesystem_async._write_item, serialization_format=SerializationFormat.TORCH_SAVE
    )


_TENSOR_TYPE = torch.Tensor.type
_install()
