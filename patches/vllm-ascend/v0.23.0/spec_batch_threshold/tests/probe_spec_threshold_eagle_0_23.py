"""The probe of v0.14.0rc1's engine with an EAGLE head, on vllm-ascend 0.23: what is prepared differs. Usage: as there."""

import os
import sys
from pathlib import Path

import npu_engine
import npu_engine_0_23
import torch

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
sys.path.append(str(Path(__file__).parents[3] / "v0.14.0rc1/spec_batch_threshold/tests"))
older = npu_engine.prepare


def prepare():
    npu_engine.prepare = older  # which the newer one calls
    npu_engine_0_23.prepare()
    torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)


npu_engine.prepare = prepare
import probe_spec_threshold_eagle  # noqa: E402, F401  (it runs when it is imported)
