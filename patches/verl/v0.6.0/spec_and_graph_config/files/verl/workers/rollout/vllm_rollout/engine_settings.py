# Copyright 2025 Individual Contributor: patchctl
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
"""The engine's arguments for graph mode, capture sizes, speculative decoding and npugraph_ex of a vllm rollout.

Both rollouts use it: the synchronous one hands the arguments to vllm's LLM, the server writes them as options of
`vllm serve`. What needs no engine has been checked before, in verl/workers/config/engine_settings.py.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vllm.platforms import current_platform

from verl.utils.settings_checks import given_mapping
from verl.workers.config.engine_settings import (
    ENGINE_KEY,
    KEY,
    MODE_KEY,
    capture_sizes,
    npugraph_ex_settings,
    speculating,
    speculative_settings,
)


def engine_settings(config: Mapping, engine_kwargs: dict[str, Any]) -> dict[str, Any]:
    """What the settings add to the engine's arguments: compilation_config, speculative_config, additional_config.

    Args:
        config: RolloutConfig, or RewardModelConfig, which declares the capture sizes only.
        engine_kwargs: the user's own arguments. A mapping there with which settings are merged is taken out of it.

    Returns:
        Dictionaries by argument name, without those for which nothing is set.

    Raises:
        ValueError: the installed engine cannot do what is set.
    """
    settings = {}
    if graphs := _graph_settings(config):
        settings["compilation_config"] = _merged("compilation_config", engine_kwargs, graphs)
    if speculating(config):
        settings["speculative_config"] = _known_keys(speculative_settings(config))
    npugraph_ex = npugraph_ex_settings(config)
    if npugraph_ex and npugraph_ex.enable:
        _check_ascend()
        ascend = {"npugraph_ex_config": {key: npugraph_ex[key] for key in ("enable", "enable_static_kernel")}}
        settings["additional_config"] = _merged("additional_config", engine_kwargs, ascend)
    return settings


def server_options(config: Mapping, engine_kwargs: dict[str, Any]) -> dict[str, str]:
    """As engine_settings, with each dictionary as the JSON text that an option of `vllm serve` takes."""
    return {name: json.dumps(value) for name, value in engine_settings(config, engine_kwargs).items()}


def requested_logprobs(config: Mapping) -> int | None:
    """SamplingParams.logprobs of the synchronous rollout: 0 asks for those of the sampled tokens, as upstream does.

    With speculation they are asked for only when read: vllm then sorts out a row of logits for each drafted token.
    """
    return None if speculating(config) and not config.calculate_log_probs else 0


def _graph_settings(config: Mapping) -> dict[str, Any]:
    if config.enforce_eager:
        return {}
    settings = {}
    if sizes := capture_sizes(config):
        settings["cudagraph_capture_sizes"] = sizes
    if (mode := config.get("cudagraph_mode")) is not None:
        settings["cudagraph_mode"] = _known_mode(mode)
    return settings


def _known_mode(mode: str) -> str:
    try:
        from vllm.config import CUDAGraphMode
    except ImportError as error:
        raise ValueError(f"{MODE_KEY}={mode}: this vllm has no graph modes; unset it") from error
    if str(mode).upper() not in CUDAGraphMode.__members__:
        raise ValueError(f"{MODE_KEY}={mode}: this vllm knows {', '.join(CUDAGraphMode.__members__)}")
    return str(mode).upper()


def _merged(name: str, engine_kwargs: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    """The user's mapping, taken out of the arguments, with our keys; the configuration has no key twice by now."""
    return given_mapping(engine_kwargs.pop(name, None), f"{ENGINE_KEY}.{name}") | ours


def _check_ascend() -> None:
    if current_platform.device_type != "npu":
        raise ValueError(
            f"{KEY}.npugraph_ex needs vllm-ascend, and this vllm's device is {current_platform.device_type}: "
            f"set {KEY}.npugraph_ex.enable=False"
        )


def _known_keys(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings again. vllm would leave out a key that it does not know without a word."""
    from vllm.config import SpeculativeConfig

    known = {field.name for field in fields(SpeculativeConfig)}
    if unknown := settings.keys() - known:
        raise ValueError(
            f"{KEY}.speculative_config: this vllm does not know {', '.join(sorted(unknown))}; "
            f"it knows {', '.join(sorted(known))}"
        )
    return settings
