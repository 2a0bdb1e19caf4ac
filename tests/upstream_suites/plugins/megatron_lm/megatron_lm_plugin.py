"""A pytest plugin (-p): Megatron-LM's own tests on one CPU, with gloo in the place of nccl.

The stand-in megatron_cpu answers for CUDA and this folder's transformer_engine for Transformer Engine. The CUDA
generator is the CPU's, so that Megatron's own tracker of generator states runs.
"""

import datetime
import os
import sys
import unittest.mock

import megatron_cpu
import torch
import torch.distributed
import torch.utils.checkpoint

# A rank whose test failed does not come to what the others wait for.
WAIT = datetime.timedelta(seconds=30)


class CpuGenerator:
    """In the place of the list of CUDA's generators: the CPU's, whatever the index."""

    def __getitem__(self, index):
        return torch.default_generator


class Event:
    """An event that has always happened already."""

    def __init__(self, *args, **settings):
        pass

    def record(self, *args):
        pass

    def wait(self, *args):
        pass

    def synchronize(self):
        pass

    def elapsed_time(self, other):
        return 0.0


def _use_cpu_generator():
    """One generator for both: what Megatron saves, forks and restores of CUDA's is that of the CPU."""
    cuda = torch.cuda
    cuda.default_generators = CpuGenerator()
    cuda._lazy_call = lambda call, **settings: call()
    cuda._lazy_init = lambda: None
    cuda.initial_seed = torch.initial_seed
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
        module.manual_seed = module.manual_seed_all = lambda seed: torch.default_generator.manual_seed(seed)


def _use_one_device():
    cuda = torch.cuda
    cuda.Event = Event
    cuda.device_count = lambda: int(os.environ["WORLD_SIZE"])
    cuda.is_available = lambda: True
    cuda.get_device_capability = lambda *args: (8, 0)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved"):
        setattr(cuda, name, lambda *args, **settings: 0)
    # A barrier asks which accelerator there is.
    torch._C._get_accelerator = lambda *args: torch.device("cpu")


def _use_gloo():
    start, group = torch.distributed.init_process_group, torch.distributed.new_group

    def start_with_gloo(backend=None, timeout=None, **settings):
        return start("gloo", timeout=WAIT, **settings)

    def group_with_gloo(ranks=None, timeout=None, backend=None, pg_options=None, **settings):
        return group(ranks, timeout=WAIT, backend="gloo", **settings)

    torch.distributed.init_process_group, torch.distributed.new_group = start_with_gloo, group_with_gloo


def _use_newer_packages():
    """Megatron with torch 2.13 and numpy 2, as in the behaviour tests, but with its own tracker of generator states."""
    import megatron.core.tensor_parallel.random as rng

    megatron_cpu.adapt_megatron()
    rng._CUDA_RNG_STATE_TRACKER, rng._CUDA_RNG_STATE_TRACKER_INITIALIZED = None, False


# The package is what the standard library has as unittest.mock; tests import it by its old name.
sys.modules.setdefault("mock", unittest.mock)
_use_cpu_generator()
_use_one_device()
_use_gloo()
_use_newer_packages()
