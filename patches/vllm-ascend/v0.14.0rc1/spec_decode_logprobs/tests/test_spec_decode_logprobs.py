"""spec_decode_logprobs: with speculation each token comes with its own log-probability."""

from __future__ import annotations

import pytest
from harness import Upstream
from models import TinyModels

PROBE = "probe_spec_decode_logprobs.py"
STANDINS = ["torch_npu", "npu_engine", "vllm-cpu-dist-info", "vllm-ascend-dist-info"]
TOLERANCE = 1e-5  # float32, against Hugging Face's implementation


@pytest.mark.on
def test_log_probs_equal_those_of_the_model(upstream: Upstream, tiny_models: TinyModels) -> None:
    env = {"VLLM_ASCEND_ENABLE_NZ": "0"}
    out = upstream.run(PROBE, tiny_models.qwen3, need=["vllm-ascend", "vllm"], standins=STANDINS, env=env, timeout=240)
    assert out["accepted"] > 0
    assert [answer["tokens"] for answer in out["answers"]] == [40, 24, 32]
    assert max(answer["difference"] for answer in out["answers"]) < TOLERANCE
