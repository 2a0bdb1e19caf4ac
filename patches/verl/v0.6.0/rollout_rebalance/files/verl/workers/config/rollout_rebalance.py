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
"""The configuration of rollout_rebalance, as far as it can be checked without an engine.

Importing this needs no engine, so that the driver can read a configuration.
"""

from collections.abc import Mapping, Sequence
from typing import Any

KEY = "actor_rollout_ref.rollout.rollout_rebalance"
ROLLOUT = "actor_rollout_ref.rollout"


def check_values(settings: Mapping[str, Any]) -> None:
    """Refuses values of RolloutRebalanceConfig that make no sense.

    Args:
        settings: interval, engine steps between two plans; graph_sizes, batch sizes in tokens that a graph exists for,
            empty for the engine's own capture sizes; staging_megabytes, the largest buffer of KV blocks on their way,
            of sender and receiver each, in 2**20 bytes (the sender has them twice while it packs them).

    Raises:
        ValueError: names the key and what to set instead.
    """
    for name in ("interval", "staging_megabytes"):
        if not _positive(settings[name]):
            raise ValueError(f"{KEY}.{name}={settings[name]}: set it to a whole number, 1 or more")
    sizes = settings["graph_sizes"]
    # Text is a sequence too, of its letters.
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not all(_positive(size) for size in sizes):
        raise ValueError(f"{KEY}.graph_sizes={sizes}: set it to whole numbers above 0, or to []")


def check_settings(rollout: Mapping[str, Any]) -> None:
    """Refuses what rollout_rebalance cannot work with, as far as the rollout's configuration tells. No-op when off.

    Args:
        rollout: RolloutConfig, or the `rollout` node of the configuration.

    Raises:
        ValueError: names the key and what to set instead.
    """
    ours = rollout.get("rollout_rebalance")
    if not ours or not ours.get("enable"):
        return
    name, mode = rollout.get("name"), rollout.get("mode", "sync")
    if (name, mode) != ("vllm", "sync"):
        _refuse(f"it is for {ROLLOUT}.name=vllm with mode=sync, not name={name} with mode={mode}:")
    size = rollout.get("data_parallel_size", 1)
    if size < 2:
        _refuse(f"there is nothing to balance with {ROLLOUT}.data_parallel_size={size}; set that to 2 or more, or")
    if rollout.get("enforce_eager") and not list(ours.get("graph_sizes") or []):
        _refuse(
            f"with {ROLLOUT}.enforce_eager=True there are no graphs; set that to False, or name the batch sizes that "
            f"are worth reaching in {KEY}.graph_sizes, or"
        )


def _refuse(reason: str) -> None:
    raise ValueError(f"{KEY}.enable=True: {reason} set {KEY}.enable to False")


def _positive(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
