"""Probe: runs verl's conversion script, as a program, on a CPU, once a job.

Usage: probe_grouped_convert.py SCRIPT JOBS   (with several processes: a pipeline stage each)
JOBS is JSON: [{"model": folder, "output": folder, "options": [...]}]. Prints for each
{"error": the refusal or null, "record": the layout in the checkpoint, "keys": {key: shape}}.
"""

import json
import runpy
import sys

import mindspeed_on_cpu

mindspeed_on_cpu.install()

import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402

SCRIPT, JOBS = sys.argv[1:]


def described(path):
    tensors = dist_checkpointing.load_tensors_metadata(path)
    record = dist_checkpointing.load_common_state_dict(path).get("expert_weights_layout")
    return {"record": record, "keys": {key: list(tensor.global_shape) for key, tensor in tensors.items()}}


def convert(job):
    mindspeed_on_cpu.forget_attention_backend()
    sys.argv = [SCRIPT, "--hf_model_path", job["model"], "--output_path", job["output"], *job["options"]]
    error = None
    try:
        runpy.run_path(SCRIPT, run_name="__main__")
    except (ValueError, AssertionError) as refusal:
        error = str(refusal)
    found = {"record": None, "keys": {}} if error else described(job["output"])
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    return {"error": error, **found}


def main():
    print(json.dumps([convert(job) for job in json.loads(JOBS)]))


main()
