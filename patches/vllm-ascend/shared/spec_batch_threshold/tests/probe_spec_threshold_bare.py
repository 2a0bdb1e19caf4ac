"""Probe: what a model runner that was made without its __init__, as upstream's tests make it, says of drafts.

Usage: probe_spec_threshold_bare.py MODULE   (the stand-in that prepares an engine)

Prints what take_draft_token_ids returns where nothing is drafted.
"""

import importlib
import json
import sys

importlib.import_module(sys.argv[1]).prepare()

from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # noqa: E402  (the platform must be prepared first)

runner = NPUModelRunner.__new__(NPUModelRunner)
runner.num_spec_tokens, runner._draft_token_ids = 0, None
print(json.dumps(runner.take_draft_token_ids()))
