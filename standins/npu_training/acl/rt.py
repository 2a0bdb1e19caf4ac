"""The runtime: how many devices there are. There is no memory of a device to copy."""

import os


def get_device_count():
    """(the number, 0 for success)"""
    return int(os.environ.get("PATCHCTL_NPUS", "1")), 0


def memcpy(*args):
    raise NotImplementedError("there is no NPU whose memory could be copied")
