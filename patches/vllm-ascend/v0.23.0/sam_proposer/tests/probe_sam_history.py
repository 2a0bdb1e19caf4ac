"""Probe: SamProposer on requests that are played at random (sam_histories.py), without a model."""

import json

import npu_engine_0_23

npu_engine_0_23.prepare()

import sam_histories  # noqa: E402

print(json.dumps(sam_histories.history()))
