"""Probe: a dummy step of a model runner that was made without its __init__, as upstream's tests make it.

Prints what ends it: the first call behind the preparations of the step.
"""

import json
from types import SimpleNamespace
from unittest.mock import MagicMock

import npu_engine_0_23

npu_engine_0_23.prepare()

import numpy as np  # noqa: E402  (the platform must be prepared first)
from vllm.config import CUDAGraphMode  # noqa: E402
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # noqa: E402

runner = NPUModelRunner.__new__(NPUModelRunner)
runner.uniform_decode_query_len = 1
runner.scheduler_config = SimpleNamespace(max_num_batched_tokens=8, max_num_seqs=8)
runner.dynamic_eplb, runner.pcp_size, runner.dcp_size, runner.speculative_config = False, 1, 1, None
runner.use_compress, runner._has_gdn = True, False
batch = SimpleNamespace(num_tokens=1, num_reqs=1)
runner._determine_batch_execution_and_padding = MagicMock(return_value=(CUDAGraphMode.NONE, batch, None, None, None))
runner._get_cumsum_and_arange = MagicMock(return_value=np.array([1], dtype=np.int32))
runner._should_build_dummy_attn_metadata = MagicMock(side_effect=RuntimeError("it is prepared"))
try:
    runner._dummy_run(1)
except (RuntimeError, AttributeError) as error:
    print(json.dumps(str(error)))
