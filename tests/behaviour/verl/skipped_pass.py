"""What a step without the pass for the old log-probabilities must be, for every trainer that can leave it out."""

from __future__ import annotations

from typing import Any

SWITCH = "actor_rollout_ref.actor.skip_old_log_prob=True: "


def same_step(case: Any) -> None:
    """Both runs trained, and to the same weights through the same gradients, logging the same figures."""
    assert case["off"]["moved"] > 1e-3
    assert case["largest_gradient"] > 1e-3
    assert case["gradients_differ_by"] == 0
    assert case["weights_differ_by"] == 0
    assert case["on"]["logged"] == case["off"]["logged"]


def one_pass_less(case: Any) -> None:
    """The same calls and forward passes but for compute_log_prob's, which the first run had in every step."""
    off, on = case["off"], case["on"]
    assert off["calls"].count("compute_log_prob") >= len(off["entropy"]) > 0
    assert on["calls"] == [call for call in off["calls"] if call != "compute_log_prob"]
    passes = dict(off["forwards"])
    assert passes.pop("compute_log_prob") > 0
    assert on["forwards"] == passes
    assert any(off["old_log_probs_sent"]) and not any(on["old_log_probs_sent"])
    assert any(off["timed_old_log_prob"]) and not any(on["timed_old_log_prob"])
