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
"""Settings of patches, checked where a run begins: on the driver, before Ray or any worker is started.

Every patch with settings has a module here; where the patch is left out there is none. A module has

    SWITCHES              keys of its booleans, each from the root of the configuration
    check_values(config)  what no value of a setting can be; may be missing
    check(config)         what does not go together, as far as the configuration alone tells; may be missing

The last two raise ValueError, which names the key and what to set instead. All values come before all of the rest.

Hydra makes booleans of true and false only, in small or capital letters. What else looks like one on the command line
is text or a number (off, no, None, "false", 0), and Python takes any text but an empty one for true.
"""

import importlib
import json
import os
import pkgutil
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

from omegaconf import OmegaConf

# Text that was meant to be nothing, in small letters
SPELLED_NOTHING = ("", "none", "null", "off", "no", "false", "0")


def check_settings(config: Mapping) -> None:
    """Refuses a configuration that a run would fail with, or take for another, after its models have been loaded.

    Args:
        config: the whole configuration of an entry module, resolved or not.

    Raises:
        ValueError: names the key and what to set instead.
    """
    check_switches(config)
    for name in ("check_values", "check"):
        for module in _modules():
            if hasattr(module, name):
                getattr(module, name)(config)


def check_switches(config: Mapping) -> None:
    """Refuses switches that are neither True nor False; as `check_settings`, also for a part of the configuration."""
    for module in _modules():
        for key in module.SWITCHES:
            switch(config, key)


def switch(config: Mapping, key: str) -> bool:
    """Whether the switch is on. One that the configuration does not have is off.

    Raises:
        ValueError: it is neither True nor False.
    """
    value = setting(config, key, False)
    if not isinstance(value, bool):
        raise ValueError(f"{key}={value!r} is neither True nor False: write {key}=False for off, {key}=True for on")
    return value


def whole_number(config: Mapping, key: str, least: int, default: int) -> int:
    """A number of things.

    Raises:
        ValueError: it is no whole number, or below `least`.
    """
    value = setting(config, key, default)
    # A bool is an int to Python.
    if type(value) is not int or value < least:
        raise ValueError(f"{key}={value!r}: set it to a whole number, {least} or more")
    return value


def refuse_spelled_null(value: Any, key: str) -> None:
    """Raises ValueError for text where null was meant: `None` as Python spells it, `off` and the like."""
    if isinstance(value, str) and value.strip().lower() in SPELLED_NOTHING:
        raise ValueError(f"{key}={value!r} is text and sets {key.rpartition('.')[2]}: write {key}=null for nothing")


def setting(config: Mapping, key: str, default: Any = None) -> Any:
    """The value at a dotted key, `default` where the configuration has no such key.

    Raises:
        ValueError: something other than a section stands where the key has a section.
    """
    *sections, name = key.split(".")
    for depth, section in enumerate(sections):
        config = config.get(section)
        if config is None:
            return default
        if not isinstance(config, Mapping):
            above = ".".join(sections[: depth + 1])
            raise ValueError(f"{above}={config!r} is no section: leave it out, and set {key} if you mean that")
    return config.get(name, default)


def given_mapping(value: Any, key: str) -> dict[str, Any]:
    """A copy of a mapping among the engine's arguments, given as such, as JSON text, or not at all.

    Raises:
        ValueError: it is something else, with which nothing can be merged.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise ValueError(f"{key} is no JSON object: {error}") from error
    value = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        # compilation_config=3 stands for a mode, but only the engine can say which
        raise ValueError(f"{key} must be a mapping, and it is {value!r}")
    return dict(value)


def _modules() -> Iterator[ModuleType]:
    for found in sorted(pkgutil.iter_modules([os.path.dirname(__file__)]), key=lambda found: found.name):
        yield importlib.import_module(f"{__name__}.{found.name}")
