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
"""Graph mode, capture sizes and speculative decoding of a vllm rollout: what can be checked without vllm.

Importing this needs no engine, so that the driver can read a configuration. `engine_settings.py` beside the vllm
rollout makes the engine's arguments of it.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl.base_config import BaseConfig
from verl.utils.settings_checks import given_mapping, refuse_spelled_null

__all__ = ["NpugraphExConfig"]

KEY = "actor_rollout_ref.rollout"
ENGINE_KEY = f"{KEY}.engine_kwargs.vllm"
MODE_KEY, SIZES_KEY = (f"{KEY}.{name}" for name in ("cudagraph_mode", "cudagraph_capture_sizes"))
# vllm-ascend turns npugraph_ex off in every other mode, in the log only (platform.py, check_and_update_config).
FULL_GRAPHS = ("FULL", "FULL_DECODE_ONLY")
# Names of vllm's CUDAGraphMode, up to 0.14.1
MODES = ("NONE", "PIECEWISE", *FULL_GRAPHS, "FULL_AND_PIECEWISE")
SPECULATIVE_TEXTS = ("method", "model")
SPECULATIVE_NUMBERS = ("num_speculative_tokens", "prompt_lookup_max", "prompt_lookup_min")


@dataclass
class NpugraphExConfig(BaseConfig):
    """vllm-ascend's npugraph_ex backend, off unless `enable`.

    enable_static_kernel compiles operators for each capture size: minutes of start-up.
    """

    enable: bool = False
    enable_static_kernel: bool = False


def check_engine_settings(config: Mapping) -> None:
    """Refuses settings that contradict each other or that the engine would leave unused.

    Raises:
        ValueError: names the keys and what to set instead.
    """
    _check_values(config)
    ours = settings_of_ours(config)
    if ours and config.name != "vllm":
        raise ValueError(f"{', '.join(ours)} need {KEY}.name=vllm, and it is {config.name}")
    # Other engines have never read capture sizes.
    sizes = capture_sizes(config) if config.name == "vllm" else None
    if sizes and config.enforce_eager:
        # Upstream's own field: it goes on being ignored, but no longer without a word.
        warnings.warn(f"{SIZES_KEY} is not used with enforce_eager=True", stacklevel=2)
        sizes = None
    if not ours and not sizes:
        return
    graphs = [key for key in ours if not key.endswith("speculative_config")]
    if graphs and config.enforce_eager:
        raise ValueError(f"{', '.join(graphs)}: there are no graphs with {KEY}.enforce_eager=True; set it to False")
    if sizes and graph_mode(config) == "NONE":
        raise ValueError(f"{SIZES_KEY}={sizes} is not used with cudagraph_mode=NONE: unset one of them")
    speculative_settings(config)
    _check_npugraph_ex(config)
    _check_given_once(config, sizes)


def _check_values(config: Mapping) -> None:
    """Refuses values that are none of the setting's, above all text that was meant to be null."""
    mode, key = config.get("cudagraph_mode"), MODE_KEY
    # NONE is a mode, without graphs; None, as Python spells it, was meant to leave the mode to vllm.
    if mode != "NONE":
        refuse_spelled_null(mode, key)
        if mode is not None and str(mode).upper() not in MODES:
            raise ValueError(f"{key}={mode}: set it to one of {', '.join(MODES)}, or to null to leave it to vllm")
    speculative = config.get("speculative_config")
    if speculative is not None and not isinstance(speculative, Mapping):
        raise ValueError(f"{KEY}.speculative_config={speculative!r} is no section: leave it out, or set its method")
    for name, value in (speculative or {}).items():
        key = f"{KEY}.speculative_config.{name}"
        refuse_spelled_null(value, key)
        if value is not None and name in SPECULATIVE_TEXTS and not isinstance(value, str):
            raise ValueError(f"{key}={value!r} is no name: write {key}=null for none")
        if value is not None and name in SPECULATIVE_NUMBERS and _positive_integer(value) is None:
            raise ValueError(f"{key}={value!r}: set it to a whole number, 1 or more, or to null")


def settings_of_ours(config: Mapping) -> list[str]:
    """The keys that are set among cudagraph_mode, speculative_config and npugraph_ex."""
    npugraph_ex = npugraph_ex_settings(config)
    given = {
        "cudagraph_mode": config.get("cudagraph_mode") is not None,
        "speculative_config": speculating(config),
        "npugraph_ex": bool(npugraph_ex and (npugraph_ex.enable or npugraph_ex.enable_static_kernel)),
    }
    return [f"{KEY}.{name}" for name, is_set in given.items() if is_set]


