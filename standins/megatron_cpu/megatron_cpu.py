"""Stands for the CUDA device that Megatron-core asks for: maps its calls to the CPU. Import it before megatron.

Devices and streams do nothing, `device="cuda"` (or an index) becomes the CPU, and `Tensor.type()` still answers
"torch.cuda.*Tensor", which Megatron uses as a key. `adapt_megatron` then replaces what needs Transformer Engine, a CUDA
generator, or the torch version that core_v0.12.1 was written for. Arithmetic and collectives (gloo) are real.
"""

import functools
from contextlib import nullcontext

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")
TENSOR_TYPES = ("Float", "Int", "Long", "Byte", "Double", "BFloat16")


class Stream:
    """A stream on which work is done at once."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, *args):
        pass

    def synchronize(self):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False


class CudaToCpu(TorchFunctionMode):
    """Replaces every CUDA device in the arguments of a torch function."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        device = kwargs.get("device")
        if device is not None and (isinstance(device, int) or str(device).startswith("cuda")):
            kwargs["device"] = CPU
        args = tuple(CPU if _is_cuda(value) else value for value in args)
        # `tensor.to(0)` and `module.to(0)`: an index is a device only there, elsewhere it is a number.
        position = {"to": 1, "_parse_to": 0}.get(getattr(function, "__name__", ""))
        if position is not None and len(args) > position and type(args[position]) is int:
            args = (*args[:position], CPU, *args[position + 1 :])
        return function(*args, **kwargs)


def _is_cuda(value):
    return isinstance(value, (str, torch.device)) and str(value).startswith("cuda")


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
    cuda.Stream = Stream
    cuda.current_stream = cuda.default_stream = lambda *args: Stream()
    cuda.stream = lambda stream: stream
    for name in TENSOR_TYPES:
        setattr(cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    torch.Tensor.cuda = torch.nn.Module.cuda = lambda self, *args, **kwargs: self
    torch.cpu.empty_cache = lambda: None
    torch.Tensor.type = _cuda_type_name
    CudaToCpu().__enter__()


class NoRngTracker:
    """Stands for the CUDA RNG tracker: tests use no dropout, and parameters are initialised with CPU generators."""

    def fork(self, *args, **kwargs):
        return nullcontext()

    def get_states(self):
        return {}

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
