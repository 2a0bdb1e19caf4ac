"""Stands for CANN's Python binding, as far as Ray asks it how many NPUs this machine has: PATCHCTL_NPUS, or one."""

import os
from types import SimpleNamespace


def device_count():
    return int(os.environ.get("PATCHCTL_NPUS", "1"))


def get_soc_name():
    return "Ascend910_9392"


rt = SimpleNamespace(get_device_count=lambda: (device_count(), 0))
