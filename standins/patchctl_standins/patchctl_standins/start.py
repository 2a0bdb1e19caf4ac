"""Run when Python starts in an environment that has this package: at_start, and what it does not list.

at_start is a file that the records of proven patches rest on (docs/evidence); what is added here makes none of them anew.
"""

from . import at_start

at_start.AFTER.setdefault("vllm_ascend.sample.rejection_sampler", "patchctl_standins.pinned:leave_out")
