# Part of patchctl's patch delta_weight_update; not in upstream verl.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.
"""Settings that checkpoint_engine.backend=delta_in_place cannot work with: read on the driver, before Ray starts."""

ROLLOUT, MODEL, ACTOR = "actor_rollout_ref.rollout", "actor_rollout_ref.model", "actor_rollout_ref.actor"


def check_delta_weight_update(config) -> None:
    """Refuses what the update of changed weights does not cover.

    Raises:
        ValueError: with what to set instead.
    """
    rollout, model, actor = (config.actor_rollout_ref[name] for name in ("rollout", "model", "actor"))
    if rollout.checkpoint_engine.backend != "delta_in_place":
        return
    if rollout.name != "vllm":
        _refuse(f"it is for {ROLLOUT}.name=vllm, not {rollout.name}")
    if not (rollout.get("nnodes", 0) or (config.get("rollout", None) or {}).get("nnodes", 0)):
        _refuse(
            f"trainer and engine share their devices; set {ROLLOUT}.nnodes, or rollout.nnodes where the trainer has it"
        )
    if actor.strategy not in ("fsdp2", "megatron"):
        _refuse(f"weights of {actor.strategy} are not compared; set {ACTOR}.strategy=fsdp2, or train with megatron")
    for rank, given in (("lora.rank", model.get("lora", None) or {}), ("lora_rank", model)):
        if given.get(rank.rpartition(".")[2], 0) > 0:
            _refuse(f"adapters are not compared; set {MODEL}.{rank}=0")
    mtp = rollout.get("mtp", None) or {}
    if mtp.get("enable", False) and mtp.get("enable_rollout", False):
        _refuse(f"a drafter's weights are not compared; set {MODEL}.mtp.enable_rollout=False")
    given = (rollout.get("engine_kwargs", None) or {}).get("vllm", None) or {}  # which vLLM is given as it stands
    if rollout.get("quantization", None):
        _refuse(f"quantised weights are other than what is compared; set {ROLLOUT}.quantization=null")
    for key, fits in (
        ("quantization", None),
        ("dtype", "bfloat16"),
        ("data_parallel_size", 1),
        ("pipeline_parallel_size", 1),
    ):
        if given.get(key, None) not in (None, fits):
            _refuse(f"it is not for engines with {key}={given[key]}; remove {ROLLOUT}.engine_kwargs.vllm.{key}")
    if (actor.get("megatron", None) or {}).get("use_megatron_fsdp", False):
        _refuse(f"it was not tried with Megatron-FSDP; set {ACTOR}.megatron.use_megatron_fsdp=False")
    engine = "megatron" if actor.strategy == "megatron" else "fsdp_config"
    if (actor.get(engine, None) or {}).get("qat", {}).get("enable", False):
        _refuse(f"quantised weights are other than what is compared; set {ACTOR}.{engine}.qat.enable=False")
    if rollout.dtype != "bfloat16":
        _refuse(f"bfloat16 is what is compared; set {ROLLOUT}.dtype=bfloat16")
    for size in ("data_parallel_size", "pipeline_model_parallel_size"):
        if rollout[size] != 1:
            _refuse(f"it was not tried with engines of several groups; set {ROLLOUT}.{size}=1")
    if not rollout.free_cache_engine:
        _refuse(f"weights are laid out for loading when the engine wakes up; set {ROLLOUT}.free_cache_engine=True")
    if (rollout.get("disaggregation", None) or {}).get("enabled", False):
        _refuse(f"prefill and decoding are updated alike; set {ROLLOUT}.disaggregation.enabled=False")
    if rollout.get("npu_sleep_level", 1) != 1:
        _refuse(f"an engine that loses its weights has nothing to change; set {ROLLOUT}.npu_sleep_level=1")


def _refuse(why: str) -> None:
    raise ValueError(f"{ROLLOUT}.checkpoint_engine.backend=delta_in_place: {why}")
