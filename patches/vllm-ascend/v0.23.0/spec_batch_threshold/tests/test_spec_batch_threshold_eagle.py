"""spec_batch_threshold: an EAGLE head runs on while its drafts are not used."""

from __future__ import annotations

from typing import Any

import pytest
from harness import Upstream
from models import TinyModels
from thresholds import NPU, drafting_after, switches, threshold


@pytest.fixture(scope="module")
def eagle(upstream: Upstream, tiny_models: TinyModels) -> Any:
    script = "probe_spec_threshold_eagle.py"
    return upstream.run(script, tiny_models.qwen3, "null", threshold(4, 2), **NPU)


@pytest.mark.on
@pytest.mark.slow
def test_eagles_head_runs_while_its_drafts_are_not_used(eagle: Any) -> None:
    without, with_pause = eagle["runs"]
    steps = with_pause["steps"]
    decisions = drafting_after([step["running"] for step in steps], 4, 2)
    assert switches(decisions) == 2
    paused = [step for before, step in zip(decisions, steps[1:], strict=False) if not before]
    assert all(step["drafts"] == 0 for step in paused)
    assert any(step["prefill"] for step in paused)
    off = decisions.index(False)
    assert sum(step["drafts"] for step in steps[off + len(paused) + 1 :]) > 0
    # The head's cache holds all tokens: what it proposes at each place is what it does without a pause.
    assert with_pause["proposed"] == without["proposed"]
    assert with_pause["tokens"] == without["tokens"]


@pytest.mark.misuse
@pytest.mark.slow
def test_asynchronous_scheduling_is_refused(eagle: Any) -> None:
    assert "asynchronous scheduling is on: set async_scheduling=False" in eagle["asynchronous"]
