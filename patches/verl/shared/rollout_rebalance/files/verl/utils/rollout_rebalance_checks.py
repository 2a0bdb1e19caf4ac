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
"""Settings that rollout_rebalance cannot work with, as far as the configuration tells: read on the driver, before Ray starts."""

KEY = "actor_rollout_ref.rollout.rollout_rebalance"
ROLLOUT, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.model"


def check_rollout_rebalance(config) -> None:
    """Refuses them in the whole configuration, of a run that does not have the switch off.

    Raises:
        ValueError: with what to set instead.
    """
    rollout, model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
    ours = rollout.rollout_rebalance
    if ours.enable is not True:
        raise ValueError(f"{KEY}.enable={ours.enable!r} is neither True nor False: write {KEY}.enable=False for off")
    _check_values(ours)
    if rollout.name != "vllm":
        _refuse(f"it is for {ROLLOUT}.name=vllm, not {rollout.name}")
    if rollout.full_determinism:
        _refuse(f"full determinism has a server for each request; set {ROLLOUT}.full_determinism=False")
    if (rollout.get("disaggregation", None) or {}).get("enabled", False):
        _refuse(f"a prompt and its answer have two servers already; set {ROLLOUT}.disaggregation.enabled=False")
    if rollout.get("router_config_path", None):
        _refuse(f"it has a router of its own; set {ROLLOUT}.router_config_path=null")
    lora = model.get("lora", None) or {}
    if not lora.get("merge", False) and (lora.get("rank", 0) > 0 or model.get("lora_rank", 0) > 0):
        _refuse(f"it was not tried with LoRA adapters in the engine; set {MODEL}.lora.merge=True")
    servers = _servers(config)
    if servers < 2:
        _refuse(f"with {servers} of the servers that it balances there is nowhere to move to")


def _servers(config) -> int:
    """How many there are: on the trainer's devices, on devices of their own, or on both."""
    rollout, trainer = config.actor_rollout_ref.rollout, config.trainer
    ranks = rollout.tensor_model_parallel_size * rollout.data_parallel_size * rollout.pipeline_model_parallel_size
    own = rollout.nnodes * rollout.n_gpus_per_node // ranks
    shared = trainer.nnodes * trainer.n_gpus_per_node // ranks
    if config.get("rollout", None) is not None:  # one_step_off_policy and fully_async_policy have devices for it
        scheduled = (config.get("async_training", None) or {}).get("use_dynamic_resource_scheduling", False)
        return own + shared if scheduled else own
    if trainer.get("use_v1", False) and trainer.v1.trainer_mode == "separate_async":
        return own + shared if config.actor_rollout_ref.get("hybrid_engine", True) else own
    return shared


def _check_values(ours) -> None:
    wanted = {
        "interval": ("above 0", lambda value: _number(value) and value > 0),
        "horizon": ("a whole number, 1 or more", lambda value: _whole(value) and value > 0),
        "min_gain": ("from 0 to below 1", lambda value: _number(value) and 0 <= value < 1),
        "max_moves": ("a whole number, 1 or more", lambda value: _whole(value) and value > 0),
        "token_seconds": ("pairs of a whole number above 0 and seconds above 0, or []", _pairs),
        "prompt_tokens_per_second": (
            "above 0, or null", lambda value: value is None or (_number(value) and value > 0)
        ),
    }  # fmt: skip
    for name, (text, good) in wanted.items():
        if not good(ours[name]):
            raise ValueError(f"{KEY}.{name}={ours[name]}: set it to {text}")


def _pairs(value) -> bool:
    if isinstance(value, str) or value is None:
        return False
    return all(
        not isinstance(one, str | int | float | None)
        and len(one) == 2
        and _whole(one[0])
        and one[0] > 0
        and _number(one[1])
        and one[1] > 0
        for one in value
    )


def _number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse(reason: str) -> None:
    raise ValueError(f"{KEY}.enable=True: {reason}, or {KEY}.enable=False")
