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
"""rollout.rollout_rebalance: in a rollout's tail, running requests of crowded servers go on at idle ones.

planner.py   which requests go where: a pure function of what the servers run and of how long their steps take
running.py   in a server: what it runs, how long that takes, and the end of a request that is to leave
balancer.py  in verl's load balancer: asks the servers, plans, and has sessions follow their requests
moved.py     in the client that a request came from: goes on at the other server, and makes one answer of both parts
"""
