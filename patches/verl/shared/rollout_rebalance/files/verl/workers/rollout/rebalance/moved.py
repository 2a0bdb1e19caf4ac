# Part of patchctl's patch rollout_rebalance; not in upstream verl.
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
"""In the client that a request came from: goes on at the other server, and makes one answer of both parts."""

from typing import Any

import numpy as np

from verl.utils import normalize_token_ids
from verl.workers.rollout.replica import TokenOutput


async def go_on(server, first: TokenOutput, moves: int, request: dict[str, Any]) -> TokenOutput:
    """The whole answer to a request that left another server with `first`.

    Args:
        server: the handle of the server where it goes on.
        first: tokens, log-probabilities and routes so far; its extra fields have "rebalance".
        moves: how often it has moved, this move counted.
        request: the keyword arguments of the first `generate`, with a request id that `server` does not know.
    """
    left = first.extra_fields.pop("rebalance")
    params = {name: value for name, value in request["sampling_params"].items() if name != "max_new_tokens"}
    params["max_tokens"] = left["max_tokens"]
    prompt = normalize_token_ids(request["prompt_ids"]) + first.token_ids
    rest = request | {"prompt_ids": prompt, "sampling_params": params}
    second = await server.generate_moved.remote(moves, first.extra_fields["global_steps"], **rest)
    return joined(first, second)


def joined(first: TokenOutput, second: TokenOutput) -> TokenOutput:
    """One answer of two, the second of which had the first's tokens in its prompt.

    Routes, [tokens, layers, experts], are those of the server that made the token: the second one's of what the first one
    has are left out. The last token of an answer has none, since no server has read it.
    """
    log_probs, routes = first.log_probs, first.routed_experts
    if second.token_ids and log_probs is not None:
        log_probs = log_probs + second.log_probs
    if routes is not None and second.routed_experts is not None:
        routes = np.concatenate([routes, second.routed_experts[len(routes) :]])
    preempted = [one.num_preempted for one in (first, second) if one.num_preempted is not None]
    fields = first.extra_fields | second.extra_fields
    # Of the prompt: the second server counts what was answered as well.
    if "num_cached_tokens" in first.extra_fields:
        fields["num_cached_tokens"] = first.extra_fields["num_cached_tokens"]
    for name in filter(lambda name: name.startswith("spec_num_"), fields):
        fields[name] = sum(one.extra_fields.get(name, 0) for one in (first, second))
    return TokenOutput(
        token_ids=first.token_ids + second.token_ids,
        log_probs=log_probs,
        routed_experts=routes,
        stop_reason=second.stop_reason,
        num_preempted=sum(preempted) if preempted else None,
        extra_fields=fields,
    )
