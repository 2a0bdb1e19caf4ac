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
"""Settings of router replay that replay nothing, lose tokens, end after the first rollout, or are unknown words."""

ENGINES = ("megatron", "veomni")  # the strategies whose engines replay routes; others take the key and do nothing
MISSING = ("refuse", "native", "replay")  # what becomes of tokens without routes
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"


def check_router_replay(config) -> None:
    """Refuses them in the whole configuration, before a worker starts. Without replay it asks for a known word alone.

    Raises:
        ValueError: with what to set instead.
    """
    actor, rollout = config.actor_rollout_ref.get("actor", None) or {}, config.actor_rollout_ref.rollout
    strategy = actor.get("strategy", None)
    mode = _mode(actor.get(strategy, None)) if strategy in ENGINES else "disabled"
    asked = _mode(actor)
    recorded = rollout.get("enable_rollout_routing_replay", False)

    if asked != "disabled" and asked != mode:
        place = f"set {ACTOR}.{strategy}.router_replay.mode={asked}"
        if strategy not in ENGINES:
            place = f"{ACTOR}.strategy={strategy} replays no routes; use one of {', '.join(ENGINES)}"
        raise ValueError(f"{ACTOR}.router_replay.mode={asked} is read by no engine: {place}")
    missing = _section(actor.get("megatron", None)).get("missing_routes", "replay")
    if missing not in MISSING:
        raise ValueError(
            f"{ACTOR}.megatron.router_replay.missing_routes={missing} is not known: use one of {', '.join(MISSING)}"
        )
    if _section(actor.get("veomni", None)).get("missing_routes", "replay") != "replay":
        raise ValueError(f"{ACTOR}.veomni.router_replay.missing_routes: leave it out, Megatron's engine alone reads it")
    if mode == "R3" and not recorded:
        raise ValueError(
            f"router replay R3 has no routes to replay: set {ROLLOUT}.enable_rollout_routing_replay=True, or mode=R2"
        )
    if recorded and mode != "R3" and not rollout.get("moe_load_balance_metrics_interval", 0):
        raise ValueError(
            f"{ROLLOUT}.enable_rollout_routing_replay=True records routes that nothing reads: "
            f"{_wanted(strategy)}, or set it to False"
        )
    if mode != "disabled" and strategy == "megatron" and not config.actor_rollout_ref.model.use_remove_padding:
        raise ValueError(
            f"router replay {mode} counts packed tokens, and does not fit a padded batch: "
            "set actor_rollout_ref.model.use_remove_padding=True"
        )
    correction = config.get("algorithm", {}).get("rollout_correction", None) or {}
    if mode == "R2" and correction.get("bypass_mode", False):
        raise ValueError(
            "router replay R2 records its routes in the pass that bypass mode leaves out: use mode=R3, or "
            "set algorithm.rollout_correction.bypass_mode=False"
        )


def _mode(section) -> str:
    return _section(section).get("mode", "disabled")


def _section(engine) -> dict:
    return (engine or {}).get("router_replay", None) or {}


def _wanted(strategy: str) -> str:
    if strategy in ENGINES:
        return f"set {ACTOR}.{strategy}.router_replay.mode=R3"
    return f"only strategy={' and '.join(ENGINES)} replay them"
