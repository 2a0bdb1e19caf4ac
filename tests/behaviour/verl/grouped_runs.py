"""Runs that the tests of the three grouped expert features share: tiny models, converted and loaded.

Each method runs its probe once a session, whichever test file asks first. Models and probes: tiny_moe_models.py,
probe_grouped_convert.py, probe_grouped_load.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from harness import Upstream

FOLDER = "tests/behaviour/verl"
MODELS = ("qwen3", "qwen3_moe", "qwen2_moe", "deepseek_v3", "qwen3_moe_large")
SEQUENTIAL = ("qwen3", "qwen3_moe")
# Latent attention, which MindSpeed cannot build without the patch mla_attention_sizes: nothing of it can be seen on unpatched trees.
LATENT = "deepseek_v3"
GROUPED = ("qwen3", "qwen3_moe", "qwen2_moe", "deepseek_v3", "qwen3_moe_large")
MEGATRON = "actor_rollout_ref.actor.megatron"
LAYERS = "+actor_rollout_ref.model.override_config.model_config.num_hidden_layers"
WHERE = {
    "need": ["verl", "megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu"],
}
Result = dict[str, Any]
Found = TypeVar("Found")


def once(run: Callable[[Runs], Found]) -> Callable[[Runs], Found]:
    """Runs a method of `Runs` once and keeps what it found, or how it failed: on an unpatched tree every run does."""

    @wraps(run)
    def kept(self: Runs) -> Found:
        if run.__name__ not in self.kept:
            try:
                self.kept[run.__name__] = run(self)
            except AssertionError as failure:
                self.kept[run.__name__] = failure
        if isinstance(self.kept[run.__name__], AssertionError):
            raise self.kept[run.__name__]
        return self.kept[run.__name__]

    return kept


class Runs:
    """What the probes found, by name of the job. Made by `shared_runs`."""

    def __init__(self, upstream: Upstream, folder: Path) -> None:
        self._upstream = upstream
        self._folder = folder
        self.kept: dict[str, Any] = {}

    @once
    def models(self) -> dict[str, str]:
        return self._upstream.run(f"{FOLDER}/tiny_moe_models.py", self._folder / "models", *MODELS, timeout=180)

    @once
    def sequential(self) -> dict[str, Result]:
        """Conversions without the option."""
        return self._converted({name: self._conversion(name, "sequential") for name in SEQUENTIAL})

    @once
    def sequential_latent(self) -> Result:
        """The same, of a model with latent attention."""
        return self._converted({LATENT: self._conversion(LATENT, "sequential")})[LATENT]

    @once
    def grouped(self) -> dict[str, Result]:
        """Conversions with --grouped_experts, each checked by the script's own --test but for the large one."""
        jobs = {name: self._conversion(name, "grouped", "--grouped_experts", "--test") for name in GROUPED}
        jobs["qwen3_moe_large"]["options"].remove("--test")
        wrong = {"output": str(self._folder / "sequential/qwen3_moe")}
        self.sequential()
        jobs["tested against the other layout"] = jobs["qwen3_moe"] | wrong
        return self._converted(jobs)

    @once
    def grouped_in_two_stages(self) -> dict[str, Result]:
        """A conversion by two processes, a pipeline stage each; the first has only the layer without experts."""
        return self._converted({"deepseek_v3": self._conversion("deepseek_v3", "stages", "--grouped_experts")}, procs=2)

    @once
    def loaded_sequential(self) -> dict[str, Result]:
        """Loads without the field, of checkpoints converted without the option."""
        self.sequential()
        jobs = {name: self._load(name, "sequential") for name in SEQUENTIAL}
        overlap = self._load("qwen3_moe", "sequential", overlap=True)
        jobs["overlap"] = overlap | {"refused": True}
        unloaded = {"overrides": ["actor_rollout_ref.actor.load_weight=False"], "also": ["lost_by_upstream"]}
        jobs["overlap, own weights"] = overlap | unloaded
        return self._loaded(jobs)

    @once
    def loaded_sequential_latent(self) -> Result:
        self.sequential_latent()
        return self._loaded({LATENT: self._load(LATENT, "sequential")})[LATENT]

    @once
    def loaded_grouped(self) -> dict[str, Result]:
        """Loads into models with MindSpeed's overlap and our field, and what is refused."""
        self.grouped()
        on = {"overlap": True, "grouped": True}
        checks = ["forward_error", "miscounted", "saved_and_loaded"]
        jobs = {
            "qwen3_moe": self._load("qwen3_moe", "grouped", also=checks, **on),
            "deepseek_v3": self._load("deepseek_v3", "grouped", **on),
            "qwen2_moe": self._load("qwen2_moe", "grouped", **on),
            "qwen3_moe_large": self._load("qwen3_moe_large", "grouped", **on),
            "critic": self._load("qwen3_moe", "grouped", role="critic", **on),
            "qwen3": self._load("qwen3", "grouped"),
            **{name: job | {"refused": True} for name, job in self._refused(on).items()},
        }
        return self._loaded(jobs)

    @once
    def loaded_by_two_ranks(self) -> dict[str, list[Result]]:
        """Loads by two processes: expert, pipeline and tensor parallel. Results by rank."""
        self.grouped()
        self.grouped_in_two_stages()
        on = {"overlap": True, "grouped": True}
        jobs = {
            "ep qwen3_moe": self._load("qwen3_moe", "grouped", parallel={"ep": 2}, **on),
            "ep deepseek_v3": self._load("deepseek_v3", "stages", parallel={"ep": 2}, **on),
            "pp qwen3_moe": self._load("qwen3_moe", "grouped", parallel={"pp": 2}, **on),
            "tp qwen3_moe": self._load("qwen3_moe", "grouped", parallel={"tp": 2}, **on),
        }
        ranks = self._upstream.run(
            f"{FOLDER}/probe_grouped_load.py", json.dumps(list(jobs.values())), procs=2, timeout=300, **WHERE
        )
        return {name: [rank[index] for rank in ranks] for index, name in enumerate(jobs)}

    def _refused(self, on: dict[str, bool]) -> dict[str, Result]:
        def grouped(*overrides: str) -> Result:
            return self._load("qwen3_moe", "grouped", overrides=list(overrides), **on)

        return {
            "sequential checkpoint": self._load("qwen3_moe", "sequential", **on),
            "grouped checkpoint": self._load("qwen3_moe", "grouped"),
            "fewer layers": self._load("deepseek_v3", "grouped", overrides=[f"{LAYERS}=2"], **on),
            "more layers": self._load("deepseek_v3", "grouped", overrides=[f"{LAYERS}=4"], **on),
            "no experts": self._load("qwen3", "grouped", grouped=True),
            "not grouped": self._load("qwen3_moe", "grouped", grouped=True),
            "hugging face weights": grouped(f"{MEGATRON}.use_dist_checkpointing=False"),
            "mbridge": grouped(f"{MEGATRON}.use_mbridge=True"),
            "expert tensor parallel": grouped(f"{MEGATRON}.expert_tensor_parallel_size=2"),
        }

    def _conversion(self, name: str, layout: str, *options: str) -> Result:
        return {
            "model": self.models()[name],
            "output": str(self._folder / layout / name),
            "options": list(options),
        }

    def _load(self, name: str, layout: str, **settings: Any) -> Result:
        return {"model": self.models()[name], "checkpoint": str(self._folder / layout / name), **settings}

    def _converted(self, jobs: dict[str, Result], procs: int = 1) -> dict[str, Result]:
        script = self._upstream.tree("verl") / "scripts/converter_hf_to_mcore.py"
        listed = json.dumps(list(jobs.values()))
        probe = f"{FOLDER}/probe_grouped_convert.py"
        found = self._upstream.run(probe, script, listed, procs=procs, timeout=300, **WHERE)
        return dict(zip(jobs, found if procs == 1 else found[0], strict=True))

    def _loaded(self, jobs: dict[str, Result]) -> dict[str, Result]:
        found = self._upstream.run(
            f"{FOLDER}/probe_grouped_load.py", json.dumps(list(jobs.values())), timeout=300, **WHERE
        )
        return dict(zip(jobs, found, strict=True))


_RUNS: dict[Upstream, Runs] = {}


def shared_runs(upstream: Upstream, folder: Path) -> Runs:
    """The session's runs; `folder` is used by whoever asks first."""
    return _RUNS.setdefault(upstream, Runs(upstream, folder))
