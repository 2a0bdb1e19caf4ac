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

import asyncio
from types import SimpleNamespace

import pytest
from hydra import compose, initialize_config_module

pytest.importorskip("vllm")

from verl.utils.config import omega_conf_to_dataclass
from verl.utils.npu_sleep_level import check_npu_sleep_level
from verl.workers.rollout.vllm_rollout import vllm_async_server

ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"


def _config(*overrides):
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=[f"{ROLLOUT}.name=vllm", *overrides])


@pytest.mark.parametrize("level", [1, 2])
def test_level_reaches_the_rollout_config(level):
    config = _config(f"{ROLLOUT}.npu_sleep_level={level}")
    check_npu_sleep_level(config)
    assert omega_conf_to_dataclass(config.actor_rollout_ref.rollout).npu_sleep_level == level


def test_default_is_level_1():
    assert omega_conf_to_dataclass(_config().actor_rollout_ref.rollout).npu_sleep_level == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{ROLLOUT}.npu_sleep_level=3", "neither 1 nor 2"),
        (f"{ROLLOUT}.npu_sleep_level=True", "neither 1 nor 2"),
        (f"{ROLLOUT}.name=sglang", "name=vllm"),
        (f"{ROLLOUT}.free_cache_engine=False", "free_cache_engine=True"),
        (f"{MODEL}.lora_rank=8", "lora.merge=True"),
        (f"{ROLLOUT}.quantization=fp8", "quantization=null"),
        (f"+{ROLLOUT}.engine_kwargs.vllm.quantization=ascend", "remove"),
        (f"+{ROLLOUT}.engine_kwargs.vllm.speculative_config.method=eagle3", "remove"),
    ],
)
def test_level_2_is_refused_where_an_update_does_not_bring_everything(override, message):
    config = _config(f"{ROLLOUT}.npu_sleep_level=2", override)
    with pytest.raises(ValueError, match=message):
        check_npu_sleep_level(config)


@pytest.mark.parametrize(
    ("on_npu", "configured", "asked"), [(True, 1, 1), (True, 2, 2), (False, 1, 2)], ids=["npu-1", "npu-2", "gpu"]
)
def test_engine_is_asked_for_the_level(monkeypatch, on_npu, configured, asked):
    monkeypatch.setattr(vllm_async_server, "is_torch_npu_available", lambda check_device=False: on_npu)
    levels = []

    async def sleep(level):
        levels.append(level)

    async def nothing():
        pass

    server = object.__new__(vllm_async_server.vLLMHttpServer)
    server.config = SimpleNamespace(mtp=None, npu_sleep_level=configured)
    server.model_config = SimpleNamespace(lora_rank=0, lora={})
    server.engine = SimpleNamespace(sleep=sleep, reset_encoder_cache=nothing)
    asyncio.run(server._sleep_hybrid())
    assert levels == [asked]
