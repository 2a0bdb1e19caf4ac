"""The stand-in for MindSpeed's adaptor, of whichever release is about to be imported."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path


def before_adaptor():
    """What has to be in place when MindSpeed's adaptor is imported."""
    import mindspeed_on_cpu

    if _has_kernels() and find_spec("triton") is None:
        import triton_names

        triton_names.install()
        # vllm looks for it in the same process, finds no backends below it, and goes without.
        sys.modules["triton"].__spec__ = ModuleSpec("triton", None)
    mindspeed_on_cpu.before_adaptor()


def after_adaptor(adaptor):
    """It was imported. A whole training step runs, with reference operators."""
    import mindspeed_on_cpu

    mindspeed_on_cpu.after_adaptor(adaptor)
    if _has_kernels():
        import grouped_linear_ops

        grouped_linear_ops.install()


def _has_kernels():
    """Whether MindSpeed has kernels of triton, which its adaptor imports: from core_r0.16.0 on."""
    return (Path(find_spec("mindspeed").origin).parent / "ops" / "triton").is_dir()
