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
"""What rollout_data_parallel refuses before a run starts; see verl/workers/rollout/data_parallel.py."""

from . import setting, whole_number

ROLLOUT = "actor_rollout_ref.rollout"
SIZES = ("data_parallel_size", "expert_parallel_size")
SWITCHES = ()


def check_values(config) -> None:
    for name in SIZES:
        whole_number(config, f"{ROLLOUT}.{name}", least=1, default=1)


def check(config) -> None:
    if any(setting(config, f"{ROLLOUT}.{name}", 1) > 1 for name in SIZES):
        from verl.workers.rollout.data_parallel import check_sizes, ranks_per_shard

        rollout = setting(config, ROLLOUT)
        check_sizes(rollout)
        ranks_per_shard(rollout, config.trainer.nnodes * config.trainer.n_gpus_per_node)
