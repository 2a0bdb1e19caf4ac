"""What `make demo` asks for beside the stand-ins, so that a run of a dozen processes fits two cores (PATCHCTL_STANDINS_WATCH, which has
the last word on what is called for a module; scripts/demo/run.py).

`engine.prepare_on_import` imports vllm-ascend's worker to change it, and so adds 13 CPU seconds to `import vllm` 0.23. verl v0.9.0 imports
vllm for its types in nearly all of its processes, and only those of the engines have a worker: here the worker's import is waited for.
"""

import functools
import gc
import sys

from .engine import prepare_on_import


def vllm_imported(vllm):
    """What the process of a server asks of the device, where an engine's configuration is made. An engine of vllm 0.14 is in the
    process that imports it, and is prepared at once."""
    if _in_process(vllm):
        prepare_on_import(vllm)
        return
    import npu_engine
    import npu_training_0_9

    npu_engine._device_answers(npu_engine.SOC_VERSIONS["A3"])
    npu_training_0_9._accelerator_answers()


def platform_imported(platform):
    """vllm asks once whether memory can be pinned, before the worker is imported, and keeps the answer."""
    platform.NPUPlatform.is_pin_memory_available = classmethod(lambda cls: False)


def worker_imported(worker):
    """All of it, before the worker is made."""
    if not _in_process(sys.modules["vllm"]):
        prepare_on_import(sys.modules["vllm"])


def workers_imported(engine_workers):
    """verl collects garbage at each switch between training and generation. What was imported until then is none, and looking through
    it took half a second each time."""
    gc.freeze()


def replay_buffer_imported(replay_buffer):
    """verl looks every two seconds whether a step's answers are there, by default and with no key for it; these take two."""
    made = replay_buffer.ReplayBuffer.__init__
    replay_buffer.ReplayBuffer.__init__ = functools.partialmethod(made, poll_interval=0.2)


def _in_process(vllm):
    return vllm.__version__.startswith("0.14.")
