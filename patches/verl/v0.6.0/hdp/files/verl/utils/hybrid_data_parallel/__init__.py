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
"""Hybrid data parallelism: short sequences on one rank of a context parallel group, long ones over several.

actor_rollout_ref.actor.megatron.hybrid_data_parallel switches it on. packing.py chooses ranks, groups.py makes their
process groups, micro_batches.py packs and gathers, setup.py refuses what does not go with it.
"""
