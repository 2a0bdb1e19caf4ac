"""Stands for CANN's Python binding, as far as Ray asks it what this machine has: PATCHCTL_NPUS devices, or one."""

from . import rt

__all__ = ["get_soc_name", "rt"]


def get_soc_name():
    return "Ascend910_9392"
