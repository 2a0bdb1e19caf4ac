"""What the tests of hybrid_data_parallel share: jobs for probe_hdp_actor.py, and how far their results are apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness import Upstream

PROBE = "probe_hdp_actor.py"
COMPARE = "probe_hdp_compare.py"
WHERE: dict[str, Any] = {
    "need": ["verl", "megatron-lm", "mindspeed"],
    "standins": ["torch_npu", "megatron_cpu", "npu_attention"],
}
# Largest difference in units of the largest value: rounding of float32 that has added up over four layers.
CLOSE = 2e-5
KINDS = ["entropies", "gradients", "log_probs", "loss", "losses"]
Batches = dict[str, dict[str, Any]]
# Lengths, tokens of a rank at most with two ranks (half of them with four), and the sizes of groups that come of it.
BATCHES: Batches = {
    "packs": {"lengths": [12, 9, 14, 8, 11, 10, 13, 9], "tokens": 32, "sizes": {1}},
    "splits": {"lengths": [60, 58, 62, 57], "tokens": 32, "sizes": {2}},
    "both": {"lengths": [60, 12, 9, 14, 8, 30, 7, 10], "tokens": 48, "sizes": {1, 2}},
    "fixed": {"lengths": [600, 12, 210, 190, 30, 580, 200, 220], "rows": 2, "sizes": {1, 2}},
    "falls back": {"lengths": [50], "tokens": 64, "sizes": {2}},
}
# {kind: [largest difference, tensors]}; no difference is given where the shapes differ.
Apart = dict[str, tuple[float | None, int]]


def jobs_of(batches: Batches, **settings: Any) -> Batches:
    """Each batch without and with the switch, by "BATCH plain" and "BATCH hybrid"."""
    kept = {name: {k: v for k, v in batch.items() if k != "sizes"} for name, batch in batches.items()}
    switched = {"plain": {}, "hybrid": {"hdp": True}}
    return {
        f"{name} {kind}": batch | settings | extra for name, batch in kept.items() for kind, extra in switched.items()
    }


def one_process(batches: Batches, ranks: int, **settings: Any) -> Batches:
    """The same batches for one process, whose micro-batches hold as many tokens as those of all ranks together."""
    found = {}
    for name, batch in batches.items():
        job = {key: value for key, value in batch.items() if key != "sizes"} | settings
        found[f"{name} one"] = job | ({"tokens": job["tokens"] * ranks} if "tokens" in job else {})
    return found


def run(upstream: Upstream, folder: Path, jobs: Batches, procs: int, timeout: float = 420) -> list[Any]:
    """What each rank reports of the jobs; their results are in the folder."""
    given = upstream.run(PROBE, folder, json.dumps(jobs), procs=procs, timeout=timeout, **WHERE)
    return [given] if procs == 1 else list(given)


def apart(upstream: Upstream, folder: Path, pairs: list[tuple[str, str]]) -> dict[str, Apart]:
    """By "NAME / REFERENCE"."""
    return dict(upstream.run(COMPARE, folder, json.dumps(pairs)))


def check(found: Apart, kinds: list[str] = KINDS) -> None:
    """Everything is there and equal but for rounding."""
    assert sorted(found) == sorted(kinds)
    assert found["gradients"][1] > 20
    assert all(is_close(found, kind) for kind in kinds), found


def is_close(found: Apart, kind: str, close: float = CLOSE) -> bool:
    difference = found[kind][0]
    return difference is not None and difference < close


def check_bfloat16(found: Apart, rounding: Apart) -> None:
    """Nearly as near as plain context parallelism is to one process: with 8 bits a gradient differs by per cents.

    Twice as far is allowed, since both round on their own, and the distance of log-probabilities, which losses are
    averages of, since a few losses may happen to be nearer.
    """
    assert sorted(found) == sorted(KINDS) and found["gradients"][1] > 20
    for kind, (difference, _) in found.items():
        usual = max(rounding[kind][0] or 0.0, rounding["log_probs"][0] or 0.0)
        assert difference is not None and difference < 2 * usual < 0.2, (kind, found, rounding)


def check_all(upstream: Upstream, folder: Path, pairs: list[tuple[str, str]], kinds: list[str] = KINDS) -> None:
    """`check` of each pair."""
    for found in apart(upstream, folder, pairs).values():
        check(found, kinds)


def sizes(ranks: list[Any], name: str) -> set[int]:
    """Sizes of the groups in a job's micro-batches; every rank has to have laid them out in the same way."""
    layouts = [rank[name]["layouts"] for rank in ranks]
    assert all(layout == layouts[0] for layout in layouts)
    return {size for layout in layouts[0] for _, size in layout}
