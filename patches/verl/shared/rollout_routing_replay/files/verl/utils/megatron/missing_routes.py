# Part of patchctl's patch rollout_routing_replay; not in upstream verl.
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
"""Tokens without routes from the rollout: their rows name one expert for all of top-k, which no router does."""

import logging

import torch

from verl.utils.device import get_device_id
from verl.utils.megatron.router_replay_utils import align_r3_router_replay_data, build_r3_replay_mask, is_moe_layer

logger = logging.getLogger(__name__)
_told = []


def have_routes(routes: torch.Tensor, tf_config) -> torch.Tensor:
    """Which tokens have a choice of several experts in every layer that is replayed. Waits for no device.

    Args:
        routes: Expert ids [tokens, layers, top-k], of all decoder layers or of those alone that have experts.

    Returns:
        bool [tokens]. All of them with a top-k of 1, where zeros may be a choice.
    """
    if routes.shape[-1] == 1:
        return torch.ones(routes.shape[0], dtype=torch.bool, device=routes.device)
    chosen = (routes[..., 1:] != routes[..., :1]).any(-1)
    if routes.shape[1] == tf_config.num_layers:
        for layer in range(tf_config.num_layers):
            if not is_moe_layer(tf_config, layer):
                chosen[:, layer] = True  # no engine returns routes of a dense layer, and none is replayed there
    return chosen.all(-1)


def without_missing_routes(replay_mask: torch.Tensor, routes: torch.Tensor, tf_config) -> torch.Tensor:
    """The jagged mask without tokens that have no routes: the trainer's router chooses theirs. Waits for no device."""
    replayed = replay_mask.values() & have_routes(routes.values(), tf_config)
    return torch.nested.nested_tensor_from_jagged(replayed, offsets=replay_mask.offsets())


def count_missing_routes(data, tf_config, engine_config, group) -> float | None:
    """The share of the tokens to replay that have no routes, over all ranks of the group. Waits for the device once.

    None where nothing is counted: with `missing_routes=replay`, and with a top-k of 1, where it cannot be told.

    Raises:
        RuntimeError: with `missing_routes=refuse`, on every rank alike, before any of the batch's passes.
    """
    action, routes = engine_config.router_replay.missing_routes, data.get("routed_experts", None)
    if action == "replay" or routes is None:
        return None
    if routes.shape[-1] == 1:
        _tell("router replay R3: with a top-k of 1 tokens without routes look like those of expert 0, and are replayed")
        return None

    input_ids = data["input_ids"]
    found = torch.nested.nested_tensor_from_jagged(have_routes(routes.values(), tf_config), offsets=routes.offsets())
    found = align_r3_router_replay_data(found, input_ids).values()
    replayed = build_r3_replay_mask(input_ids, data["response_mask"], data.get("attention_mask", None)).values()
    counts = torch.stack([(replayed & ~found).sum(), replayed.sum()]).to(get_device_id())
    if not engine_config.dynamic_context_parallel:  # each rank has the whole batch there
        torch.distributed.all_reduce(counts, group=group)
    missing, tokens = counts.tolist()
    if not missing:
        return 0.0

    said = (
        f"router replay R3: {missing} of {tokens} tokens ({missing / tokens:.2%}) have no routes: "
        "the rollout's engine returned one expert for all of top-k, in some layer"
    )
    if action == "refuse":
        raise RuntimeError(
            f"{said}. Look for what its capture of routes leaves out (all tokens: a kernel or backend that it does not "
            "see), or set actor_rollout_ref.actor.megatron.router_replay.missing_routes=native, with which the "
            "trainer's own router chooses for them"
        )
    _tell(f"{said}. The trainer's own router chooses for them; actor/missing_routes_share goes on telling the share")
    return missing / tokens


def _tell(message: str) -> None:
    """Warns of it on the first rank, once in a run."""
    if torch.distributed.get_rank() == 0 and not _told:
        _told.append(message)
        logger.warning(message)
