"""As probe_on_0_23.py, with experts. Usage: probe_experts_on_0_23.py PROBE [ARGUMENT...]"""

import runpy
import sys

import npu_engine
import npu_experts_0_23

older = npu_engine.prepare


def prepare(device="A3"):
    npu_engine.prepare = older  # which the newer one calls
    npu_experts_0_23.prepare(device)


npu_engine.prepare = prepare
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
