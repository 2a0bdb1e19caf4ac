# Part of patchctl's patch npu_sleep_level; not in upstream verl.
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
"""Settings that rollout.npu_sleep_level=2 cannot work with: read on the driver, before Ray starts."""

import json

ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"
WITHOUT_WEIGHTS = ("ngram", "ngram_gpu", "suffix", "custom_class")  # what of vLLM drafts without a model


def check_npu_sleep_level(config) -> None:
    """Refuses level 2 where an update does not bring all that the engine lets go of.

    Raises:
        ValueError: with what to set instead.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    level = rollout.get("npu_sleep_level", 1)
    if isinstance(level, bool) or level not in (1, 2):
        raise ValueError(f"{ROLLOUT}.npu_sleep_level={level!r} is neither 1 nor 2")
    if level == 1:
        return
    if rollout.name != "vllm":
        _refuse(f"it is for {ROLLOUT}.name=vllm, not {rollout.name}")
    if not rollout.free_cache_engine:
        _refuse(f"the engine never sleeps; set {ROLLOUT}.free_cache_engine=True")
    lora = model.get("lora", None) or {}
    if not lora.get("merge", False) and (lora.get("rank", 0) > 0 or model.get("lora_rank", 0) > 0):
        _refuse(f"adapters alone are updated; set {MODEL}.lora.merge=True")
    mtp = rollout.get("mtp", None) or {}
    if mtp.get("enable", False) and mtp.get("enable_rollout", False):
        _refuse("a drafter has weights of its own, which no update brings; leave the level at 1")
    if rollout.get("quantization", None):
        _refuse(f"scales of quantised weights are not updated; set {ROLLOUT}.quantization=null")
    given = (rollout.get("engine_kwargs", None) or {}).get("vllm", None) or {}  # which vLLM is given as it stands
    if given.get("quantization", None):
        _refuse(f"scales of quantised weights are not updated; remove {ROLLOUT}.engine_kwargs.vllm.quantization")
    drafter = given.get("speculative_config", None) or {}
    drafter = json.loads(drafter) if isinstance(drafter, str) else drafter
    if drafter and (drafter.get("method", None) or drafter.get("model", None)) not in WITHOUT_WEIGHTS:
        key = f"{ROLLOUT}.engine_kwargs.vllm.speculative_config"
        _refuse(f"a drafter has weights of its own, which no update brings; remove {key}")


def _refuse(why: str) -> None:
    raise ValueError(f"{ROLLOUT}.npu_sleep_level=2: {why}")
