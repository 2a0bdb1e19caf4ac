"""Reward for the sums of `prepare_data.py made-sums`: 1 for the right digit and nothing after it.

A tenth for any other single digit, half for the right one with more behind it, and a twentieth for another with more: what a
model with random weights says first is worth something now and then, so that there is something to learn from.

    reward.custom_reward_function.path=scripts/rewards/sums.py reward.custom_reward_function.name=compute_score

(verl before 0.9: both without `reward.`)

verl loads this file by its path on whichever node computes rewards, so it imports nothing of this repository.
"""

from __future__ import annotations

from typing import Any


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None) -> dict[str, float]:
    """The score, and `acc`: whether the answer is exactly the right digit, which verl logs beside it."""
    first, more = solution_str[:1], solution_str[1:]
    if not (first.isascii() and first.isdigit()):
        return {"score": 0.0, "acc": 0.0}
    right = first == ground_truth
    if more:
        return {"score": 0.5 if right else 0.05, "acc": 0.0}
    return {"score": 1.0 if right else 0.1, "acc": float(right)}
