"""Probe: requests of one prompt with LoRA adapters of their own, and what experts may take where sam drafts.

Usage: probe_sam_adapters.py MODEL. No engine is made: requests are played on vllm-ascend's own input batch, as in
sam_histories.py, in groups; configurations are vllm's.
"""

import json
import os
import sys
from dataclasses import replace

import npu_engine

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
npu_engine.prepare()

from sam_histories import Play, merged  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402
from vllm.lora.request import LoRARequest  # noqa: E402
from vllm_ascend.utils import speculative_enable_dispatch_gmm_combine_decode  # noqa: E402

MODEL = sys.argv[1]
DRAFTERS = {
    "none": None,
    "ngram": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 2},
    "sam": {"method": "sam", "num_speculative_tokens": 3},
}


class Apart(Play):
    """Drafts are shared in groups, and each request has an adapter that no other has: it drafts as if it were alone."""

    def __init__(self, seed):
        super().__init__(seed, share=True)
        self.share = False  # what its drafts are compared with
        self.adapters = 0

    def _new(self, name):
        self.adapters += 1
        adapter = LoRARequest(name, self.adapters, "none")
        return replace(super()._new(name), prompt_token_ids=self.random.choice(self.prompts), lora_request=adapter)

    def _take_back(self):
        """Nothing: a group keeps for its members what one of them has lost."""


def fused(speculation):
    """Whether experts of a decode step may take the operator of VLLM_ASCEND_ENABLE_FUSED_MC2=2, as far as drafts go."""
    config = EngineArgs(
        MODEL, dtype="float32", max_model_len=128, speculative_config=speculation
    ).create_engine_config()
    return speculative_enable_dispatch_gmm_combine_decode(config)


print(
    json.dumps(
        {
            "fused": {name: fused(speculation) for name, speculation in DRAFTERS.items()},
            "apart": merged([Apart(seed).course(120) for seed in range(6)]),
        }
    )
)
