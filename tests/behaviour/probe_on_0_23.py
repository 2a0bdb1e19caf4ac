"""Runs a probe that was written for the engine of vllm 0.14 on vllm 0.23 with vllm-ascend 0.23: only what is prepared
differs. Usage: probe_on_0_23.py PROBE [ARGUMENT...]"""

import os
import runpy
import sys

import npu_engine
import npu_engine_0_23
import torch

older = npu_engine.prepare
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}


def prepare():
    npu_engine.prepare = older  # which the newer one calls
    npu_engine_0_23.prepare()
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


npu_engine.prepare = prepare
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
