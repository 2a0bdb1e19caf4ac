"""Probe: the HCCL options that vllm-ascend gives to the process groups it makes.

Usage: probe_hccl_options.py groups MODEL JSON...      one process a rank; the groups of a worker, made over gloo
       probe_hccl_options.py configs MODEL JSON...     one engine configuration after another in this process
The JSON is `additional_config`.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch_npu
from vllm.config import set_current_vllm_config
from vllm.engine.arg_utils import EngineArgs
from vllm_ascend.utils import adapt_patch, get_hccl_config_for_pg_options

ENGINE = {"dtype": "float32", "max_model_len": 256, "max_num_seqs": 4, "max_num_batched_tokens": 256}


class HcclOptions:
    """Stands for torch_npu's ProcessGroupHCCL.Options: `hccl_config` takes the keys that its documentation lists."""

    KEYS = ("hccl_buffer_size", "group_name", "qos_service_level", "qos_traffic_class", "hccl_op_expansion_mode")
    __slots__ = ("_config",)

    def __init__(self):
        self._config = None

    @property
    def hccl_config(self):
        return self._config

    @hccl_config.setter
    def hccl_config(self, config):
        if unknown := sorted(set(config).difference(self.KEYS)):
            raise ValueError(f"HCCL has no option {unknown}")
        self._config = dict(config)


def engine_config(model, additional, **options):
    args = EngineArgs(model=model, tokenizer=model, additional_config=additional, **ENGINE, **options)
    return args.create_engine_config()


def recorded_groups():
    """Passes every call on to torch.distributed.new_group, and keeps the options by the group that came back."""
    made, new_group = {}, dist.new_group

    def recording_new_group(*args, pg_options=None, **kwargs):
        # Gloo takes no HCCL options; over HCCL they would go where they are recorded.
        group = new_group(*args, **kwargs)
        if isinstance(pg_options, HcclOptions):
            made[group] = pg_options.hccl_config
        return group

    dist.new_group = recording_new_group
    return made


def groups(model, additional):
    """Makes a worker's process groups in vllm-ascend's order (NPUWorker._init_worker_distributed_environment)."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    config = engine_config(
        model,
        json.loads(additional),
        tensor_parallel_size=world,
        enable_expert_parallel=True,
        distributed_executor_backend="external_launcher",
    )
    # torch asks for the NPU's device in a barrier; the groups of this probe are gloo's.
    torch._C._get_accelerator = lambda: torch.device("cpu")
    adapt_patch()
    # Last, because importing a module below torch_npu._C replaces what was set there.
    torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options = HcclOptions
    made = recorded_groups()
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment, parallel_state
    from vllm_ascend.distributed.parallel_state import get_mc2_group, init_ascend_model_parallel

    with set_current_vllm_config(config):
        init_distributed_environment(world, rank, "env://", rank, "gloo")
        ensure_model_parallel_initialized(world, 1)
        init_ascend_model_parallel(config.parallel_config)
    named = {name: getattr(parallel_state, f"get_{name}_group")() for name in ("world", "tp", "pp", "dp", "ep")}
    options = {name: made.get(group.device_group, "no HCCL group") for name, group in named.items()}
    options["mc2"] = made.get(get_mc2_group().device_group, "no HCCL group")
    dist.destroy_process_group()
    return options


def configs(model, *additional):
    """The options of the tensor parallel and some other groups, for each configuration, or the error it gave."""
    return [_config(model, json.loads(one)) for one in additional]


def _config(model, additional):
    try:
        config = engine_config(model, additional)
    except ValueError as error:
        return {"refused": "configuration", "error": str(error)}
    try:
        with set_current_vllm_config(config):
            return {name: get_hccl_config_for_pg_options(name) for name in ("tp", "dp", "ep", "pp", "world", "mc2")}
    except ValueError as error:
        return {"refused": "group", "error": str(error)}


if __name__ == "__main__":
    print(json.dumps({"groups": groups, "configs": configs}[sys.argv[1]](*sys.argv[2:])))
