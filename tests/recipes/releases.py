"""What of a run depends on the version of verl, and nothing else of these modules does: stand-ins, what is watched where, the line
that says that verl's entry module has begun. And where the records of a release are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from patchctl.__main__ import compose
from patchctl.manifest.distribution import Distribution
from patchctl.training.recipes.conditions import version_of, within

REPO = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class OfRelease:
    """One release. `watched` are entries of PATCHCTL_STANDINS_WATCH; `begun` is in the log once the overrides were taken."""

    standins: tuple[str, ...]
    watched: tuple[str, ...]
    begun: str
    variables: Mapping[str, str] = field(default_factory=dict)
    # In place of the table's, where a recipe has more.
    sizes: Mapping[str, str] = field(default_factory=dict)
    # The same by PROFILE/RECIPE, where its switch has nothing to do with those.
    of_recipe: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    # Whether what its engine holds after an update can be kept (--steps).
    looks_closer: bool = True
    # Whether a loss is a mean over all that a step trains on, however micro-batches cut it.
    whole_losses: bool = False
    # Of known.yaml: by PROFILE/RECIPE, what it `stops` with and `why`.
    known_stops: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    name: str = ""

    @property
    def page(self) -> str:
        """The name of its page, without an ending, and of the folder of its records."""
        return f"recipes-{self.name}"

    def sizes_of(self, title: str) -> dict[str, str]:
        """Of PROFILE/RECIPE."""
        return {**self.sizes, **self.of_recipe.get(title, {})}

    def known_stop(self, title: str, why: str) -> str | None:
        """The reason that known.yaml gives for a recipe that stops so; None for another stop, and for a recipe that is not in it."""
        one = self.known_stops.get(title)
        return one["why"] if one and one["stops"] in why else None


_KNOWN: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "known.yaml").read_text(encoding="utf-8"))
# What goes on the path beside the trees, as an environment with ./standins installed has it.
_STANDINS = ("torch_npu", "megatron_cpu", "npu_attention", "npu_engine", "npu_training", "patchctl_standins")
# By the versions of verl that it is true of.
_OF_VERL = {
    "<0.9": OfRelease(
        _STANDINS,
        (
            "verl.workers.rollout.vllm_rollout.vllm_rollout_spmd=watch:watch",
            "verl.trainer.ppo.ray_trainer=watch:watch_trainer",
            "verl.utils.tracking=watch:watch_metrics",
            "ray._private.services=watch:wait_for_ray",
        ),
        "TaskRunner hostname",
    ),
    ">=0.9": OfRelease(
        (*_STANDINS, "npu_engine_0_23", "npu_experts_0_23", "npu_latent_0_23", "npu_training_0_9", "torchvision"),
        (
            "verl.workers.rollout.vllm_rollout.vllm_rollout=watch_v1:watch_updates",
            "verl.workers.rollout.vllm_rollout.vllm_async_server=watch_v1:watch_server",
            "verl.trainer.ppo.v1.trainer_base=watch_v1:watch_trainer",
            "verl.utils.tracking=watch:watch_metrics",
            "ray._private.services=watch:wait_for_ray",
            "mbridge.utils.device=deepseek_on_cpu:name_the_device",
            "vllm=deepseek_on_cpu:prepare_engine",
            "vllm_ascend.sample.sampler=sampling_on_cpu:name_the_operator",
        ),
        "TaskRunnerV1 pid=",
        # MindSpeed asks every module of transformers 5, and each says so: fifty thousand lines.
        {"TRANSFORMERS_VERBOSITY": "error"},
        # An engine has processes of its own: eight ranks with theirs are more than 24 GiB, and two took minutes.
        sizes={"pp": "1", "cp": "1", "devices_per_node": "2"},
        of_recipe={
            # Two data parallel ranks: of the model, of its experts, and of the engine.
            "qwen3-235b/dapo-longseq": {"tp": "1", "ep": "1", "rollout_tp": "1", "rollout_dp": "2"},
            "qwen3-235b/grpo-dynamic-cp": {"tp": "1", "cp": "2"},  # two ranks that may share a sequence
            "qwen3-235b/grpo-rebalance": {"rollout_tp": "1", "rollout_dp": "1"},  # two servers
        },
        looks_closer=False,
        whole_losses=True,
    ),
}


def _releases() -> dict[str, OfRelease]:
    """Of every release, the newest first."""
    compose()  # a script comes here too, which no conftest.py has prepared
    dist, found = Distribution.load(REPO), {}
    for release in dist.releases.values():
        verl = dist.stack("verl", release.stacks["verl"])
        (of,) = (of for limits, of in _OF_VERL.items() if within(version_of(verl), limits))
        found[release.name] = replace(of, name=release.name, known_stops=_KNOWN.get(release.name, {}))
    return found


RELEASES = _releases()
NEWEST, OLDEST = next(iter(RELEASES.values())), list(RELEASES.values())[-1]
