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
"""The order in which a batch of prompts, n samples each, is generated (actor_rollout_ref.rollout.data_rebalance).

The trainer repeats each prompt n times in a row (p1 p1 p2 p2 p3 p3, "grouped"), and dispatch cuts the batch into one
contiguous chunk an engine: all answers to a hard prompt are written by one engine, which the others wait for. In the
order p1 p2 p3 p1 p2 p3 ("tiled") the samples of a prompt stand `prompts` rows apart. A chunk has
ceil(prompts * n / engines) rows, so that with engines >= n no two of them are in one chunk, and with fewer engines each
chunk has floor(n / engines) or ceil(n / engines) of them, wherever the sizes divide.
"""

import torch

KEY = "actor_rollout_ref.rollout.data_rebalance"


def tiled_order(prompts: int, samples: int) -> torch.Tensor:
    """Rows of a grouped batch, in the order in which they are generated.

    Row `i * samples + j` of the grouped batch is sample j of prompt i; it goes to place `j * prompts + i`.

    Returns:
        int64 tensor of shape (prompts * samples,), to index the grouped batch with.
    """
    return torch.arange(prompts * samples).view(prompts, samples).t().reshape(-1)


def grouped_order(prompts: int, samples: int) -> torch.Tensor:
    """The inverse of `tiled_order`: places of a tiled batch, in the grouped order; int64, (prompts * samples,)."""
    return torch.arange(prompts * samples).view(samples, prompts).t().reshape(-1)


def generate_spread(worker_group, gen_batch, samples: int):
    """Generate with the samples of each prompt spread over the engines; the order of the result is upstream's.

    Args:
        worker_group: has `generate_sequences(DataProto) -> DataProto`, which keeps the order of its rows.
        gen_batch: DataProto of prompts * samples rows, grouped. It is left as it is.
        samples: rows of each prompt, `actor_rollout_ref.rollout.n`.

    Returns:
        What the worker group returned, with the rows of all tensors and all non-tensors in grouped order. meta_info is
        not touched: it holds nothing by row.

    Raises:
        ValueError: the batch is no whole number of prompts.
        RuntimeError: another number of rows came back than was sent, so that their order is not known.
    """
    if samples == 1:
        return worker_group.generate_sequences(gen_batch)
    prompts, rest = divmod(len(gen_batch), samples)
    if rest:
        raise ValueError(f"{KEY}: {len(gen_batch)} rows are no multiple of actor_rollout_ref.rollout.n={samples}")
    output = worker_group.generate_sequences(gen_batch[tiled_order(prompts, samples)])
    if len(output) != len(gen_batch):
        raise RuntimeError(f"{KEY}: {len(gen_batch)} rows were sent to the engines and {len(output)} came back")
    output.reorder(grouped_order(prompts, samples))
    return output


def check_data_rebalance(config, fit) -> None:
    """Refuse, before any worker starts, what cannot be spread; `fit` is the training loop that will run.

    Raises:
        ValueError: names the setting that is in the way, and what to set instead.
    """
    rollout = config.actor_rollout_ref.rollout
    if rollout.data_rebalance is not True:
        raise ValueError(f"{KEY}={rollout.data_rebalance!r} is neither True nor False")
    if not getattr(fit, "spreads_samples", False):
        raise ValueError(f"{fit.__qualname__} ({fit.__module__}) does not spread samples; set {KEY}=False")
    check_configuration(config)


def check_configuration(config) -> None:
    """The part of it that needs no trainer, with the switch on."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.mode != "sync":
        # AgentLoopWorker hands the requests of its chunk round the servers, each to the one with the fewest. Grouped,
        # that spreads the samples; tiled, it would not. Its rollout_n in traces counts equal neighbours, too.
        raise ValueError(
            f"{KEY} is for actor_rollout_ref.rollout.mode=sync; with mode={rollout.mode} requests are handed to the "
            f"servers one by one, which spreads samples already; set {KEY}=False"
        )
    if rollout.get("skip_rollout", False):
        # A dump has no note of its order: one written in the other order would be paired with the wrong prompts.
        raise ValueError(f"{KEY} cannot be used with actor_rollout_ref.rollout.skip_rollout=True; set one to False")
    if config.algorithm.adv_estimator == "remax" and rollout.n > 1:
        raise ValueError(
            f"{KEY} with algorithm.adv_estimator=remax needs actor_rollout_ref.rollout.n=1: at this revision fit "
            f"repeats the prompts before the baseline copies them, and fails for n={rollout.n} in any order"
        )