def npugraph_ex_settings(config: Mapping) -> NpugraphExConfig | None:
    """The settings as a dataclass; None for a configuration that does not declare them, as RewardModelConfig."""
    given = config.get("npugraph_ex")
    return NpugraphExConfig(**given) if type(given) is dict else given


def _check_npugraph_ex(config: Mapping) -> None:
    npugraph_ex = npugraph_ex_settings(config)
    if npugraph_ex and npugraph_ex.enable_static_kernel and not npugraph_ex.enable:
        raise ValueError(f"{KEY}.npugraph_ex.enable_static_kernel needs {KEY}.npugraph_ex.enable=True")
    if npugraph_ex and npugraph_ex.enable and graph_mode(config) not in FULL_GRAPHS:
        raise ValueError(
            f"{KEY}.npugraph_ex.enable works with full graphs only, and cudagraph_mode is {graph_mode(config)}: "
            f"set {MODE_KEY}=FULL_DECODE_ONLY"
        )


def _check_given_once(config: Mapping, sizes: list[int] | None) -> None:
    """An argument of the engine is read only where settings are merged into it; else it may have any form."""
    engine = config.get("engine_kwargs", {}).get("vllm") or {}
    if speculating(config) and engine.get("speculative_config"):
        raise _given_twice("speculative_config", "speculative_config")
    if sizes or config.get("cudagraph_mode") is not None:
        _check_graphs_given_once(config, sizes, engine)
    npugraph_ex = npugraph_ex_settings(config)
    if npugraph_ex and npugraph_ex.enable:
        additional = given_mapping(engine.get("additional_config"), f"{ENGINE_KEY}.additional_config")
        if "npugraph_ex_config" in additional:
            raise _given_twice("npugraph_ex", "additional_config.npugraph_ex_config")


def _check_graphs_given_once(config: Mapping, sizes: list[int] | None, engine: Mapping) -> None:
    graphs = given_mapping(engine.get("compilation_config"), f"{ENGINE_KEY}.compilation_config")
    if config.get("cudagraph_mode") is not None and "cudagraph_mode" in graphs:
        raise _given_twice("cudagraph_mode", "compilation_config", "cudagraph_mode")
    if sizes and "cudagraph_capture_sizes" in graphs:
        raise _given_twice("cudagraph_capture_sizes", "compilation_config", "cudagraph_capture_sizes")
    for name in ("cudagraph_capture_sizes", "cuda_graph_sizes"):  # the engine's own arguments, in new and old vllm
        if sizes and engine.get(name):
            raise _given_twice("cudagraph_capture_sizes", name)


def _given_twice(ours: str, *engine: str) -> ValueError:
    return ValueError(f"{KEY}.{ours} and {'.'.join([ENGINE_KEY, *engine])} are both set: remove one")


def speculating(config: Mapping) -> bool:
    """Whether any key of speculative_config is set."""
    return any(value is not None for value in (config.get("speculative_config") or {}).values())


def speculative_settings(config: Mapping) -> dict[str, Any]:
    """What vllm's SpeculativeConfig is given: the keys that are not null, undeclared ones too; {} when off."""
    settings = {key: value for key, value in (config.get("speculative_config") or {}).items() if value is not None}
    if settings and "method" not in settings and "model" not in settings:
        raise ValueError(f"{KEY}.speculative_config sets {', '.join(settings)}: set its method or model too")
    return settings


def graph_mode(config: Mapping) -> str | None:
    """The name of the graph mode, from cudagraph_mode or the engine's own arguments; None when left to vllm."""
    mode = config.get("cudagraph_mode")
    if mode is None:
        engine = config.get("engine_kwargs", {}).get("vllm") or {}
        mode = given_mapping(engine.get("compilation_config"), f"{ENGINE_KEY}.compilation_config").get("cudagraph_mode")
    return mode.upper() if isinstance(mode, str) else mode


def capture_sizes(config: Mapping) -> list[int] | None:
    """Batch sizes in tokens for which graphs are captured, from a sequence or from text as "1,2,4" or "[1,2,4]".

    Raises:
        ValueError: there is something else than positive integers in it.
    """
    given = config.get("cudagraph_capture_sizes")
    if given is None or given == "" or given == []:
        return None
    parts = given.strip().removeprefix("[").removesuffix("]").split(",") if isinstance(given, str) else given
    if isinstance(parts, Sequence):
        numbers = [_positive_integer(part) for part in parts]
        if None not in numbers:
            return numbers or None
    raise ValueError(f"{SIZES_KEY} must be positive integers as in [1,2,4], or null, and it is {given!r}")


def _positive_integer(part: Any) -> int | None:
    """The number, or None for what is none. A bool is an int to Python, but no size."""
    text = part.strip() if isinstance(part, str) else str(part)
    return int(text) if text.isascii() and text.isdecimal() and int(text) > 0 else None
